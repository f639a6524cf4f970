"""``slotmesh demo``: MESH breaks a tie, and a model with it learns what one without it cannot."""

import csv
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import slotmesh
from slotmesh.experiments.evaluate import evaluate_run
from slotmesh.experiments.random_objects import RandomObjectsSettings
from slotmesh.experiments.report import Report, run_report
from slotmesh.experiments.runs import Run
from slotmesh.experiments.tasks import preset
from slotmesh.experiments.ties import VARIANTS, TieResult, paper_ties, transport_tie
from slotmesh.experiments.train import run_train
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
    """Folder for the pages (index.html, report.html) and the two runs."""
    steps: int = 400
    """Training steps of each model."""
    seed: int = 0
    """Another seed, another run."""


@dataclass(frozen=True)
class Trained:
    """One of the two models, and how it came to be."""

    run: Run
    error: float
    """RMSE / sigma on fresh sets."""
    curve: list[tuple[int, float]]
    """The same on the validation sets, by step."""
    seconds: float


def run_demo(demo: Demo, console: Console | None = None) -> Path:
    """Run everything, print a small table, write the pages and return the first one's path."""
    if demo.steps < 1:
        raise ValueError(f"--steps is {demo.steps}, expected at least 1.")
    console = Console() if console is None else console
    # An unwritable folder should be known before the training, not after it.
    demo.out.mkdir(parents=True, exist_ok=True)
    page = demo.out / "index.html"
    write_whole(page, "")

    ties = [transport_tie(tie, demo.seed) for tie in paper_ties()]
    models = {name: _train(name, demo, console) for name in PAPER}
    console.print(_table(ties, models))
    folders = tuple(one.run.folder for one in models.values())
    report = run_report(Report(folders, demo.out / "report.html", device="cpu"), console)
    html = render_page(
        "demo.html",
        variants=VARIANTS,
        ties=ties,
        ties_figure=svg_uri(draw_ties(ties)),
        settings=next(iter(models.values())).run.settings,
        rows=_rows(models),
        curves_figure=svg_uri(draw_curves(models)),
        attention_figure=svg_uri(draw_attention(models)),
        report=report.name,
        snippet=SNIPPET,
        version=slotmesh.__version__,
        torch_version=torch.__version__,
    )
    write_whole(page, html)
    console.print(f"Pictures: [bold]{page}[/bold] (open it in a browser)")
    return page


def settings_of(name: str, demo: Demo) -> RandomObjectsSettings:
    """``slotmesh train random-objects`` with few steps."""
    start = preset("random-objects", name, "quick")
    assert isinstance(start, RandomObjectsSettings)
    every = max(1, demo.steps // 10)
    return replace(
        start,
        seed=demo.seed,
        out=demo.out / "runs" / name,
        overwrite=True,
        steps=demo.steps,
        val_every=every,
        save_every=demo.steps,
        data=replace(start.data, val_size=256, test_size=1024),
        hardware=replace(start.hardware, accelerator="cpu"),
    )


def _train(name: str, demo: Demo, console: Console) -> Trained:
    run = run_train(settings_of(name, demo), console)
    found = evaluate_run(run, device="cpu", console=console)
    with (run.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    curve = [(int(r["step"]), float(r["val/nrmse"])) for r in rows if r["val/nrmse"]]
    # Before it has learned anything, a model is no better than zeros.
    return Trained(run, found["metrics"]["nrmse"], [(0, 1.0), *curve], float(rows[-1]["seconds"]))


def _rows(models: dict[str, Trained]) -> list[dict[str, Any]]:
    best = min(models, key=lambda name: models[name].error)
    return [
        {
            "name": name,
            "error": one.error,
            "paper": PAPER[name],
            "seconds": one.seconds,
            "best": name == best,
        }
        for name, one in models.items()
    ]


def _table(ties: list[TieResult], models: dict[str, Trained]) -> Table:
    table = Table(title="A tie, and what comes of it", title_justify="left")
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
            # abs: an entropy of 0 may come as -0.
            *(f"{abs(result.entropies[name]):.2f}" for result in ties),
            "yes" if all(result.broken(name) for result in ties) else "no",
            "" if trained is None else f"{trained.error:.3f}",
            "" if trained is None else f"{trained.seconds:.0f} s",
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


def draw_curves(models: dict[str, Trained]) -> Figure:
    """Error over training steps."""
    figure, [[axes]] = panels(7.2, 3.2)
    curves(
        axes,
        {name: one.curve for name, one in models.items()},
        x="training step",
        y="RMSE / sigma on fresh sets",
    )
    axes.set_ylim(0, 1.1)
    axes.axhline(1.0, color="#b9bfc9", linewidth=1, linestyle=":")
    axes.margins(x=0.02)
    return figure


def draw_attention(models: dict[str, Trained]) -> Figure:
    """Attention of each model on one fresh set, slots in the order of the objects they copy."""
    figure, [row] = panels(7.2, 3.0, 1, len(models))
    for axes, (name, one) in zip(row, models.items(), strict=True):
        made = one.run.experiment
        source, _ = made.source("test", torch.device("cpu"))
        sample = source.sample([0])
        k = sample.targets.shape[1]
        model = one.run.load_model()
        with torch.inference_mode():
            out = model(sample.inputs, generator=made.noise("picture", 0, total=1))
        share = out.attention[0] / out.attention[0].sum(-1, keepdim=True)
        order = assign(torch.cdist(sample.targets[0], out.slots[0]))
        grouped = torch.cat((share[:, :k], share[:, k:].sum(-1, keepdim=True)), -1)[order]
        labels = [str(i + 1) for i in range(k)]
        heat_map(axes, grouped, rows=labels, columns=[*labels, "zeros"])
        axes.set_title(name, color=COLOURS[name], fontweight="bold", fontsize=10)
        axes.set_xlabel("input")
        axes.set_ylabel("slot")
    return figure
