"""``slotmesh evaluate``: metrics of a trained model on test samples."""

import csv
import io
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slotmesh.environment import command_line, environment
from slotmesh.files import make_folder, write_whole
from slotmesh.progress import Count
from slotmesh.training.places import memory_checked, place_of
from slotmesh.training.runs import Run, open_run
from slotmesh.training.settings import MOST_SAMPLES, at_least, at_most
from slotmesh.training.stream import EvalBatches
from slotmesh.training.tasks import experiment
from slotmesh.training.tasks.experiment import Experiment, Source
from slotmesh.training.weights import locate

# Number of test samples on which the use of slots is measured.
_USAGE = 64
# Number of samples whose mean the blind baseline predicts.
_BLIND = 256


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a trained model on test samples: a table, JSON, and a CSV file by sample."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of a run or of an export, a checkpoint, or the name of weights that come with
    slotmesh, such as multi-dsprites-sa-mesh."""
    n: int | None = None
    """Number of test samples; by default, that of the run's settings."""
    batch_size: int | None = None
    """Samples per batch; by default, as in training. Noise is drawn per batch."""
    root: Path | None = None
    """A real dataset to test on, instead of the data of the run."""
    partial: bool = False
    """Accept an incomplete copy of the dataset, and test on the split that is there."""
    out: Path | None = None
    """Folder for evaluation.json and evaluation.csv; by default the folder of the run. For an
    export, or a checkpoint outside a run, nothing is written without it."""
    device: str = "auto"
    """cpu, cuda, or auto."""


def run_evaluate(settings: Evaluate, console: Console | None = None) -> dict[str, Any]:
    """Evaluate, print the table, write both files."""
    console = Console() if console is None else console
    for name in ("n", "batch_size"):
        if getattr(settings, name) is not None:
            at_least(name, getattr(settings, name), 1)
            at_most(name, getattr(settings, name), MOST_SAMPLES)
    run = open_run(locate(str(settings.run)))
    data = run.settings.data
    if settings.root is not None:
        if not hasattr(data, "root"):
            raise ValueError(f"--root: there is no real dataset for {run.settings.task}.")
        if not settings.root.exists():
            raise ValueError(
                f"--root is {settings.root}, which does not exist, expected the folder or the file "
                "of a dataset. Correct the path, or leave it out."
            )
        data = replace(data, root=settings.root)
        if hasattr(data, "easy"):
            # This applies only to the world that the run was trained on.
            data = replace(data, easy=False)
        if hasattr(data, "masks"):
            # These belong to other images; the new folder may have its own.
            data = replace(data, masks=None)
    elif (gone := _gone(data)) is not None:
        raise ValueError(
            f"{settings.run} was trained on {gone}, which is not here. Pass its folder with --root."
        )
    data = replace(data, test_size=settings.n or data.test_size)
    if settings.partial:
        if getattr(data, "root", None) is None:
            raise ValueError("--partial is for a real dataset: pass its folder with --root.")
        if not hasattr(data, "partial"):
            task = run.settings.task
            raise ValueError(f"--partial is for datasets; {task} always uses what is there.")
        data = replace(data, partial=True)
    made = experiment(replace(run.settings, data=data), moved=True)
    if getattr(data, "partial", False) and run.settings.data.root is not None:
        found = made.source("test", torch.device("cpu"))[0]
        if getattr(found, "split", None) == "train":
            raise ValueError(
                f"--partial: {data.root} has training images only, and {run.name} was trained on "
                f"images of {run.settings.data.root}. Add images of another split."
            )
    with memory_checked():
        found = evaluate_run(
            replace(run, experiment=made),
            batch_size=settings.batch_size,
            out=settings.out,
            device=settings.device,
            console=console,
        )
    many = "sample" if found["n"] == 1 else "samples"
    # An incomplete copy may have training images only.
    split = "training" if found["split"] == "train" else "test"
    title = f"{run.name}, {found['n']} {split} {many}"
    console.print(title, style="italic", soft_wrap=True, markup=False, highlight=False)
    console.print(_table(run, found))
    blind = "blind: a model that ignores its input"
    if found["blind"].get("fitted_to") == "the test samples":
        blind += "; it was fitted to these samples, so its loss is too low"
    for line in (blind, _usage_line(found.get("slots"))):
        if line:
            console.print(line, style="dim", soft_wrap=True, highlight=False)
    if (step := run.stopped_at) is not None:
        said = f"The run is not finished: it stopped at step {step:,} of {run.settings.steps:,}."
        console.print(said, soft_wrap=True, highlight=False)
    if found["easy"]:
        easy = "Scenes are from the easy version of the world, with a few large objects."
        console.print(easy, soft_wrap=True, highlight=False)
    where = run.home if settings.out is None else settings.out
    if where is None:
        said = "Nothing was written: pass --out FOLDER to keep the numbers."
    else:
        written = escape(str(where / "evaluation.json"))
        said = f"Written: [bold]{written}[/bold], evaluation.csv by sample"
    console.print(said, highlight=False, soft_wrap=True)
    return found


