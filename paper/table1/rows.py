"""The rows of Table 1: their settings, the paper's numbers, and what has been measured."""

from pathlib import Path
from typing import Any

from rich.table import Table

from paper.table1.jobs import VARIANTS
from paper.table1.record import SIGMAS, GroupRecord, read
from slotmesh.training.published import changed, published_rows
from slotmesh.training.tasks.random_objects import RandomObjectsSettings, RandomObjectsTask

TABLE1 = Path("results/table1")
"""Folder with the results of the paper's table."""
TABLE1_BEYOND = Path("results/table1-beyond")
"""Folder with the results of the model that goes beyond it."""

BEYOND: dict[str, Any] = {
    "model.raw_values": True,
    "model.rescale": True,
    "model.head": True,
    "model.slot_dim": 64,
    "model.mlp_dim": 256,
    "optim.lr": 3e-3,
    "optim.cosine": True,
    "relative_loss": True,
}
"""Changes of every row that go beyond the paper."""
BEYOND_MESH: dict[str, Any] = {"transport.lr": 3.0, "transport.potentials": "detach"}
"""Further changes of SA-MESH."""


def base(variant: str) -> RandomObjectsSettings:
    """Return the settings of a row: the ``paper`` preset of random objects."""
    return RandomObjectsTask.preset(variant, "paper")


def beyond(variant: str) -> RandomObjectsSettings:
    """Return the settings of a row of the model that goes beyond the paper."""
    changes = BEYOND | (BEYOND_MESH if variant == "SA-MESH" else {})
    return changed(base(variant), changes)


def rows_in(folder: Path) -> dict[str, GroupRecord]:
    """Return the rows in a folder that have been measured, by variant."""
    paths = {variant: folder / f"{variant}.json" for variant in VARIANTS}
    return {variant: read(path) for variant, path in paths.items() if path.is_file()}


def paper_error(variant: str, sigma: float) -> float:
    """Return the error that the paper reports in a cell."""
    [row] = [
        row
        for row in published_rows()
        if (row.table, row.variant, row.changes.get("data.sigma")) == ("Table 1", variant, sigma)
    ]
    return row.results["nrmse"][0]


def screen_table(title: str, rows: dict[str, list[str]]) -> Table:
    """Return cells by sigma as a table for the terminal."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for sigma in SIGMAS:
        table.add_column(f"sigma {sigma:g}", justify="right")
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table
