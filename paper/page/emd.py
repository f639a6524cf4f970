"""The study of the parts of SA-EMD."""

import math
from pathlib import Path

from paper.page.markdown import cells, code, grid, measured, sigmas
from paper.table1.emd_study import PARTS, parts_in
from paper.table1.record import SIGMAS, GroupRecord
from paper.table1.rows import paper_error

_LEAD = """
In the paper, SA-EMD is no better than predicting zeros at sigma 0.01. It uses the sum of the exact
plan, which has no gradient, and a Sinkhorn plan, which has one. Here, we change one part at a time;
everything else is as in the row SA-EMD.
"""


def emd_section(folder: Path, whole: GroupRecord | None) -> list[str]:
    """Return the section about SA-EMD with one part changed at a time."""
    found = parts_in(folder / "emd-study")
    rows = [["SA-EMD", "none", *cells(whole)]]
    rows += [[part, said, *cells(found.get(part))] for part, (_, said) in PARTS.items()]
    lines = ["### SA-EMD: exactness, sum, gradient", *_LEAD.splitlines(), ""]
    lines += code("python -m paper table1-emd")
    lines += [*grid(["", "change", *sigmas()], rows), *_answer(whole, found)]
    return [*lines, *measured(list(found.values()), shared=True)]


def _answer(whole: GroupRecord | None, found: dict[str, GroupRecord]) -> list[str]:
    """Say which change matters most at the smallest sigma, and whether it explains the paper."""
    if whole is None or len(found) < len(PARTS):
        return []
    sigma = SIGMAS[-1]
    paper, ours = paper_error("SA-EMD", sigma), whole.at(sigma).median
    errors = {part: record.at(sigma).median for part, record in found.items()}
    if not all(map(math.isfinite, (ours, *errors.values()))):
        return []
    most, *others = sorted(errors, key=lambda part: -abs(errors[part] - ours))
    said = ", ".join(f"{part} {errors[part]:.3f}" for part in others)
    lines = [
        f"At sigma {sigma:g} the change with the largest effect is **{most}**: an error of "
        f"{errors[most]:.3f} instead of {ours:.3f} ({said})."
    ]
    if max(ours, *errors.values()) < paper - 0.1:
        lines.append(
            f"None of them reaches the paper's {paper:.2f}, so none of these parts explains the "
            "collapse in the paper."
        )
    return [*lines, ""]
