"""How the settings that the paper does not give were chosen."""

from pathlib import Path

from paper.choice import CANDIDATES, RULES, candidates_in, chosen
from paper.page.text import (
    cells,
    code,
    grid,
    in_words,
    measured,
    sigmas,
)
from paper.record import Record

_LEAD = """
The paper gives neither the learning rate nor the hidden width, the number of iterations and the
lambda of MESH. Width 64 and 3 iterations are those with which an earlier prototype came closest to
the paper's SA and SA-SH. The candidates below are the best of what it tried, and for SA-MESH the
implicit gradient, which it did not have. They are compared on seeds and on validation sets that the
table does not use, and one is taken for all sigmas:
"""


def choice_section(folder: Path, rows: dict[str, Record]) -> list[str]:
    """The candidates with what they reached, and whether the reported rows have the one taken."""
    lines = ["### How the settings were chosen", *_LEAD.splitlines(), ""]
    lines += [f"- {variant}: {rule}." for variant, rule in RULES.items()]
    lines += ["- SA-EMD: there is one candidate only, Adam at 1e-3, constant.", ""]
    lines += code("python -m paper table1-choice")
    table: list[list[str]] = []
    records: list[Record] = []
    for variant, candidates in CANDIDATES.items():
        found = candidates_in(folder / "choice", variant)
        best = chosen(folder / "choice", variant)
        for name in candidates:
            taken = "taken" if name == best else ""
            table.append([f"{variant}, {name}", *cells(found.get(name)), taken])
        records += found.values()
        lines += _kept(variant, rows.get(variant), found.get(best or ""))
    return [*lines, *grid(["", *sigmas(), ""], table), *measured(records, shared=True)]


def _kept(variant: str, row: Record | None, best: Record | None) -> list[str]:
    """A warning where a row has other settings than those that were taken."""
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
        f"was taken: {in_words(row.settings)}.",
        "",
    ]
