"""Losses and their gradient on a GPU, compiled and recorded as one CUDA graph."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from slotmesh.nn.noise import Drawing, Drawn
from slotmesh.training.captured import Captured
from slotmesh.training.settings import Settings
from slotmesh.training.stream import tensors
from slotmesh.training.tasks.experiment import Experiment, mix

Losses = dict[str, Tensor]

WORTH = 5000
"""Number of steps from which on compiling saves time."""


class FastGradient:
    """Losses and gradients of one batch after another, compiled, in one CUDA graph.

    The first call takes about a minute, while torch compiles. After that, a step takes only as long
    as the GPU needs, while the host prepares the next. Random numbers are the same as without
    compilation.

    Args:
        experiment: Defines the losses.
        model: The model, on a CUDA device. From the first call on, its gradients stay in the same
            memory.
        half: Compute under autocast to bfloat16.
        compiled: Whether torch compiles it; otherwise it is only recorded.
    """

    def __init__(
        self, experiment: Experiment, model: nn.Module, *, half: bool, compiled: bool = True
    ) -> None:
        self.experiment = experiment
        self.model = model
        self.half = half
        self.compiled = compiled
        self._batch: Any = None
        self._generator: torch.Generator | None = None
        self._replay: Captured[Losses] | None = None
        self._grads: list[tuple[nn.Parameter, Tensor | None]] = []

    def __call__(self, batch: Any, step: int) -> Losses:
        """Return the losses of a batch, valid until the next call; the gradient is in ``.grad``."""
        if self._replay is None:
            self._record(batch, step)
        assert self._replay is not None
        assert self._generator is not None
        for kept, new in zip(tensors(self._batch), tensors(batch), strict=True):
            kept.copy_(new, non_blocking=True)
        self._generator.manual_seed(mix(self.experiment.settings.seed, "train", step))
        losses = self._replay()
        # Someone may have set gradients to None in between, as ``zero_grad`` does.
        for p, grad in self._grads:
            p.grad = grad
        return losses

    def _record(self, batch: Any, step: int) -> None:
        self._batch = batch._map(channels_last)
        seed = mix(self.experiment.settings.seed, "train", step)
        # One generator for all steps, so that the graph does not have to register new ones.
        self._generator = torch.Generator(tensors(batch)[0].device).manual_seed(seed)
        drawing = Drawing(self._generator)
        with torch.no_grad(), self._precision():
            self.experiment.losses(self.model, self._batch, drawing)  # pyright: ignore
        run: Callable[[list[Tensor]], Losses] = self._losses
        if self.compiled:
            run = torch.compile(run, fullgraph=True, dynamic=False)

        def whole() -> Losses:
            drawn = drawing.again()
            # Without autocast's cache: weights rounded outside the graph would never change again.
            with self._precision():
                losses = run(drawn)
            losses["loss"].backward()
            return {name: value.detach() for name, value in losses.items()}

        def forget() -> None:
            for p in self.model.parameters():
                p.grad = None

        with fastest_convolutions(), _no_limit(), warnings.catch_warnings():
            # The settings ask for single precision.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
            self._replay = Captured(whole, [self._generator], before=forget)
        self._grads = [(p, p.grad) for p in self.model.parameters()]

    def _losses(self, drawn: list[Tensor]) -> Losses:
        return self.experiment.losses(self.model, self._batch, Drawn(drawn))  # pyright: ignore

    def _precision(self) -> AbstractContextManager[Any]:
        if not self.half:
            return nullcontext()
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms; a graph that is recorded meanwhile keeps its choice."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _no_limit() -> AbstractContextManager[Any]:
    """Let torch compile this for any number of models: after eight it raises an error."""
    config: Any = torch._dynamo.config
    return config.patch(recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize)


def compiles(settings: Settings, device: torch.device, n_processes: int) -> bool:
    """Whether the step of a run can be compiled, and is worth the minute that it takes."""
    wish = settings.hardware.compile
    able = device.type == "cuda" and n_processes == 1 and not settings.hardware.deterministic
    return able and (wish == "yes" or (wish == "auto" and settings.steps >= WORTH))


def channels_last(x: Tensor) -> Tensor:
    """Copy a tensor; images into the memory format in which convolutions are fastest."""
    images = x.ndim == 4 and x.shape[1] == 3
    return x.clone(memory_format=torch.channels_last if images else torch.contiguous_format)
