"""SA and SA-MESH, trained live to copy random objects."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console

from slotmesh.ops import assign
from slotmesh.report.figures import COLOURS, curves, heat_map, panels
from slotmesh.training.evaluate import evaluate_run
from slotmesh.training.loop import run_train
from slotmesh.training.runs import Run
from slotmesh.training.tasks import preset
from slotmesh.training.tasks.random_objects import RandomObjectsSettings

PAPER = {"SA": "0.44", "SA-MESH": "0.24"}
"""What the paper reports, by the variants that are trained."""


@dataclass(frozen=True)
class Trained:
    """One of the two models, and how it was trained."""

    run: Run
    error: float
    """RMSE / sigma on fresh sets."""
    curve: list[tuple[int, float]]
    """The same on the validation sets, by step."""
    seconds: float


def settings_of(name: str, out: Path, steps: int, seed: int) -> RandomObjectsSettings:
    """``slotmesh train random-objects`` with few steps."""
    start = preset("random-objects", name, "quick")
    assert isinstance(start, RandomObjectsSettings)
    every = max(1, steps // 10)
    return replace(
        start,
        seed=seed,
        out=out,
        overwrite=True,
        steps=steps,
        val_every=every,
        save_every=steps,
        data=replace(start.data, val_size=256, test_size=1024),
        hardware=replace(start.hardware, accelerator="cpu"),
    )


def train(settings: RandomObjectsSettings, console: Console) -> Trained:
    """Train and test one of the models."""
    run = run_train(settings, console)
    found = evaluate_run(run, device="cpu", console=console)
    with (run.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    curve = [(int(r["step"]), float(r["val/nrmse"])) for r in rows if r["val/nrmse"]]
    # Before it has learned anything, a model is no better than zeros.
    return Trained(run, found["metrics"]["nrmse"], [(0, 1.0), *curve], float(rows[-1]["seconds"]))


def rows_of(models: dict[str, Trained]) -> list[dict[str, Any]]:
    """A row a model, for the page."""
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
