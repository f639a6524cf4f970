"""Training, from top to bottom in the order in which things happen.

:func:`run_train` prepares the run's folder, builds what is trained (:class:`Training`), resumes it
from the last checkpoint and then repeats: batch, loss, gradient, clip, step, average, log,
validate, pictures, save. Lightning Fabric supplies devices, precision and processes; nothing else
calls back.

All randomness of a step is a pure function of (seed, step), so a resumed run needs no saved
generator state, and several processes together draw the same numbers as one.
"""

import io
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from slotmesh.training.arithmetic import arithmetic, chosen
from slotmesh.training.checkpoint import load_checkpoint, packed, replace_file
from slotmesh.training.failure import NonFinite, save_failure
from slotmesh.training.gradient import FastGradient, compiles
from slotmesh.training.log import Log, check_logger
from slotmesh.training.places import check_hardware, memory_checked
from slotmesh.training.processes import Lock, StopSignals, agree, start_processes
from slotmesh.training.runs import Run, begin, open_run, steps_done
from slotmesh.training.settings import Settings, plain
from slotmesh.training.start import check_start, first_weights
from slotmesh.training.stream import EvalBatches, KeptSets, RunData
from slotmesh.training.tasks import experiment
from slotmesh.training.tasks.experiment import Experiment

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# Steps between two exchanges of the processes on whether to stop, each of which costs a message.
_LOOK_EVERY = 10
# Validation samples in a picture.
_PICTURED = 4
# Validation samples over which the use of slots is measured.
_USAGE = 16


def run_train(
    settings: Settings, console: Console | None = None, *, kept: KeptSets | None = None
) -> Run:
    """Train to the last step, from scratch or from the last checkpoint.

    Args:
        settings: Settings of the run.
        console: Shows progress.
        kept: Sets of samples in memory: pass the same object to several runs in a process, and runs
            with the same data create them once.

    Returns:
        The finished run.

    Raises:
        ValueError: If a setting is wrong (before any data are read), if the folder contains another
            run, or if a loss or gradient is not finite.
        SystemExit: If the run was asked to stop; its state is saved.
    """
    console = Console() if console is None else console
    made = experiment(settings)
    check_hardware(settings.hardware)
    check_logger(settings)
    check_start(made)
    fabric = start_processes(settings)
    lock = Lock(settings.folder)
    try:
        with chosen(settings), memory_checked():
            start = agree(fabric, lambda: begin(settings, lock, fabric, console))
            if start is None or steps_done(start) < settings.steps:
                _fit(fabric, made, start, lock, console, kept)
    finally:
        lock.release()
    if fabric.is_global_zero:
        console.print(
            f"Trained: [bold]{escape(str(settings.folder))}[/bold]. Next: "
            f"{escape(shlex.join(made.next_command()))}",
            soft_wrap=True,
            highlight=False,
        )
    return open_run(settings.folder)


def _fit(
    fabric: "Fabric",
    made: Experiment,
    start: Path | None,
    lock: Lock,
    console: Console,
    kept: KeptSets | None,
) -> None:
    settings, first = made.settings, fabric.is_global_zero
    if first and (said := made.about_data()):
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    training = Training(made, fabric)
    if start is not None:
        training.load_state_dict(load_checkpoint(start))
    elif (weights := first_weights(made)) is not None:
        training.start_from(weights)
    data = RunData(
        made,
        fabric.device,
        rank=fabric.global_rank,
        n_ranks=fabric.world_size,
        console=console if first else None,
        in_memory=training.in_memory,
        kept=kept,
    )
    batches, val = data.train(training.step), data.val()
    log = Log(made, console, training.step, training.seconds, active=first)
    try:
        with closing(batches), log, StopSignals() as signals:
            stopped = _steps(training, batches, val, log, lock, signals)
    except NonFinite as failed:
        folder = settings.folder / "failure"
        said = save_failure(folder, made, training.model, failed.step) if first else ""
        # A process that exits takes the others with it: wait until the files are written.
        fabric.barrier()
        if not first:
            sys.exit(1)
        raise ValueError(said) from failed
    if stopped:
        if first:
            same = "Repeat the command" + (" without --overwrite" if settings.overwrite else "")
            console.print(
                f"Stopped at step {training.step} and saved. {same} to resume.",
                highlight=False,
            )
        # The exit codes of shells: 143 for SIGTERM, 130 for Ctrl-C.
        sys.exit(128 + stopped)


