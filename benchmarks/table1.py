"""The section ``table1``: training steps of all runs of a row of Table 1 at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.gate import noted, passed, relative
from benchmarks.measure import Hear, Row, measure, nobody
from benchmarks.timing import time_together
from paper.replicas import ReplicaTrainer
from slotmesh.training.stream import Order
from slotmesh.training.tasks import experiment, preset

VARIANTS = ("SA", "SA-SH", "SA-EMD", "SA-MESH")
SIGMAS = (1.0, 0.1, 0.01)
"""The columns of Table 1."""
LIMITS = {"loss": 1e-4}
"""Relative error of the first losses, against the runs one by one."""
# Steps of a sample: as many as are prepared at a time, or few where a step takes long.
_BLOCK = {"cuda": 100, "cpu": 4}


@dataclass(frozen=True)
class Table1Case:
    """A variant with some seeds for each sigma."""

    variant: str
    seeds: int = 5

    def row(self) -> Row:
        """What it is about, as results hold it."""
        replicas = self.seeds * len(SIGMAS)
        return {"name": "random-objects", "variant": self.variant, "replicas": replicas}


CASE = Table1Case


def table1_cases(*, quick: bool = False) -> list[Table1Case]:
    """All variants with five seeds; quick: two variants with one."""
    if quick:
        return [Table1Case(variant, 1) for variant in ("SA", "SA-MESH")]
    return [Table1Case(variant) for variant in VARIANTS]


def measure_table1(
    cases: Sequence[Table1Case], device: torch.device, seconds: float = 1.0, hear: Hear = nobody
) -> list[Row]:
    """A row for each case: the time of a step, and what all steps of the paper's would take."""
    return measure("table1", [[case] for case in cases], device, seconds, hear)


class PreparedRuns:
    """Runs that have begun to be trained together, and are right so far.

    Args:
        case: Which.
        device: Where.
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
        self.together = ReplicaTrainer(runs, device=device)
        self.together.advance(self.block)
        errors = {"loss": relative(self.together.losses()[0], self._alone())}
        self.row = case.row() | {
            "batch": data.batch_size,
            "n": data.n_objects + data.n_background,
            "m": data.n_objects,
            "error": noted(errors),
            "passed": passed(errors, LIMITS),
        }

    def finish(self, seconds: float) -> Row:
        """Time steps; nothing else may use the device meanwhile."""
        if not self.row["passed"]:
            return self.row
        block = time_together({"": self._advance}, self.device, seconds)[""]
        failed = sum(step is not None for step in self.together.failed())
        if failed:
            return self.row | {"passed": False, "failure": f"{failed} runs became not finite"}
        times = block.over(self.block)
        return self.row | {
            **times.row(),
            "steps_timed": block.samples * self.block,
            "steps": self.steps,
            "extrapolated_s": round(times.ms * self.steps / 1e3, 1),
        }

    def _advance(self) -> None:
        self.together.advance(self.together.step + self.block)

    def _alone(self) -> torch.Tensor:
        """The first loss of each run, computed by itself: ``(R)``."""
        losses: list[torch.Tensor] = []
        for made in self.together.experiments:
            size = made.settings.data.batch_size
            source, n = made.source("train", self.device)
            sample = source.sample(Order(n, batch_size=size, seed=made.settings.seed).batch(0))
            noise = made.noise("train", 0, total=size, device=self.device)
            with torch.no_grad():
                model = made.fresh_model().to(self.device)
                losses.append(made.losses(model, sample, noise)["loss"])
        return torch.stack(losses).cpu()


def prepare(case: Table1Case, device: torch.device) -> PreparedRuns:
    """Begin to train; see :func:`~benchmarks.measure.measure`."""
    return PreparedRuns(case, device)
