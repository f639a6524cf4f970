"""How the settings that the paper does not give were chosen."""

from pathlib import Path

from paper.page.markdown import (
    cells,
    code,
    grid,
    in_words,
    measured,
    sigmas,
)
from paper.table1.choice import CANDIDATES, RULES, candidates_in, chosen
from paper.table1.record import SIGMAS, GroupRecord

_LEAD = """
The paper does not give the learning rate, the hidden width, the number of iterations or the lambda
of MESH. Width 64 and 3 iterations are the values with which preliminary runs, whose results were
not kept, came closest to the paper's SA and SA-SH. The candidates below are the best of those runs
and, for SA-MESH, the implicit gradient, which those runs did not have. They are compared on seeds
and validation sets that the table does not use, and the same candidate is used for all sigmas.

**The settings of the baselines SA and SA-SH were chosen to match the paper's numbers, not for the
lowest error**; those of SA-MESH were chosen for the lowest error.

"""


def choice_section(folder: Path, rows: dict[str, GroupRecord]) -> list[str]:
    """Return the section with all candidates, and whether the table uses those that were chosen."""
    lines = ["### How the settings were chosen", *_LEAD.splitlines()]
    lines += [f"- {variant}: {rule}." for variant, rule in RULES.items()]
    lines += ["- SA-EMD: the only candidate is Adam at a constant 1e-3.", ""]
    lines += code("python -m paper table1-choice")
    table: list[list[str]] = []
    records: list[GroupRecord] = []
    better: list[str] = []
    for variant, candidates in CANDIDATES.items():
        found = candidates_in(folder / "choice", variant)
        best = chosen(folder / "choice", variant)
        for name in candidates:
            mark = "chosen" if name == best else ""
            table.append([f"{variant}, {name}", *cells(found.get(name)), mark])
        records += found.values()
        lines += _warning(variant, rows.get(variant), found.get(best or ""))
        better += _lower(variant, found, best)
    return [
        *lines,
        *grid(["", *sigmas(), ""], table),
        *([*better, ""] if better else []),
        *measured(records, shared=True),
    ]


def _lower(variant: str, found: dict[str, GroupRecord], best: str | None) -> list[str]:
    """Say where another candidate has a lower error than the chosen one."""
    if best is None:
        return []
    lines: list[str] = []
    for name, record in found.items():
        pairs = [(sigma, record.at(sigma).median, found[best].at(sigma).median) for sigma in SIGMAS]
        said = [
            f"{ours:.3f} instead of {taken:.3f} at sigma {sigma:g}"
            for sigma, ours, taken in pairs
            if round(ours, 3) < round(taken, 3)
        ]
        if said:
            lines.append(f"- {variant} has a lower error with {name}: {', '.join(said)}.")
    return lines


def _warning(variant: str, row: GroupRecord | None, best: GroupRecord | None) -> list[str]:
    """Warn if a row was measured with settings other than the chosen ones."""
    if row is None or best is None:
        return []
    differ = [
        name
        for name in row.settings | best.settings
        if row.settings.get(name) != best.settings.get(name)
    ]
    if not differ:
        return []
    return [
        f"The row {variant} above has other settings ({', '.join(differ)}) than the candidate that "
        f"was chosen: {in_words(row.settings)}.",
        "",
    ]
