"""Results of ``python -m paper`` that were never measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from paper.table1 import jobs
from paper.table1.record import SIGMAS, CellRun, GroupRecord, write
from paper.table1.rows import base
from slotmesh.training.tasks.random_objects import RandomObjectsSettings

STEPS = [4_000, 8_000, 12_000, 16_000, 20_000]


def record(
    variant: str,
    errors: tuple[float | None, float | None, float | None],
    *,
    settings: RandomObjectsSettings | None = None,
    **changes: Any,
) -> GroupRecord:
    """A row of five seeds around these errors, which are twice as large at the first step."""
    runs = [
        CellRun(
            sigma,
            seed,
            2_000 if error is None else None,
            [None if error is None else (2 - i / 4) * (error + (seed - 2) / 100) for i in range(5)],
        )
        for sigma, error in zip(SIGMAS, errors, strict=True)
        for seed in range(5)
    ]
    made = GroupRecord(
        name=variant,
        variant=variant,
        command=f"python -m paper table1 --variants {variant}",
        settings=jobs.shared(base(variant) if settings is None else settings),
        environment={"device": "A GPU", "torch": "2.11.0", "slotmesh": "0.1.0", "python": "3.12.1"},
        seconds=50.0,
        split="test",
        n=10_000,
        steps=STEPS,
        runs=runs,
    )
    return replace(made, **changes)


def put(folder: Path, name: str, *args: Any, **kwargs: Any) -> GroupRecord:
    """Write a record under a name."""
    made = record(*args, **{"name": name, **kwargs})
    write(folder / f"{name}.json", made)
    return made
