"""The command: ties, two models trained live, and two pretrained ones; with tables and pages."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import slotmesh
from slotmesh.app.playground import render_playground
from slotmesh.demo.copying import (
    PAPER,
    Trained,
    attention_tables,
    draw_curves,
    marks,
    rows_of,
    settings_of,
    train,
)
from slotmesh.demo.scenes import (
    HOW,
    best_row,
    draw_scenes,
    find_weights,
    scene_table,
    try_weights,
)
from slotmesh.demo.ties import VARIANTS, TieResult, paper_ties, transport_tie
from slotmesh.files import write_whole
from slotmesh.palette import VARIANT_COLOURS
from slotmesh.report.figures import heat_map, panels
from slotmesh.report.heat import HeatTable, heat_table
from slotmesh.report.page import render_page
from slotmesh.training.report import Report, run_report

SNIPPET = """\
import torch
from slotmesh import SlotAttention, mesh
from slotmesh.nn import Mesh

mesh(torch.ones(2, 2)).plan          # the tie above, broken

attention = SlotAttention(input_dim=64, slot_dim=64, n_slots=7, transport=Mesh())
slots = attention(torch.randn(2, 100, 64)).slots"""


@dataclass(frozen=True)
class Demo:
    """Watch MESH break a tie, train SA and SA-MESH to copy vectors, and find objects in scenes."""

    out: Path = Path("demo")
    """Folder for the pages (index.html, report.html, playground.html), the two runs and the results
    by scene."""
    steps: int = 400
    """Training steps of each model."""
    seed: int = 0
    """Seed of the runs and the scenes."""
    checkpoints: Path | None = None
    """Folder with the weights of `python -m paper table3`; by default ./checkpoints if it exists,
    otherwise the weights that come with slotmesh."""


def run_demo(demo: Demo, console: Console | None = None) -> Path:
    """Run everything, print small tables, write the pages and return the first one's path."""
    if demo.steps < 1:
        raise ValueError(f"--steps is {demo.steps}, expected at least 1.")
    console = Console() if console is None else console
    weights = find_weights(demo.checkpoints)
    # Report an unwritable folder before the training, not after it.
    demo.out.mkdir(parents=True, exist_ok=True)
    page = demo.out / "index.html"
    write_whole(page, "")

    ties = [transport_tie(tie, demo.seed) for tie in paper_ties()]
    runs = {name: demo.out / "runs" / name for name in PAPER}
    models = {
        name: train(settings_of(name, folder, demo.steps, demo.seed), console)
        for name, folder in runs.items()
    }
    console.print(_table(ties, models))
    found = [try_weights(one, demo.seed, demo.out / "scenes", console) for one in weights]
    if found:
        console.print(scene_table(found))
    else:
        console.print(escape(HOW), highlight=False)
    pages = Report(tuple(runs.values()), demo.out / "report.html", device="cpu")
    report = run_report(pages, console)
    html = render_page(
        "demo.html",
        variants=VARIANTS,
        ties=ties,
        ties_tables=[tie_tables(result) for result in ties],
        settings=next(iter(models.values())).run.settings,
        rows=rows_of(models),
        marks=list(marks().values()),
        curves=draw_curves(models),
        attention=attention_tables(models),
        report=report.name,
        scenes=[one.row() for one in found],
        best_scenes=best_row(found),
        pictures=draw_scenes(found) if found else [],
        how=HOW,
        snippet=SNIPPET,
        version=slotmesh.__version__,
        torch_version=torch.__version__,
    )
    write_whole(page, html)
    playground = demo.out / "playground.html"
    write_whole(playground, render_playground())
    for said in (
        f"Pictures: [bold]{escape(str(page))}[/bold] (open it in a browser)",
        f"Break ties by hand: [bold]{escape(str(playground))}[/bold], or run slotmesh explore",
    ):
        console.print(said, highlight=False, soft_wrap=True)
    return page


def _table(ties: list[TieResult], models: dict[str, Trained]) -> Table:
    table = Table(title="Breaking a tie, and what it changes", title_justify="left")
    table.add_column("variant")
    table.add_column("entropy,\nall equal", justify="right")
    table.add_column("entropy,\nslots x, x, y", justify="right")
    table.add_column("tie\nbroken", justify="center")
    table.add_column("copying error\n(RMSE / sigma)", justify="right")
    table.add_column("training", justify="right")
    for name in VARIANTS:
        trained = models.get(name)
        table.add_row(
            name,
            # abs: an entropy of 0 may be -0.
            *(f"{abs(result.entropies[name]):.2f}" for result in ties),
            "yes" if all(result.broken(name) for result in ties) else "no",
            "" if trained is None else f"{trained.error:.3f}",
            "" if trained is None else f"{trained.seconds:.0f} s",
            style="bold" if name == "SA-MESH" else None,
        )
    return table


def tie_tables(result: TieResult) -> list[HeatTable]:
    """The cost and the plans of a tie, for the page."""
    tie = result.tie
    draw = partial(heat_table, rows=tie.slots, columns=tie.inputs)
    plans = [
        draw(name, result.plans[name], note=f"entropy {abs(result.entropies[name]):.2f}")
        for name in VARIANTS
    ]
    return [draw("cost", tie.cost, most=12.0, number="{:.0f}", colours="Greys"), *plans]


def draw_ties(ties: list[TieResult]) -> Figure:
    """Plans as heat maps: ties down, variants across, the cost on the left."""
    heights = [len(result.tie.slots) for result in ties]
    figure, grid = panels(8.6, 4.2, len(ties), len(VARIANTS) + 1, height_ratios=heights)
    for axes, result in zip(grid, ties, strict=True):
        tie = result.tie
        draw = partial(heat_map, rows=tie.slots, columns=tie.inputs)
        draw(axes[0], tie.cost, most=12.0, number="{:.0f}", colours="Greys")
        axes[0].set_title("cost", fontsize=10)
        for panel, name in zip(axes[1:], VARIANTS, strict=True):
            draw(panel, result.plans[name])
            panel.set_title(name, fontsize=10, color=VARIANT_COLOURS[name], fontweight="bold")
            panel.set_xlabel(f"entropy {abs(result.entropies[name]):.2f}")
    return figure
