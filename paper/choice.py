"""``python -m paper table1-choice``: what the paper does not say, chosen on other seeds."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from paper.jobs import Effort, Job, run_jobs
from paper.record import SIGMAS, Record, read
from paper.rows import TABLE1, base, papers, table
from slotmesh.training.published import changed
from slotmesh.training.tasks.random_objects import RandomObjectsSettings

_CONSTANT = {"optim.lr": 1e-3, "optim.cosine": False}
_COSINE = {"optim.lr": 3e-3, "optim.cosine": True}
_RATES = {"1e-3-constant": _CONSTANT, "3e-3-cosine": _COSINE}


def _mesh(lr: float, potentials: str, optim: dict[str, Any], **more: Any) -> dict[str, Any]:
    transport = {"lr": lr, "potentials": potentials} | more
    return {f"transport.{name}": value for name, value in transport.items()} | optim


CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "SA": _RATES,
    "SA-SH": _RATES,
    "SA-MESH": {
        "lambda-1-detach-1e-3-constant": _mesh(1.0, "detach", _CONSTANT),
        "lambda-1-reuse-1e-3-constant": _mesh(1.0, "reuse", _CONSTANT),
        "lambda-1-detach-3e-3-cosine": _mesh(1.0, "detach", _COSINE),
        "lambda-1-implicit-3e-3-cosine": _mesh(1.0, "detach", _COSINE, grad="implicit"),
        "lambda-2-implicit-3e-3-cosine": _mesh(2.0, "detach", _COSINE, grad="implicit"),
        "lambda-2-reuse-3e-3-cosine": _mesh(2.0, "reuse", _COSINE),
    },
}
"""Changes of the ``paper`` preset that are compared, by variant and name."""
RULES = {
    "SA": "the one whose medians are closest to the paper's three (largest deviation least)",
    "SA-SH": "the one whose medians are closest to the paper's three (largest deviation least)",
    "SA-MESH": "the one whose medians have the least mean over the three sigmas",
}
"""Which of them is taken."""


@dataclass(frozen=True)
class Table1Choice(Effort):
    """Compare settings of Table 1 that the paper does not give, on seeds and sets of their own."""

    first_seed: int = 100
    """Their seeds are this one and those after it: not those that are reported."""
    variants: tuple[Literal["SA", "SA-SH", "SA-MESH"], ...] = ("SA", "SA-SH", "SA-MESH")
    """Which rows."""
    candidates: tuple[str, ...] = ()
    """Names of settings; all by default. They can be measured by several processes at once."""


def run_choice(settings: Table1Choice, console: Console | None = None) -> list[Record]:
    """Measure candidates on validation sets, and say which is taken."""
    console = Console() if console is None else console
    folder = TABLE1 / "choice" if settings.out is None else settings.out
    known = [name for variant in settings.variants for name in CANDIDATES[variant]]
    for name in settings.candidates:
        if name not in known:
            raise ValueError(
                f"--candidates has {name!r}, expected some of {', '.join(dict.fromkeys(known))}."
            )
    jobs = [
        Job(
            f"{variant}-{name}",
            changed(base(variant), changes),
            {"variants": variant, "candidates": name},
        )
        for variant in settings.variants
        for name, changes in CANDIDATES[variant].items()
        if name in settings.candidates or not settings.candidates
    ]
    records = run_jobs("table1-choice", settings, jobs, folder, console, split="val")
    rows: dict[str, list[str]] = {}
    for variant in CANDIDATES:
        best = chosen(folder, variant)
        for name, record in candidates_in(folder, variant).items():
            label = f"{variant}, {name}{' (taken)' if name == best else ''}"
            rows[label] = [record.at(sigma).text for sigma in SIGMAS]
    console.print(table("Candidates, median and range of the seeds", rows))
    return records


def candidates_in(folder: Path, variant: str) -> dict[str, Record]:
    """The candidates of a variant that are measured."""
    paths = {name: folder / f"{variant}-{name}.json" for name in CANDIDATES[variant]}
    return {name: read(path) for name, path in paths.items() if path.is_file()}


def score(record: Record) -> float:
    """What :data:`RULES` makes least."""
    medians = {sigma: record.at(sigma).median for sigma in SIGMAS}
    if record.variant == "SA-MESH":
        return statistics.fmean(medians.values())
    return max(abs(medians[sigma] - papers(record.variant, sigma)) for sigma in SIGMAS)


def chosen(folder: Path, variant: str) -> str | None:
    """The name of the candidate that is taken; None until all are measured, or if all failed."""
    found = candidates_in(folder, variant)
    if len(found) < len(CANDIDATES[variant]):
        return None
    scores = {name: score(record) for name, record in found.items()}
    best = min(scores, key=scores.__getitem__)
    return best if math.isfinite(scores[best]) else None


def settings_of(folder: Path, variant: str) -> RandomObjectsSettings:
    """The settings of a row of Table 1 as they were chosen.

    Raises:
        ValueError: If not all candidates are measured, or all failed.
    """
    if variant not in CANDIDATES:
        return base(variant)
    name = chosen(folder, variant)
    if name is None:
        raise ValueError(
            f"--choice is {folder}, where not all candidates of {variant} are measured, or all "
            "failed. Run `python -m paper table1-choice` first."
        )
    return changed(base(variant), CANDIDATES[variant][name])
