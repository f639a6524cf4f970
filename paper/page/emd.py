"""The study of SA-EMD."""

import math
from pathlib import Path

from paper.emd_study import PARTS, parts_in
from paper.page.text import cells, code, grid, measured, sigmas
from paper.record import SIGMAS, Record
from paper.rows import papers

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
    lines += code("python -m paper table1-emd")
    lines += [*grid(["", "change", *sigmas()], rows), *_answer(whole, found)]
    return [*lines, *measured(list(found.values()), shared=True)]


def _answer(whole: Record | None, found: dict[str, Record]) -> list[str]:
    """Which change moves the error most where sigma is smallest, and whether the paper's is met."""
    if whole is None or len(found) < len(PARTS):
        return []
    sigma = SIGMAS[-1]
    paper, ours = papers("SA-EMD", sigma), whole.at(sigma).median
    errors = {part: record.at(sigma).median for part, record in found.items()}
    if not all(map(math.isfinite, (ours, *errors.values()))):
        return []
    most, *others = sorted(errors, key=lambda part: -abs(errors[part] - ours))
    said = ", ".join(f"{part} {errors[part]:.3f}" for part in others)
    lines = [
        f"At sigma {sigma:g} the largest change is that of **{most}**: an error of "
        f"{errors[most]:.3f} instead of {ours:.3f} ({said})."
    ]
    if max(ours, *errors.values()) < paper - 0.1:
        lines.append(
            f"The paper's {paper:.2f} is not reached by any of them, and so its collapse is "
            "explained by none of these parts."
        )
    return [*lines, ""]
