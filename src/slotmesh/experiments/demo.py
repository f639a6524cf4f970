"""``slotmesh demo``: MESH breaks a tie, and a model with it learns what one without it cannot."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import slotmesh
from slotmesh.experiments.copying import Copying, CopyingRun, train, world
from slotmesh.experiments.ties import VARIANTS, TieResult, paper_ties, transport_tie
from slotmesh.nn import Mesh, Softmax
from slotmesh.ops import assign
from slotmesh.report.figures import COLOURS, curves, heat_map, panels, svg_uri
from slotmesh.report.page import render_page, write_whole

PAPER = {"SA": "0.44", "SA-MESH": "0.24"}

SNIPPET = """\
import torch
from slotmesh import SlotAttention, mesh
from slotmesh.nn import Mesh

mesh(torch.ones(2, 2)).plan          # the tie above, broken

attention = SlotAttention(input_dim=64, slot_dim=64, n_slots=7, transport=Mesh())
slots = attention(torch.randn(2, 100, 64)).slots"""


@dataclass(frozen=True)
class Demo:
    """Watch MESH break a tie, and SA and SA-MESH learn to copy random objects."""

    out: Path = Path("demo")
    """Folder for the page (index.html)."""
    steps: int = 500
    """Training steps of each model."""
    seed: int = 0
    """Another seed, another run."""


def run_demo(demo: Demo, console: Console | None = None) -> Path:
    """Run everything, print a small table, write the page and return its path."""
    if demo.steps < 1:
        raise ValueError(f"--steps is {demo.steps}, expected at least 1.")
    console = Console() if console is None else console
    # An unwritable folder should be known before the training, not after it.
    demo.out.mkdir(parents=True, exist_ok=True)
    page = demo.out / "index.html"
    write_whole(page, "")

    ties = [transport_tie(tie, demo.seed) for tie in paper_ties()]
    settings = Copying(steps=demo.steps, seed=demo.seed)
    runs, seconds = _train_both(settings, console)
    console.print(_table(ties, runs, seconds))

    best = min(runs, key=lambda name: runs[name].error)
    rows = [
        {
            "name": name,
            "error": run.error,
            "paper": PAPER[name],
            "seconds": seconds[name],
            "best": name == best,
        }
        for name, run in runs.items()
    ]
    html = render_page(
        "demo.html",
        variants=VARIANTS,
        ties=ties,
        ties_figure=svg_uri(draw_ties(ties)),
        settings=settings,
        rows=rows,
        curves_figure=svg_uri(draw_curves(runs)),
        attention_figure=svg_uri(draw_attention(runs, settings)),
        snippet=SNIPPET,
        version=slotmesh.__version__,
        torch_version=torch.__version__,
    )
    write_whole(page, html)
    console.print(f"Pictures: [bold]{page}[/bold] (open it in a browser)")
    return page


def _train_both(
    settings: Copying, console: Console
) -> tuple[dict[str, CopyingRun], dict[str, float]]:
    runs: dict[str, CopyingRun] = {}
    seconds: dict[str, float] = {}
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("error {task.fields[error]:.2f}"),
        TimeRemainingColumn(),
    )
    threads = torch.get_num_threads()
    # At this size threads cost more than they give, much more on a busy machine.
    torch.set_num_threads(1)
    with Progress(*columns, console=console) as progress:
        for name, transport in (("SA", Softmax()), ("SA-MESH", Mesh())):
            bar = progress.add_task(f"training {name}", total=settings.steps, error=1.0)

            def report(step: int, error: float, bar=bar) -> None:
                progress.update(bar, completed=step, error=error)

            began = time.perf_counter()
            runs[name] = train(transport, settings, report)
            seconds[name] = time.perf_counter() - began
    torch.set_num_threads(threads)
    return runs, seconds


def _table(ties: list[TieResult], runs: dict[str, CopyingRun], seconds: dict[str, float]) -> Table:
    table = Table(title="A tie, and what comes of it", title_justify="left")
    table.add_column("variant")
    table.add_column("entropy,\nall equal", justify="right")
    table.add_column("entropy,\nslots x, x, y", justify="right")
    table.add_column("tie\nbroken", justify="center")
    table.add_column("copying error\n(RMSE / sigma)", justify="right")
    table.add_column("training", justify="right")
    for name in VARIANTS:
        trained = name in runs
        table.add_row(
            name,
            # abs: an entropy of 0 may come as -0.
            *(f"{abs(result.entropies[name]):.2f}" for result in ties),
            "yes" if all(result.broken(name) for result in ties) else "no",
            f"{runs[name].error:.3f}" if trained else "",
            f"{seconds[name]:.0f} s" if trained else "",
            style="bold" if name == "SA-MESH" else None,
        )
    return table


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
            panel.set_title(name, fontsize=10, color=COLOURS[name], fontweight="bold")
            panel.set_xlabel(f"entropy {abs(result.entropies[name]):.2f}")
    return figure


def draw_curves(runs: dict[str, CopyingRun]) -> Figure:
    """Error over training steps."""
    figure, [[axes]] = panels(7.2, 3.2)
    curves(
        axes,
        {name: run.curve for name, run in runs.items()},
        x="training step",
        y="RMSE / sigma on fresh sets",
    )
    axes.set_ylim(0, 1.1)
    axes.axhline(1.0, color="#b9bfc9", linewidth=1, linestyle=":")
    axes.margins(x=0.02)
    return figure


def draw_attention(runs: dict[str, CopyingRun], settings: Copying) -> Figure:
    """Attention of each model on one fresh set, slots in the order of the objects they copy."""
    one = world(settings, settings.seed + 5).sample([0])
    k = settings.n_objects
    figure, [row] = panels(7.2, 3.0, 1, len(runs))
    for axes, (name, run) in zip(row, runs.items(), strict=True):
        with torch.inference_mode():
            out = run.model(one.inputs, generator=torch.Generator().manual_seed(settings.seed))
        share = out.attention[0] / out.attention[0].sum(-1, keepdim=True)
        order = assign(torch.cdist(one.targets[0], out.slots[0]))
        grouped = torch.cat((share[:, :k], share[:, k:].sum(-1, keepdim=True)), -1)[order]
        labels = [str(i + 1) for i in range(k)]
        heat_map(axes, grouped, rows=labels, columns=[*labels, "zeros"])
        axes.set_title(name, color=COLOURS[name], fontweight="bold", fontsize=10)
        axes.set_xlabel("input")
        axes.set_ylabel("slot")
    return figure
