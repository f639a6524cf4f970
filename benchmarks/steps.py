"""The section ``steps``: whole training steps of the variants."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.gate import noted, passed, relative
from benchmarks.kernels import profiled
from benchmarks.measure import Measurement, OnProgress, measure, noop
from benchmarks.timing import time_together
from slotmesh.nn.noise import Drawing, Drawn
from slotmesh.training.gradient import FastGradient
from slotmesh.training.tasks import TASKS
from slotmesh.training.tasks.experiment import Experiment

Precision = Literal["32", "tf32", "bf16"]

VARIANTS = ("SA", "SA-SH", "SA-EMD", "SA-MESH")
BATCHES = 4
"""Number of batches that the steps cycle through; they are generated in advance."""
# Steps per sample: as in training, the host prepares the next step while a GPU computes.
_BLOCK = {"cuda": 25, "cpu": 1}
LIMITS: dict[Precision, dict[str, float]] = {
    "32": {"loss": 1e-5, "gradient": 1e-2},
    # Transport amplifies the rounding of queries and keys; a real mistake would be larger.
    "tf32": {"loss": 1e-3, "gradient": 0.05},
    "bf16": {"loss": 5e-3, "gradient": 0.1},
}
"""Limits of relative errors of the first step, against float64."""
# Width and height of the images of quick steps.
_SIDES = {"multi-dsprites": 16, "clevr-properties": 32}


@dataclass(frozen=True)
class StepCase:
    """A training step of one variant."""

    task: str
    variant: str
    batch: int
    precision: Precision
    preset: Literal["quick", "paper"] = "paper"

    def row(self) -> Measurement:
        """Return the part of the measurement that identifies the case."""
        return {
            "name": self.task,
            "variant": self.variant,
            "batch": self.batch,
            "precision": self.precision,
            "preset": self.preset,
        }


CASE = StepCase


def step_cases(kind: str, *, quick: bool = False) -> list[StepCase]:
    """Return the cases for ``cuda`` or ``cpu``.

    Example:
        >>> from benchmarks.steps import step_cases
        >>> step_cases("cuda")[0]
        StepCase(task='multi-dsprites', variant='SA', batch=64, precision='bf16', preset='paper')
    """
    if kind == "cpu":
        tasks = ("multi-dsprites",) if quick else ("multi-dsprites", "clevr-properties")
        return [StepCase(task, name, 16, "32", "quick") for task in tasks for name in VARIANTS]
    cases = [StepCase("multi-dsprites", name, 64, "bf16") for name in VARIANTS]
    if not quick:
        cases += [StepCase("multi-dsprites", name, 64, "tf32") for name in VARIANTS]
        cases += [StepCase("clevr-properties", name, 128, "bf16") for name in VARIANTS]
    return cases


def measure_steps(
    cases: Sequence[StepCase],
    device: torch.device,
    seconds: float = 1.0,
    on_progress: OnProgress = noop,
) -> Iterator[Measurement]:
    """Yield one measurement per case: its error, and its time if the error is small enough."""
    return measure("steps", [[case] for case in cases], device, seconds, on_progress)


def experiment_of(case: StepCase) -> Experiment:
    """Return the experiment of a case."""
    kind = TASKS[case.task]
    settings: Any = kind.preset(case.variant, case.preset)
    if case.preset == "quick":
        # The scenes of the paper and as many slots; the other sizes are those of the preset.
        paper: Any = kind.preset(case.variant, "paper")
        settings = replace(
            settings,
            data=replace(settings.data, easy=False, size=_SIDES[case.task]),
            model=replace(settings.model, n_slots=paper.model.n_slots),
        )
    return kind(replace(settings, data=replace(settings.data, batch_size=case.batch)))


class PreparedStep:
    """A training step that is ready to be timed: losses, backward, clip, Adam.

    On a GPU it is compiled and captured, as in ``slotmesh train``.

    Args:
        case: The task, variant and precision.
        device: Device to measure.
    """

    def __init__(self, case: StepCase, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.experiment = experiment_of(case)
        self.model = self.experiment.fresh_model().to(device)
        settings = self.experiment.settings
        source, _ = self.experiment.source("train", device)
        whole = source.sample(range(BATCHES * case.batch))
        parts = range(0, BATCHES * case.batch, case.batch)
        self.batches = [whole[i : i + case.batch] for i in parts]
        grid: Any = self.model.encoder.out_grid  # pyright: ignore
        self.row = case.row() | {"n": grid[0] * grid[1], "m": settings.model.n_slots}
        right = self._truth()
        self.fast: FastGradient | None = None
        if device.type == "cuda":
            if case.precision != "32":
                self.model.to(memory_format=torch.channels_last)  # pyright: ignore
            half = case.precision == "bf16"
            self.fast = FastGradient(self.experiment, self.model, half=half)
        fused = device.type == "cuda"
        self.adam = torch.optim.Adam(self.model.parameters(), lr=settings.optim.lr, fused=fused)
        self._check(*right)

    def finish(self, seconds: float) -> Measurement:
        """Time the step; nothing else may use the device meanwhile."""
        if self.row["passed"]:
            batches, size = cycle(self.batches), _BLOCK[self.device.type]

            def block() -> None:
                for _ in range(size):
                    self.step(next(batches))

            with precision(self.case.precision):
                times = time_together({"": block}, self.device, seconds)[""]
                self.row |= times.over(size).row()
                if self.device.type == "cuda":
                    self.row["kernels"] = profiled(block, size)
        return self.row

    def step(self, batch: Any) -> None:
        """Take one training step."""
        self._gradient(batch)
        clip = self.experiment.settings.optim.clip
        limit = float("inf") if clip is None else clip
        nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.adam.step()

    def _gradient(self, batch: Any) -> Tensor:
        """Return the loss and leave its gradient in the weights."""
        if self.fast is not None:
            return self.fast(batch, 0)["loss"]
        self.adam.zero_grad()
        half = self.case.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            loss = self.experiment.losses(self.model, batch, self._noise())["loss"]
        loss.backward()
        return loss.detach()

    def _check(self, right_loss: Tensor, right: Tensor) -> None:
        """Compare the first step, as it is timed, with the truth."""
        with precision(self.case.precision):
            loss = self._gradient(self.batches[0])
        gradient = _flat([p.grad for p in self.model.parameters()])
        errors = {"loss": relative(loss, right_loss), "gradient": relative(gradient, right)}
        right_enough = passed(errors, LIMITS[self.case.precision])
        self.row |= {"error": noted(errors), "passed": right_enough}

    def _truth(self) -> tuple[Tensor, Tensor]:
        """Return loss and gradient in float64, without kernels, with the same random numbers."""
        drawing = Drawing(self._noise())
        with torch.no_grad():
            self.experiment.losses(self.model, self.batches[0], drawing)  # pyright: ignore
        drawing.generator = self._noise()
        drawn = Drawn([x.double() for x in drawing.again()])
        exact = copy.deepcopy(self.model).double()
        batch = replace(self.batches[0], image=self.batches[0].image.double() / 255)
        loss = self.experiment.losses(exact, batch, drawn)["loss"]  # pyright: ignore
        loss.backward()
        return loss.detach(), _flat([p.grad for p in exact.parameters()])

    def _noise(self) -> torch.Generator:
        return self.experiment.noise("train", 0, total=self.case.batch, device=self.device)


def prepare(case: StepCase, device: torch.device) -> PreparedStep:
    """Check a step; see :func:`~benchmarks.measure.measure`."""
    return PreparedStep(case, device)


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Allow or forbid TF32 in products of float32 numbers."""
    matmul, conv = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = conv


def _flat(gradients: list[Tensor | None]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients if g is not None])
