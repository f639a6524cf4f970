"""The command: train, test, draw, keep the weights; what is done already is not done again."""

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slotmesh.experiments.discovery import Discovery, DiscoverySettings
from slotmesh.experiments.evaluate import evaluate_run
from slotmesh.experiments.export import ExportModel, run_export_model
from slotmesh.experiments.paper import ROWS
from slotmesh.experiments.places import place_of
from slotmesh.experiments.reproduce.jobs import command_of, environment
from slotmesh.experiments.reproduce.multi_dsprites.card import card, weights_name
from slotmesh.experiments.reproduce.multi_dsprites.record import (
    FOLDER,
    GRADIENTS,
    Measured,
    Outcome,
    Variant,
    deciding,
    read,
    records_in,
    write,
)
from slotmesh.experiments.reproduce.multi_dsprites.training import train
from slotmesh.experiments.reproduce.record import difference
from slotmesh.experiments.runs import Run, open_run, steps_done
from slotmesh.experiments.settings import at_least, flag
from slotmesh.report.page import write_whole

# Steps between two validations, checkpoints and lines of the log; a short run has five of each.
_EVERY = {"val_every": 5_000, "save_every": 2_500, "log_every": 250}


@dataclass(frozen=True)
class MultiDSprites:
    """Train and test on the Multi-dSprites world (Table 3), with pictures and weights."""

    variants: tuple[Variant, ...] = ("SA", "SA-MESH")
    """Which rows, also by several processes at once; the last two: SA-MESH, other gradients."""
    steps: int = 75_000
    """Training steps. A run that has ended goes on where more are asked for."""
    seed: int = 0
    """Of the first weights, the order of the data and all noise."""
    batch_size: int = 64
    """Scenes in a step."""
    train_size: int = 60_000
    """Different training scenes."""
    test_size: int = 2_880
    """Scenes that it is tested on."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """In bfloat16 on a GPU, as long as it trains; in single precision on the CPU."""
    runs: Path = Path("runs/reproduce")
    """Folder for the runs, multi-dsprites/VARIANT-SEED. A command that was stopped goes on there;
    a copy of the folder goes on elsewhere."""
    out: Path = FOLDER
    """Folder for the results and pictures."""
    checkpoints: Path = Path("checkpoints")
    """Folder for the trained weights."""
    overwrite: bool = False
    """Test, draw and export anew what is measured; what is trained stays."""


def base(variant: Variant) -> DiscoverySettings:
    """The settings of a row: the ``paper`` preset of Multi-dSprites."""
    if variant not in GRADIENTS:
        return Discovery.preset("multi-dsprites", variant, "paper")
    start = Discovery.preset("multi-dsprites", "SA-MESH", "paper")
    return replace(start, transport=replace(start.transport, **GRADIENTS[variant]))


def settings_of(asked: MultiDSprites, variant: Variant) -> DiscoverySettings:
    """The settings of one run."""
    start = base(variant)
    sizes = {name: getattr(asked, name) for name in ("batch_size", "train_size", "test_size")}
    every = {name: min(most, -(-asked.steps // 5)) for name, most in _EVERY.items()}
    return replace(
        start,
        seed=asked.seed,
        steps=asked.steps,
        out=asked.runs / "multi-dsprites" / f"{variant}-{asked.seed}",
        data=replace(start.data, **sizes),
        **every,
    )


def run_multi_dsprites(
    settings: MultiDSprites, console: Console | None = None
) -> dict[str, Measured]:
    """Measure the rows that are asked for, draw them, and print the table.

    Raises:
        ValueError: If a folder holds a run or a result with other settings.
        SystemExit: If a signal came while it trained; the same command goes on.
    """
    console = Console() if console is None else console
    for name in ("steps", "batch_size", "train_size", "test_size"):
        at_least(name, getattr(settings, name), 1)
    device = place_of(settings.device)
    # Mistakes should be known before the work, not after a part of it.
    kept = {variant: _kept(settings, variant) for variant in settings.variants}
    for variant in settings.variants:
        path = settings.out / f"{variant}.json"
        if kept[variant] is not None:
            said = f"{variant} is measured: {path} stays. Pass --overwrite to test it again."
        else:
            write(path, _measure(settings, variant, device, console))
            said = f"{variant}: written to {path}"
        console.print(escape(said), highlight=False, soft_wrap=True)
    found = records_in(settings.out)
    # Drawing takes long to load, and the other commands do without.
    from slotmesh.experiments.reproduce.multi_dsprites.pictures import write_curves

    write_curves(found, settings.out)
    console.print(_table(found))
    return found


def _measure(
    asked: MultiDSprites, variant: Variant, device: torch.device, console: Console
) -> Measured:
    trained = train(settings_of(asked, variant), device, console)
    tested, step = None, None
    if trained.failed is None:
        run = open_run(trained.settings.folder)
        tested, step = _test(asked, variant, run, device, console), steps_done(run.checkpoint)
    model = Discovery(settings_of(asked, variant)).fresh_model()
    return Measured(
        variant=variant,
        seed=asked.seed,
        steps=asked.steps,
        command=command_of("multi-dsprites", asked, {"variants": variant}),
        settings=deciding(trained.settings),
        parameters=sum(p.numel() for p in model.parameters()),
        trained_on=trained.trained_on,
        seconds=trained.seconds,
        failed=trained.failed,
        best_step=step,
        test=tested,
        train=trained.train,
        val=trained.val,
    )


def _test(
    asked: MultiDSprites, variant: Variant, run: Run, device: torch.device, console: Console
) -> Outcome:
    """Test a run; of a row of the paper, draw the first test scenes and export the weights."""
    from slotmesh.experiments.report.collect import read_csv
    from slotmesh.experiments.reproduce.multi_dsprites.pictures import write_scenes

    found = evaluate_run(run, device=str(device), console=console)
    by_scene = read_csv(run.folder / "evaluation.csv")
    if variant not in GRADIENTS:
        write_scenes(run, found, str(device), asked.out / f"{variant}.png")
        where = asked.checkpoints / weights_name(variant)
        run_export_model(ExportModel(run.folder, where), console)
        command = command_of("multi-dsprites", asked, {"variants": variant})
        write_whole(where / "README.md", card(run, found, command))
    return Outcome(
        metrics=found["metrics"],
        standard_errors={name: _standard_error(by_scene[name]) for name in found["metrics"]},
        undefined=found["undefined"],
        loss=found["loss"],
        blind=found["blind"],
        n=found["n"],
        seconds=found["seconds"],
        environment=environment(device),
    )


def _kept(asked: MultiDSprites, variant: Variant) -> Measured | None:
    """The result that is there already, if it is the one that was asked for."""
    path = asked.out / f"{variant}.json"
    if asked.overwrite or not path.exists():
        return None
    record = read(path)
    # On which machine it was trained decides the precision.
    asked_for = deciding(settings_of(asked, variant))
    other = difference(record.settings, asked_for, free=("hardware.precision",))
    if other is not None:
        name, old, new = other
        raise ValueError(
            f"{path} has {flag(name)} {old}, but {new} came. Choose another folder with --out, or "
            "pass --overwrite."
        )
    return record


def _standard_error(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else 0.0


def _table(found: dict[str, Measured]) -> Table:
    """Ours beside the paper's, for the terminal."""
    table = Table(title="Multi-dSprites, test scenes, percent", title_justify="left")
    for name in ("", "FG-ARI", "paper", "FG-mIoU", "paper"):
        table.add_column(name, justify="left" if not name else "right")
    papers = {row.variant: row.results for row in ROWS if row.table == "Table 3"}
    for variant, record in found.items():
        cells: list[str] = []
        for metric in ("fg_ari", "fg_miou"):
            ours = "failed" if record.test is None else f"{100 * record.test.metrics[metric]:.1f}"
            paper = f"{100 * papers[variant][metric][0]:.1f}" if variant in papers else "—"
            cells += [ours, paper]
        table.add_row(variant, *cells)
    return table
