"""The paper's tables: those that are measured have a section of their own."""

import shlex
from pathlib import Path

from slotmesh.experiments.paper import ROWS, TABLES, Row
from slotmesh.experiments.reproduce.page.text import MISSING, grid


def unmeasured(table: str, results: Path) -> list[str]:
    """A table of the paper of which nothing is measured yet."""
    # It knows how to draw, which takes long to load and which measuring does not need.
    from slotmesh.experiments.report.compare import NAMES, _as_printed, heading

    rows = [row for row in ROWS if row.table == table]
    metrics = [name for name in NAMES if any(name in row.results for row in rows)]
    several = len({row.task for row in rows}) > 1
    cells = [
        [
            f"{row.label}, {row.task}" if several else row.label,
            *(_as_printed(m, *row.results[m]) if m in row.results else "—" for m in metrics),
            *_ours(row),
        ]
        for row in rows
    ]
    head = ["", *(f"{heading(m)}, paper" for m in metrics), "ours", "command"]
    return [f"## {table}", "", TABLES[table], "", *grid(head, cells)]


def _ours(row: Row) -> list[str]:
    """What we have of a row, and the command that trains it."""
    if row.args is None:
        return ["copied by the paper", ""]
    return [MISSING, f"`{shlex.join(['slotmesh', 'train', row.task, *row.args])}`"]
