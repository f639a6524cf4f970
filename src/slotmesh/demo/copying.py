"""SA and SA-MESH, trained live to copy random objects."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from slotmesh.ops import assign
from slotmesh.palette import VARIANT_COLOURS
from slotmesh.report.charts import Chart, chart
from slotmesh.report.heat import HeatTable, heat_table
from slotmesh.report.marks import Mark
from slotmesh.training.evaluate import evaluate_run
from slotmesh.training.loop import run_train
from slotmesh.training.runs import Run
from slotmesh.training.tasks import preset
from slotmesh.training.tasks.random_objects import RandomObjectsSettings

PAPER = {"SA": "0.44", "SA-MESH": "0.24"}
"""The errors that the paper reports, by variant."""


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
    # A model that has learned nothing is no better than zeros.
    return Trained(run, found["metrics"]["nrmse"], [(0, 1.0), *curve], float(rows[-1]["seconds"]))


def rows_of(models: dict[str, Trained]) -> list[dict[str, Any]]:
    """One row per model, for the page; a model that is no better than zeros is never the best."""
    best = min(models, key=lambda name: models[name].error)
    return [
        {
            "name": name,
            "error": one.error,
            "paper": PAPER[name],
            "seconds": one.seconds,
            "best": name == best and one.error < 1,
        }
        for name, one in models.items()
    ]


def marks() -> dict[str, Mark]:
    """How both models are marked on the page."""
    return {name: Mark(name, VARIANT_COLOURS[name], key=f"r-{name}") for name in PAPER}


def draw_curves(models: dict[str, Trained]) -> Chart:
    """Error over training steps."""
    known = marks()
    lines = [(known[name], [(float(x), y) for x, y in one.curve]) for name, one in models.items()]
    return chart("RMSE / sigma on fresh sets", lines, baseline=1.0)


def attention_tables(models: dict[str, Trained]) -> list[HeatTable]:
    """Attention of each model on one fresh set, slots in the order of the objects they copy."""
    tables: list[HeatTable] = []
    for name, one in models.items():
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
        columns = [*labels, "zeros"]
        tables.append(heat_table(name, grouped, rows=labels, columns=columns))
    return tables
