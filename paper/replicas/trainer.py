"""Replicas of an experiment as one stacked model, trained step by step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paper.replicas.check import check_replicas
from paper.replicas.data import BLOCK, Batches
from paper.replicas.loss_curve import LossCurve
from paper.replicas.stacked import StackedGenerator, stack, unstack
from paper.replicas.update import Update
from slotmesh.ops import set_value_checks
from slotmesh.training.captured import Captured
from slotmesh.training.tasks.experiment import Experiment, mix
from slotmesh.training.tasks.matching import match


class ReplicaTrainer:
    """Train several runs at once, each as if it were alone.

    On a CUDA device a step is captured once as a graph and replayed, and the host does not wait
    for the device between two calls of :meth:`advance`.

    Args:
        experiments: Experiments of random objects whose settings differ only in ``seed``,
            ``data.seed`` and ``data.sigma``.
        device: Device to train on.
        capture: Whether to capture the step as a CUDA graph; by default on a CUDA device.

    Raises:
        ValueError: If the experiments cannot be trained together.

    Example:
        >>> from dataclasses import replace
        >>> from paper.replicas import ReplicaTrainer
        >>> from slotmesh.training.tasks import experiment, preset
        >>> start = preset("random-objects", "SA")
        >>> runs = ReplicaTrainer([experiment(replace(start, seed=seed)) for seed in range(3)])
        >>> runs.advance(2)
        >>> runs.losses().shape, runs.failed()
        (torch.Size([2, 3]), [None, None, None])
        >>> sum(p.numel() for p in runs.replica(1).parameters())
        13792
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        *,
        device: torch.device | str = "cpu",
        capture: bool | None = None,
    ) -> None:
        self.experiments = check_replicas(experiments)
        self.device = torch.device(device)
        self.step = 0
        """Steps done."""
        on_gpu = self.device.type == "cuda"
        if capture and not on_gpu:
            raise ValueError(f"The device is {self.device}, expected cuda with capture=True.")
        self._capture = on_gpu if capture is None else capture
        settings = self.experiments[0].settings
        models = [made.fresh_model() for made in self.experiments]
        self.model: nn.Module = stack(models).to(self.device)
        """The stacked model, with weights ``(R, ...)``."""
        self._update = Update(self.model, len(models), settings.optim.clip)
        self._batches = Batches(self.experiments, self.device)
        scales = [made.loss_scale for made in self.experiments]
        self._scale = torch.tensor(scales, device=self.device, dtype=torch.get_default_dtype())
        self._noise = StackedGenerator(self.device, self._seeds(0))
        self._first = torch.zeros((), dtype=torch.int64, device=self.device)
        self._now = torch.zeros_like(self._first)
        like = self._update.parameters[0]
        self._rows = like.new_zeros(BLOCK, len(models)).detach()
        self._curve = LossCurve()
        self._replay: Captured[None] | None = None

    def advance(
        self, until: int, on_block: Callable[["ReplicaTrainer"], None] = lambda trainer: None
    ) -> None:
        """Train until this many steps are done.

        Args:
            until: Number of steps, at most that of the settings.
            on_block: Called with the trainer about every hundred steps.
        """
        settings = self.experiments[0].settings
        if until > settings.steps:
            raise ValueError(f"until is {until}, expected at most {settings.steps} steps.")
        with exact_arithmetic():
            while self.step < until:
                self._block(min(BLOCK, until - self.step))
                on_block(self)

    def replica(self, which: int) -> nn.Module:
        """Return the current model of one experiment as an ordinary module."""
        return unstack(self.model, which)

    def losses(self) -> Tensor:
        """Return all losses so far, ``(step, R)`` on the CPU; NaN after a replica failed."""
        return self._curve.whole()

    def latest(self) -> Tensor | None:
        """Return the newest losses ``(R)`` that are available without waiting for the device."""
        return self._curve.latest()

    def failed(self) -> list[int | None]:
        """Return the step at which each replica failed (loss or gradient not finite), or None."""
        return [None if step < 0 else step for step in self._update.failed_at.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, as tensors on the CPU and plain data."""
        return {
            "step": self.step,
            "state_dict": {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()},
            "optimizer": {k: v.detach().cpu().clone() for k, v in self._update.state.items()},
            "losses": self.losses(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state."""
        self.step = state["step"]
        self.model.load_state_dict(state["state_dict"])
        for name, value in self._update.state.items():
            value.copy_(state["optimizer"][name])
        self._curve.load(state["losses"])

    def _block(self, count: int) -> None:
        """Take ``count`` steps."""
        settings = self.experiments[0].settings
        self._batches.prepare(self.step, count)
        self._first.fill_(self.step)
        self._now.fill_(self.step)
        if self._capture and self._replay is None:
            self._record()
        take = self._take if self._replay is None else self._replay
        for step in range(self.step, self.step + count):
            self._noise.seed(self._seeds(step))
            self._update.set_rate(settings.optim.lr * settings.optim.factor(step, settings.steps))
            take()
        self.step += count
        self._curve.add(self._rows[:count])

    def _take(self) -> None:
        """Take one step, on tensors that keep their addresses, without synchronising."""
        row = self._now - self._first
        inputs, targets = self._batches.at(row)
        loss = losses_of(self.model(inputs, generator=self._noise).slots, targets) * self._scale
        # Each loss depends only on the weights of its own replica.
        grads = torch.autograd.grad(loss.sum(), self._update.parameters, materialize_grads=True)
        known = self._update(loss.detach(), grads, self._now)
        self._rows.index_copy_(0, row.view(1), known.unsqueeze(0))
        self._now.add_(1)

    def _record(self) -> None:
        changed = [*self._update.changed, self._now]
        kept = [value.clone() for value in changed]

        def undo() -> None:
            for value, before in zip(changed, kept, strict=True):
                value.copy_(before)

        self._replay = Captured(self._take, self._noise.parts, before=undo)

    def _seeds(self, step: int) -> list[int]:
        return [mix(made.settings.seed, "train", step) for made in self.experiments]


def losses_of(slots: Tensor, targets: Tensor) -> Tensor:
    """Return the loss ``(R)`` of slots and targets ``(R, batch, m, dim)``; NaN if slots diverge."""
    # Squares of larger numbers overflow, and values that are not finite cannot be matched.
    most = 1e-3 * torch.finfo(slots.dtype).max ** 0.5
    fine = (slots.detach().abs() < most).flatten(1).all(1)
    safe = torch.where(fine.view(-1, 1, 1, 1), slots, 0.0)
    return torch.where(fine, match(safe, targets).cost.mean(-1), torch.nan)


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Use full-precision products, and skip checks of values, where one replica stops all."""
    precision = torch.get_float32_matmul_precision()
    checks = set_value_checks("never")
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        set_value_checks(checks)
        torch.set_float32_matmul_precision(precision)
