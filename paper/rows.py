"""The rows of Table 1: their settings, what the paper reports and what we measured."""

from pathlib import Path
from typing import Any

from rich.table import Table

from paper.jobs import VARIANTS
from paper.record import SIGMAS, Record, read
from slotmesh.training.published import changed, published_rows
from slotmesh.training.tasks.random_objects import RandomObjects, RandomObjectsSettings

TABLE1 = Path("results/table1")
"""Where the results of the paper's table are."""
TABLE1_BEYOND = Path("results/table1-beyond")
"""Where those of the model are that goes beyond it."""

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
"""What is changed in every row alike to go beyond the paper."""
BEYOND_MESH: dict[str, Any] = {"transport.lr": 3.0, "transport.potentials": "detach"}
"""What is changed in SA-MESH besides."""


def base(variant: str) -> RandomObjectsSettings:
    """The settings of a row: the ``paper`` preset of random objects."""
    return RandomObjects.preset(variant, "paper")


def beyond(variant: str) -> RandomObjectsSettings:
    """The settings of a row beyond the paper."""
    changes = BEYOND | (BEYOND_MESH if variant == "SA-MESH" else {})
    return changed(base(variant), changes)


def rows_in(folder: Path) -> dict[str, Record]:
    """The rows of a folder that are measured, by variant."""
    paths = {variant: folder / f"{variant}.json" for variant in VARIANTS}
    return {variant: read(path) for variant, path in paths.items() if path.is_file()}


def papers(variant: str, sigma: float) -> float:
    """What the paper reports for a cell."""
    [row] = [
        row
        for row in published_rows()
        if (row.table, row.variant, row.changes.get("data.sigma")) == ("Table 1", variant, sigma)
    ]
    return row.results["nrmse"][0]


def table(title: str, rows: dict[str, list[str]]) -> Table:
    """Cells by sigma, for the terminal."""
    made = Table(title=title, title_justify="left")
    made.add_column("")
    for sigma in SIGMAS:
        made.add_column(f"sigma {sigma:g}", justify="right")
    for name, cells in rows.items():
        made.add_row(name, *cells)
    return made
