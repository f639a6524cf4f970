"""The section ``table1``: training steps of all runs of a row of Table 1 at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.gate import noted, passed, relative
from benchmarks.measure import Measurement, OnProgress, measure, noop
from benchmarks.timing import time_together
from paper.replicas import ReplicaTrainer
from paper.table1.jobs import VARIANTS
from paper.table1.record import SIGMAS
from slotmesh.training.stream import Order
from slotmesh.training.tasks import experiment, preset

LIMITS = {"loss": 1e-4}
"""Limit of the relative error of the first losses, against each run alone."""
# Steps per sample: as many as are prepared at a time, or few where a step takes long.
_BLOCK = {"cuda": 100, "cpu": 4}


@dataclass(frozen=True)
class Table1Case:
    """A variant with this many seeds per sigma."""

    variant: str
    seeds: int = 5

    def row(self) -> Measurement:
        """Return the part of the measurement that identifies the case."""
        replicas = self.seeds * len(SIGMAS)
        return {"name": "random-objects", "variant": self.variant, "replicas": replicas}


CASE = Table1Case


def table1_cases(*, quick: bool = False) -> list[Table1Case]:
    """Return all variants with five seeds or, if quick, two variants with one."""
    if quick:
        return [Table1Case(variant, 1) for variant in ("SA", "SA-MESH")]
    return [Table1Case(variant) for variant in VARIANTS]


def measure_table1(
    cases: Sequence[Table1Case],
    device: torch.device,
    seconds: float = 1.0,
    on_progress: OnProgress = noop,
) -> Iterator[Measurement]:
    """Yield one measurement per case: the time of a step, and that of all steps of the paper."""
    return measure("table1", [[case] for case in cases], device, seconds, on_progress)


class PreparedRuns:
    """Replicas whose first losses have been checked, ready to be timed.

    Args:
        case: The variant and its seeds.
        device: Device to measure.
    """

    def __init__(self, case: Table1Case, device: torch.device) -> None:
        self.device = device
        self.block = _BLOCK[device.type]
        start = preset("random-objects", case.variant, "paper")
        runs = [
            experiment(replace(start, seed=seed, data=replace(start.data, sigma=sigma)))
            for sigma in SIGMAS
            for seed in range(case.seeds)
        ]
        data = runs[0].settings.data
        self.steps = runs[0].settings.steps
        self.trainer = ReplicaTrainer(runs, device=device)
        self.trainer.advance(self.block)
        errors = {"loss": relative(self.trainer.losses()[0], self._alone())}
        self.row = case.row() | {
            "batch": data.batch_size,
            "n": data.n_objects + data.n_background,
            "m": data.n_objects,
            "error": noted(errors),
            "passed": passed(errors, LIMITS),
        }

    def finish(self, seconds: float) -> Measurement:
        """Time steps; nothing else may use the device meanwhile."""
        if not self.row["passed"]:
            return self.row
        block = time_together({"": self._advance}, self.device, seconds)[""]
        failed = sum(step is not None for step in self.trainer.failed())
        if failed:
            return self.row | {"passed": False, "failure": f"{failed} runs diverged"}
        times = block.over(self.block)
        return self.row | {
            **times.row(),
            "steps_timed": block.samples * self.block,
            "steps": self.steps,
            "extrapolated_s": round(times.ms * self.steps / 1e3, 1),
        }

    def _advance(self) -> None:
        self.trainer.advance(self.trainer.step + self.block)

    def _alone(self) -> torch.Tensor:
        """Return the first loss of each run computed alone, ``(R)``."""
        losses: list[torch.Tensor] = []
        for made in self.trainer.experiments:
            size = made.settings.data.batch_size
            source, n = made.source("train", self.device)
            sample = source.sample(Order(n, batch_size=size, seed=made.settings.seed).batch(0))
            noise = made.noise("train", 0, total=size, device=self.device)
            with torch.no_grad():
                model = made.fresh_model().to(self.device)
                losses.append(made.losses(model, sample, noise)["loss"])
        return torch.stack(losses).cpu()


def prepare(case: Table1Case, device: torch.device) -> PreparedRuns:
    """Start training; see :func:`~benchmarks.measure.measure`."""
    return PreparedRuns(case, device)
