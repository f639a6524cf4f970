"""``python -m paper table1-choice``: compare settings that the paper does not give."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from paper.table1.jobs import Effort, Job, run_jobs
from paper.table1.record import SIGMAS, GroupRecord, read
from paper.table1.rows import TABLE1, base, paper_error, screen_table
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
    "SA": "the candidate whose medians are closest to the paper's (smallest maximum deviation)",
    "SA-SH": "the same rule",
    "SA-MESH": "the candidate whose medians have the lowest mean over the three sigmas",
}
"""Which candidate of a variant is chosen."""


@dataclass(frozen=True)
class Table1Choice(Effort):
    """Compare settings that the paper does not give, on separate seeds and sets."""

    first_seed: int = 100
    """The first of the consecutive seeds; none of them is reported in the table."""
    variants: tuple[Literal["SA", "SA-SH", "SA-MESH"], ...] = ("SA", "SA-SH", "SA-MESH")
    """Rows whose settings are compared."""
    candidates: tuple[str, ...] = ()
    """Names of the candidates; all by default. Several processes can measure different ones."""


def run_choice(settings: Table1Choice, console: Console | None = None) -> list[GroupRecord]:
    """Measure candidates on validation sets and say which one is chosen."""
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
            label = f"{variant}, {name}{' (chosen)' if name == best else ''}"
            rows[label] = [record.at(sigma).text for sigma in SIGMAS]
    console.print(screen_table("Candidates, median and range over the seeds", rows))
    return records


def candidates_in(folder: Path, variant: str) -> dict[str, GroupRecord]:
    """Return the candidates of a variant that have been measured, by name."""
    paths = {name: folder / f"{variant}-{name}.json" for name in CANDIDATES[variant]}
    return {name: read(path) for name, path in paths.items() if path.is_file()}


def score(record: GroupRecord) -> float:
    """Return what :data:`RULES` minimises."""
    medians = {sigma: record.at(sigma).median for sigma in SIGMAS}
    if record.variant == "SA-MESH":
        return statistics.fmean(medians.values())
    return max(abs(medians[sigma] - paper_error(record.variant, sigma)) for sigma in SIGMAS)


def chosen(folder: Path, variant: str) -> str | None:
    """Return the name of the candidate that is chosen.

    None until all candidates have been measured, or if all of them failed.
    """
    found = candidates_in(folder, variant)
    if len(found) < len(CANDIDATES[variant]):
        return None
    scores = {name: score(record) for name, record in found.items()}
    best = min(scores, key=scores.__getitem__)
    return best if math.isfinite(scores[best]) else None


def settings_of(folder: Path, variant: str) -> RandomObjectsSettings:
    """Return the settings of a row of Table 1 with the candidate that is chosen.

    Raises:
        ValueError: If a candidate has not been measured yet, or all of them failed.
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
