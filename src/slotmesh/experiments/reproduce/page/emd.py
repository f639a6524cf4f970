"""The study of SA-EMD."""

from pathlib import Path

from slotmesh.experiments.reproduce.emd_study import PARTS, parts_in
from slotmesh.experiments.reproduce.page.text import cells, code, grid, measured, sigmas
from slotmesh.experiments.reproduce.record import Record

_LEAD = """
The paper's SA-EMD is no better than predicting zeros at sigma 0.01. It is the sum of the exact
plan, which has no gradient, and of a Sinkhorn plan, which has one. Here one part of that is changed
at a time; all else is as in the row of SA-EMD.
"""


def emd_section(folder: Path, whole: Record | None) -> list[str]:
    """SA-EMD with one of its parts changed at a time, beside the whole."""
    found = parts_in(folder / "emd-study")
    rows = [["SA-EMD", "as in the table", *cells(whole)]]
    rows += [[part, said, *cells(found.get(part))] for part, (_, said) in PARTS.items()]
    lines = ["### SA-EMD: exactness, sum, gradient", *_LEAD.splitlines(), ""]
    lines += code("slotmesh reproduce table1-emd")
    return [*lines, *grid(["", "change", *sigmas()], rows), *measured(list(found.values()))]