def _gone(data: Any) -> Path | None:
    """A folder or file of the data that does not exist."""
    paths: list[Path | None] = [getattr(data, name, None) for name in ("root", "masks")]
    return next((path for path in paths if path is not None and not path.exists()), None)


def evaluate_run(
    run: Run,
    *,
    batch_size: int | None = None,
    out: Path | None = None,
    device: str = "auto",
    console: Console | None = None,
    usage: bool = True,
) -> dict[str, Any]:
    """Measure a run on its test samples; write evaluation.json and evaluation.csv.

    Args:
        run: From :func:`~slotmesh.training.runs.open_run`.
        batch_size: Samples at a time; by default, as in training.
        out: Folder to write to; by default, that of the run. For an export, or a checkpoint outside
            a run, nothing is written by default.
        device: cpu, cuda, or auto.
        console: Shows the progress, if given.
        usage: Whether to measure how slots are used, which takes another pass over a few samples.
    """
    out = run.home if out is None else out
    place = place_of(device)
    made = run.experiment
    size: int = made.settings.data.batch_size if batch_size is None else batch_size
    model = run.load_model(place)
    metrics = {name: metric.to(place) for name, metric in made.metrics().items()}
    source, n = made.source("test", place)
    assert n is not None
    partial = getattr(made.settings.data, "partial", False)
    batches = EvalBatches(source, n, batch_size=size)
    if out is not None:
        make_folder(out)
    few, fitted_to = _for_blind(made, source, n, place)
    blind = made.blind(few.to(place))
    blind_metrics = {name: metric.to(place) for name, metric in made.metrics().items()}
    blind_loss: list[torch.Tensor] = []
    rows: dict[str, list[torch.Tensor]] = {}
    began = time.perf_counter()
    with Count(console, "evaluating", n) as count, torch.inference_mode():
        for i, sample in enumerate(batches):
            total = batches.totals[i]
            noise = made.noise("test", i, total=total, device=place)
            sample = sample.to(place)
            judged = made.judge(model, sample, noise, metrics)
            blind_loss.append(made.judge(blind, sample, noise, blind_metrics)["loss"])
            for name, values in {"sample": sample.index, **judged}.items():
                rows.setdefault(name, []).append(values)
            count.advance(total)
    whole = {name: torch.cat(values).cpu() for name, values in rows.items()}
    found = {
        **{k: getattr(run.settings, k) for k in ("task", "variant", "preset", "seed")},
        "checkpoint": run.checkpoint.name,
        # An incomplete copy may have another split only.
        "split": str(getattr(source, "split", "test")) if partial else "test",
        "partial": partial,
        "root": None if (root := getattr(made.settings.data, "root", None)) is None else str(root),
        "easy": getattr(made.settings.data, "easy", False),
        "n": n,
        "batch_size": size,
        "loss": float(whole["loss"].double().mean()),
        "metrics": _computed(metrics),
        "undefined": {
            name: int(metric.n_undefined)  # pyright: ignore
            for name, metric in metrics.items()
            if hasattr(metric, "n_undefined")
        },
        "blind": {
            "loss": float(torch.cat(blind_loss).double().mean()),
            "metrics": _computed(blind_metrics),
            **({} if fitted_to is None else {"fitted_to": fitted_to}),
        },
        "slots": _usage(made, model, source, min(n, _USAGE), size, place) if usage else {},
        "seconds": round(time.perf_counter() - began, 2),
        "environment": command_line() | environment() | {"device": str(place)},
    }
    if out is not None:
        write_whole(out / "evaluation.csv", _csv(whole))
        write_whole(out / "evaluation.json", json.dumps(strict(found), indent=2) + "\n")
    return found