def _steps(
    training: "Training",
    batches: Iterator[Any],
    val: EvalBatches,
    log: Log,
    lock: Lock,
    signals: StopSignals,
) -> int:
    """Take all remaining steps; return the signal that stopped them early, or 0."""
    fabric, settings = training.fabric, training.made.settings
    while training.step < settings.steps:
        signals.listen()
        # Batch; then loss, gradient, clip, step and average.
        batch = next(batches).to(fabric.device)
        training.learn(batch)
        step, ended = training.step, training.step == settings.steps
        # Nothing is written into a folder that was removed, or now belongs to another run.
        lock.check()

        # Log.
        if step % settings.log_every == 0 or ended:
            log.write(step, "train", training.numbers())

        # Validate, and draw pictures.
        validated = step % settings.val_every == 0 or ended
        better = False
        if validated:
            found = training.validate(val)
            lock.check()
            if fabric.is_global_zero and (usage := training.usage()):
                log.write(step, "slots", usage)
            log.write(step, "val", found)
            if fabric.is_global_zero:
                path = settings.folder / "pictures" / f"step-{step:06d}.png"
                picture = training.picture()
                replace_file(path, picture)
                log.picture(step, picture)
            better = found["loss"] < training.best_loss
            training.best_loss = found["loss"] if better else training.best_loss

        # Save last, so that no step whose results were written is repeated.
        look = validated or fabric.world_size == 1 or step % _LOOK_EVERY == 0
        signum = signals.received(fabric) if look else 0
        if validated or step % settings.save_every == 0 or signum:
            training.check_finite()
            training.seconds = log.seconds
            # The best first: if the run dies in between, it resumes from an earlier step and writes
            # both again.
            for name in ("best", "last") if better else ("last",):
                _save(settings.folder / "checkpoints" / f"{name}.ckpt", training)
        log.show(step, line=validated)
        if signum:
            return signum
    return 0


def _save(path: Path, training: "Training") -> None:
    """Write a checkpoint; the last two are kept, in case one gets damaged."""
    if training.fabric.is_global_zero:
        old = path.with_name("previous.ckpt") if path.name == "last.ckpt" else None
        replace_file(path, packed(training.state_dict()), old=old)
    # A process that exits takes the others with it: wait until the file is written.
    training.fabric.barrier()