def _for_blind(
    made: Experiment, source: Source, n: int, place: torch.device
) -> tuple[Any, str | None]:
    """Samples to fit the blind baseline to, and, if there are few test samples, what they are.

    The mean of many test samples is as good as that of any others, but with few test samples, a
    baseline that is fitted to them would have seen the answer.
    """
    if n >= _BLIND:
        return source.sample(range(_BLIND)), None
    settings: Any = made.settings
    try:
        if hasattr(made, "encoder"):
            # Features of the training images may have to be computed first.
            others, most = made.source("val", place)
        else:
            size = max(_BLIND, settings.data.batch_size)
            size = min(size, settings.data.train_size or size)
            fewer = replace(settings, data=replace(settings.data, train_size=size))
            others, most = type(made)(fewer).source("train", place)
        return others.sample(range(min(most or _BLIND, _BLIND))), "other samples"
    except (ValueError, OSError):
        # There may be only a test split.
        return source.sample(range(n)), "the test samples"


@torch.inference_mode()
def _usage(
    made: Experiment, model: Any, source: Source, n: int, size: int, place: torch.device
) -> dict[str, float]:
    """How slots are used in the first samples, and the number of samples; empty without masks."""
    means: list[tuple[int, dict[str, float]]] = []
    for first in range(0, n, size):
        sample = source.sample(range(first, min(first + size, n))).to(place)
        noise = made.noise("usage", first // size, total=len(sample), device=place)
        found = made.usage(model, sample, noise)
        if found is None:
            return {}
        means.append((len(sample), found.means()))
    names = means[0][1]
    return {name: sum(k * one[name] for k, one in means) / n for name in names} | {"n": n}


def strict(value: Any) -> Any:
    """Replace numbers that are not finite by None: JSON has no NaN."""
    if isinstance(value, dict):
        return {k: strict(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _computed(metrics: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.compute()
        items = value.items() if isinstance(value, dict) else [(name, value)]
        found |= {k: float(v) for k, v in items}
    return found


def _usage_line(slots: dict[str, float] | None) -> str:
    """How slots are used, in a line below the table."""
    if not slots:
        return ""
    words = [f"{slots['used']:.1f} used"] if "used" in slots else []
    if "duplicates" in slots:
        words.append(f"{slots['duplicates']:.1f} pairs nearly equal")
    if "background" in slots:
        words.append(f"{slots['background']:.1f} share the background")
    return f"slots: {', '.join(words)}" if words else ""


def _csv(columns: dict[str, torch.Tensor]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in zip(*(column.tolist() for column in columns.values()), strict=True):
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in row])
    return text.getvalue()


def _table(run: Run, found: dict[str, Any]) -> Table:
    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("blind", justify="right")
    table.add_column("", style="dim")
    goal = run.experiment.goal
    blind = {**found["blind"]["metrics"], "loss": found["blind"]["loss"]}
    for name, value in {**found["metrics"], "loss": found["loss"]}.items():
        notes: list[str] = []
        if name in (goal.metric, "loss"):
            notes.append(f"{'higher' if goal.higher and name != 'loss' else 'lower'} is better")
        if found["undefined"].get(name):
            notes.append(f"undefined for {found['undefined'][name]}")
        table.add_row(name, f"{value:.4g}", f"{blind[name]:.4g}", "; ".join(notes))
    return table