class Training:
    """The state of a run: model, optimiser and progress; :meth:`learn` takes one step.

    Example:
        >>> from lightning.fabric import Fabric
        >>> from slotmesh.training.loop import Training
        >>> from slotmesh.training.stream import RunData
        >>> from slotmesh.training.tasks import experiment, preset
        >>> made = experiment(preset("random-objects", "SA"))
        >>> fabric = Fabric(accelerator="cpu", devices=1)
        >>> training = Training(made, fabric)
        >>> training.learn(next(RunData(made, fabric.device).train(0)))
        >>> training.step, list(training.numbers())
        (1, ['loss', 'gradient_norm', 'lr'])
    """

    def __init__(self, made: Experiment, fabric: "Fabric") -> None:
        from torchmetrics import MeanMetric

        settings, device = made.settings, fabric.device
        self.made = made
        self.fabric = fabric
        self.step = 0
        """Steps done."""
        self.seconds = 0.0
        """Time that they took, as of the last checkpoint."""
        self.best_loss = float("inf")
        """Lowest validation loss so far."""
        self.in_memory: dict[str, bool] = {}
        """Which splits are kept in memory, so that a resumed run sees the same pixels."""
        self.model = made.fresh_model()
        self.average: nn.Module | None = None
        """The moving average of the model's weights, if the settings ask for one."""
        if settings.optim.ema is not None:
            self.average = made.fresh_model().requires_grad_(False)
        for model in {self.model, self.judged}:
            model.to(device)
            if device.type == "cuda" and settings.hardware.precision != "32":
                model.to(memory_format=torch.channels_last)  # pyright: ignore
        # The fused Adam can be told on the device to leave the weights alone.
        self._fused = device.type == "cuda"
        self.adam = torch.optim.Adam(self.model.parameters(), fused=self._fused)
        if fabric.world_size > 1:
            self._leave_out_unused()
        self._net = fabric.setup_module(_Calls(self.model))
        self._fast: FastGradient | None = None
        if compiles(settings, device, fabric.world_size):
            half = settings.hardware.precision == "bf16"
            self._fast = FastGradient(made, self.model, half=half)
        self._metrics: dict[str, Any] = {k: v.to(device) for k, v in made.metrics().items()}
        self._val_loss = MeanMetric().to(device)
        share = {"rank": fabric.global_rank, "n_ranks": fabric.world_size}
        self._noise = partial(made.noise, device=device, **share)
        self._latest: dict[str, Any] = {}
        self._failed_at = torch.tensor(-1, device=device)
        self._about = {
            "settings": json.dumps(plain(settings)),
            "arithmetic": arithmetic(settings, device, fabric.world_size),
        }

    @property
    def judged(self) -> nn.Module:
        """The model to validate, evaluate and save: the average, if there is one."""
        return self.model if self.average is None else self.average

    def _leave_out_unused(self) -> None:
        """Exclude parameters that the loss does not depend on: DDP would wait for their gradient.

        In a single process they have no gradient, and Adam leaves them alone.
        """
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        sample, noise = self._first(1, "unused")
        loss = self.made.losses(self.model, sample, noise)["loss"]
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        for p, gradient in zip(parameters, found, strict=True):
            p.requires_grad_(gradient is not None)

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """Replace the initial weights by trained ones."""
        for model in {self.model, self.judged}:
            model.load_state_dict(weights)

    # ---- one step ----

    def learn(self, batch: Any) -> None:
        """Take a step: loss, gradient, clip, update of the weights and of their average.

        Raises:
            NonFinite: If the loss or the gradient is not finite; the weights are then unchanged. On
                a GPU, it is raised later, by :meth:`check_finite`.
        """
        optim = self.made.settings.optim
        rate = optim.lr * optim.factor(self.step, self.made.settings.steps)
        for group in self.adam.param_groups:
            group["lr"] = rate
        losses = self.gradient(batch)
        limit = float("inf") if optim.clip is None else optim.clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit).detach()
        self._guard(losses["loss"], norm)
        self.adam.step()
        if self.average is not None and optim.ema is not None:
            # Lower in the beginning, so that the initial weights are soon forgotten.
            decay = min(optim.ema, (1 + self.step) / (10 + self.step))
            kept, new = (tuple(m.parameters()) for m in (self.average, self.model))
            get_ema_multi_avg_fn(decay)(kept, new, self.step)
        self._latest = losses | {"gradient_norm": norm, "lr": rate}
        self.step += 1

    def gradient(self, batch: Any) -> dict[str, Tensor]:
        """Compute the losses of a batch, and their gradient in ``.grad`` of the parameters."""
        if self._fast is not None:
            # It overwrites the whole gradient, and in the next step these losses.
            return {name: value.clone() for name, value in self._fast(batch, self.step).items()}
        losses = self.losses(batch)
        self.adam.zero_grad()
        self.fabric.backward(losses["loss"])
        return {name: value.detach() for name, value in losses.items()}

    def losses(self, batch: Any) -> dict[str, Tensor]:
        """The losses of a batch, with their graph."""
        noise = self._noise("train", self.step, total=self.made.settings.data.batch_size)

        def forward(model: nn.Module) -> dict[str, Tensor]:
            try:
                return self.made.losses(model, batch, noise)
            except ValueError as error:
                # On the CPU, the checks of the library find it first. Other processes wait for the
                # gradient of this one.
                if "not finite" not in str(error):
                    raise
                weights = [p.sum() for p in model.parameters()]
                return {"loss": torch.nan * torch.stack(weights).sum()}

        return self._net(forward)

    def _guard(self, loss: Tensor, norm: Tensor) -> None:
        """Keep the weights unchanged if the loss or gradient is not finite in any process."""
        finite = torch.isfinite(norm) & torch.isfinite(loss)
        if self.fabric.world_size > 1:
            # Fabric's all_reduce would make all processes wait for each other once more.
            whole = finite.to(torch.float32)
            torch.distributed.all_reduce(whole, torch.distributed.ReduceOp.MIN)
            finite = whole > 0
        if not self._fused:
            if not finite:
                raise NonFinite(self.step)
            return
        # Waiting for the device at every step would cost more than a few steps that do nothing.
        new = ~finite & (self._failed_at < 0)
        self._failed_at = torch.where(new, self.step, self._failed_at)
        self.adam.found_inf = (self._failed_at >= 0).to(torch.float32)  # pyright: ignore
        self.adam.grad_scale = None  # pyright: ignore

    def check_finite(self) -> None:
        """Raise :class:`NonFinite` if a step failed. Waits for the device."""
        step = int(self._failed_at)
        if step >= 0:
            raise NonFinite(step)

    def numbers(self) -> dict[str, float]:
        """Losses, gradient norm and learning rate of the last step, over all processes."""
        self.check_finite()
        found = self._latest
        if self.fabric.world_size > 1:
            # All processes have equal parts of each batch.
            mean = self.fabric.strategy.all_reduce
            found = {k: mean(v.clone()) if isinstance(v, Tensor) else v for k, v in found.items()}
        return {name: float(value) for name, value in found.items()}

    # ---- looking at the model ----

    @torch.no_grad()
    def validate(self, batches: EvalBatches) -> dict[str, float]:
        """Compute loss and metrics over the validation set, over all processes."""
        self.check_finite()
        for metric in (*self._metrics.values(), self._val_loss):
            metric.reset()
        self.judged.eval()
        for i, batch in enumerate(batches):
            noise = self._noise("val", i, total=batches.totals[i])
            with self.fabric.autocast():
                batch = batch.to(self.fabric.device)
                rows = self.made.judge(self.judged, batch, noise, self._metrics)
            self._val_loss.update(rows["loss"])
        self.judged.train()
        found = {"loss": self._val_loss.compute()}
        for name, metric in self._metrics.items():
            value = metric.compute()
            found |= value if isinstance(value, dict) else {name: value}
        return {name: float(value) for name, value in found.items()}

    @torch.no_grad()
    def usage(self) -> dict[str, float]:
        """How the model uses its slots on the first validation samples; empty without masks."""
        sample, noise = self._first(_USAGE, "usage")
        self.judged.eval()
        found = self.made.usage(self.judged, sample, noise)
        self.judged.train()
        return {} if found is None else found.means()

    @torch.no_grad()
    def picture(self) -> memoryview:
        """The model's output for the first validation samples, as the bytes of a PNG file."""
        sample, noise = self._first(_PICTURED, "picture")
        self.judged.eval()
        picture = self.made.picture(self.judged, sample, noise)
        self.judged.train()
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG")
        return buffer.getbuffer()

    def _first(self, n: int, purpose: str) -> tuple[Any, torch.Generator]:
        """The first validation samples, and noise for them."""
        device = self.fabric.device
        source, most = self.made.source("val", device)
        count = min(n, most or n)
        noise = self.made.noise(purpose, 0, total=count, device=device)
        return source.sample(range(count)).to(device), noise

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to resume, and what determines the bits."""
        models = {"model": self.model, "average": self.average}
        return self._about | {
            "global_step": self.step,
            "seconds": self.seconds,
            "best_loss": self.best_loss,
            "in_memory": dict(self.in_memory),
            "state_dict": {
                f"{prefix}.{name}": value
                for prefix, model in models.items()
                if model is not None
                for name, value in model.state_dict().items()
            },
            "optimizer_states": [self.adam.state_dict()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, also from one that Lightning's Trainer wrote."""
        # Earlier versions kept the same values elsewhere.
        callbacks = state.get("callbacks", {})
        self.step = state["global_step"]
        self.seconds = (callbacks.get("Journal", {}) | state)["seconds"]
        self.best_loss = (callbacks.get("Keeper", {}) | state)["best_loss"]
        self.in_memory = dict(state.get("in_memory", state.get("RunData", {})))
        for prefix, model in (("model.", self.model), ("average.", self.average)):
            if model is not None:
                weights = state["state_dict"].items()
                model.load_state_dict(
                    {k.removeprefix(prefix): v for k, v in weights if k.startswith(prefix)}
                )
        [optimizer] = state["optimizer_states"]
        for group in optimizer["param_groups"]:
            # Depends on this device, not on that of the checkpoint.
            group["fused"] = self._fused
        self.adam.load_state_dict(optimizer)


class _Calls(nn.Module):
    """Calls a function with the model as one forward pass, so that DDP sees all of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Any) -> Any:
        return function(self.model)
