"""The part of the page about one task."""

import math
import shlex
from collections import Counter
from typing import Any

from slotmesh.report.charts import Chart, chart
from slotmesh.report.marks import DASHES, Mark
from slotmesh.report.run_page import Gallery, Grid, Picture, Section
from slotmesh.training.report import compare
from slotmesh.training.report.collect import Found
from slotmesh.training.report.samples import SamplePainter, best_and_worst
from slotmesh.training.settings import flag, leaves
from slotmesh.training.variants import VARIANTS

# Runs whose pictures are shown: more would make the page large without being compared.
_MOST_PICTURED = 8


def make_section(
    found: list[Found],
    *,
    title: str | None = None,
    number: int = 0,
    n_samples: int,
    n_cases: int,
    device: str,
) -> Section:
    """Make the section about the runs of one task.

    Args:
        found: The runs.
        title: Title of the section; by default, that of the task.
        number: Number of the section on its page.
        n_samples: Test samples to show of every run.
        n_cases: Best and worst samples to show of each run.
        device: Where models run.
    """
    task = found[0].run.experiment
    marks = make_marks(found, number)
    pictured = _pictured(found)
    samples, cases = _pictures(found, marks, pictured, n_samples, n_cases, device)
    metrics = compare.metrics_of(found)
    charts, more = _charts(found, marks)
    whose = (
        f" Of {len(found)} runs, {len(pictured)} are shown: the best of each variant, then the "
        "best others."
        if len(pictured) < len(found)
        else ""
    )
    return Section(
        # There may be several folders of images.
        name=task.name if task.has_world else f"{task.name}-{number}",
        title=task.title if title is None else title,
        about=task.about,
        marks=marks,
        warnings=compare.warnings(found),
        notes=compare.notes(found, marks),
        metrics=[compare.heading(name) for name in metrics],
        rows=compare.result_rows(found, marks, metrics),
        diagnostics=compare.diagnostics(found, marks),
        charts=charts,
        more_charts=more,
        samples=samples,
        samples_about=f"The first test samples. {task.how_to_read}{whose}",
        cases=cases,
        cases_about=f"By the metric of each sample, over all test samples.{whose}",
        paper_tables=compare.paper_tables(found),
        tables=[*_settings(found, marks), *_environment(found, marks)],
        commands=_commands(found),
    )


def make_marks(found: list[Found], number: int = 0) -> list[Mark]:
    """A label, a colour and a pattern for each run; labels differ."""
    labels = [one.settings.variant if one.row is None else one.row.label for one in found]
    for more in (lambda f: f"seed {f.settings.seed}", lambda f: str(f.path)):
        often = Counter(labels)
        labels = [
            f"{label}, {more(one)}" if often[label] > 1 else label
            for label, one in zip(labels, found, strict=True)
        ]
    marks: list[Mark] = []
    for i, (one, label) in enumerate(zip(found, labels, strict=True)):
        before = sum(f.settings.variant == one.settings.variant for f in found[:i])
        colour = VARIANTS[one.settings.variant].colour
        marks.append(Mark(label, colour, DASHES[before % len(DASHES)], f"r{number}-{i}"))
    return marks


def _pictured(found: list[Found]) -> list[int]:
    """Runs whose pictures are shown: all, or the best of each variant and the best others."""
    if len(found) <= _MOST_PICTURED:
        return list(range(len(found)))
    goal = found[0].run.experiment.goal
    sign = -1.0 if goal.higher else 1.0
    values = [(one.evaluation or {}).get("metrics", {}).get(goal.metric) for one in found]
    ranked = sorted(
        (i for i, one in enumerate(found) if one.whole),
        key=lambda i: math.inf if values[i] is None or values[i] != values[i] else sign * values[i],
    )
    firsts = {found[i].settings.variant: i for i in reversed(ranked)}
    first = sorted(firsts.values(), key=ranked.index)
    return sorted([*first, *(i for i in ranked if i not in first)][:_MOST_PICTURED])


def _charts(found: list[Found], marks: list[Mark]) -> tuple[list[Chart], list[Chart]]:
    """Draw the metrics and the loss, then everything else that was logged."""
    names = list(dict.fromkeys(name for one in found for name in one.curves))
    goal = found[0].run.experiment.goal
    first = [name for name in (f"val/{goal.metric}",) if name in names]
    first += [n for n in names if n.startswith("val/") and n not in first and n != "val/loss"]
    first += [name for name in ("val/loss", "train/loss") if name in names and name not in first]
    rest = [n for n in names if n.startswith(("slots/", "train/")) and n not in first]
    blind = compare.blind_values(found)
    made: list[list[Chart]] = [[], []]
    for charts, wanted in zip(made, (first, rest), strict=True):
        for name in wanted:
            lines = [(mark, one.curve(name)) for one, mark in zip(found, marks, strict=True)]
            if not any(points for _, points in lines):
                continue
            room, _, metric = name.partition("/")
            words = compare.NAMES.get(metric, metric.replace("_", " "))
            prefix = {"val": "validation", "slots": "slots:"}.get(room, "training")
            charts.append(
                chart(
                    f"{prefix} {words}",
                    lines,
                    percent=metric in compare.PERCENT,
                    baseline=blind.get(metric) if room == "val" else None,
                )
            )
    return made[0], made[1]


def _pictures(
    found: list[Found],
    marks: list[Mark],
    pictured: list[int],
    n_samples: int,
    n_cases: int,
    device: str,
) -> tuple[list[Gallery], list[Gallery]]:
    samples = [Gallery(f"Test sample {i}", []) for i in range(n_samples)]
    cases: list[Gallery] = []
    if n_samples == n_cases == 0:
        return [], []
    for one, mark in ((found[i], marks[i]) for i in pictured):
        if not one.whole:
            continue
        try:
            painter = SamplePainter(one, device)
        except (ValueError, OSError) as error:
            one.problems.append(f"There are no pictures: {error}")
            continue
        if painter.judged_on not in (None, painter.device.type):
            one.problems.append(
                f"It was evaluated on {painter.judged_on} and is drawn on {painter.device.type}, "
                "with other noise: pictures can differ from what was measured."
            )
        for i, gallery in enumerate(samples[: painter.n]):
            gallery.pictures.append(_picture(painter, one, mark, i, trace=True))
        name, best, worst = best_and_worst(one, n_cases)
        words = compare.NAMES.get(name, name)
        for which, indices in (("best", best), ("worst", worst)):
            if indices:
                shown = [_picture(painter, one, mark, i, trace=False) for i in indices]
                cases.append(Gallery(f"{mark.label}: {which} {words}", shown, mark))
    return [gallery for gallery in samples if gallery.pictures], cases


def _picture(
    painter: SamplePainter, found: Found, mark: Mark, index: int, *, trace: bool
) -> Picture:
    drawn = painter.mosaics(index, trace=trace)
    known = {name: values[index] for name, values in found.by_sample.items() if index < len(values)}
    known.pop("sample", None)
    # The loss comes last: the metric is more important.
    known = {k: v for k, v in known.items() if k != "loss"} | {"loss": known.get("loss", math.nan)}
    notes = [] if trace else [f"sample {index}"]
    for name, value in known.items():
        if math.isfinite(value):
            text = compare.shown(name, value) if name in compare.NAMES else f"{value:.3g}"
            notes.append(f"{compare.NAMES.get(name, name)} {text}")
    return Picture(mark, " · ".join(notes), drawn)


def _settings(found: list[Found], marks: list[Mark]) -> list[tuple[str, Grid]]:
    tables = [leaves(one.settings) for one in found]
    names = list(dict.fromkeys(name for table in tables for name in table))
    # Settings of one kind together, whichever run has them.
    rooms = list(dict.fromkeys(name.split(".")[0] for name in names))
    names.sort(key=lambda name: rooms.index(name.split(".")[0]))
    kept = [name for name in names if name not in ("task", "out", "overwrite")]
    return _grids(
        "Settings", {flag(name): [t.get(name, "") for t in tables] for name in kept}, marks
    )


def _environment(found: list[Found], marks: list[Mark]) -> list[tuple[str, Grid]]:
    tables: list[dict[str, Any]] = [one.environment for one in found]
    names = list(dict.fromkeys(name for table in tables for name in table))
    return _grids("Environment", {n: [t.get(n, "") for t in tables] for n in names}, marks)


def _grids(title: str, values: dict[str, list[Any]], marks: list[Mark]) -> list[tuple[str, Grid]]:
    """A table of what all runs share, and one of what differs, unless they are empty."""
    words = {name: [str(value) for value in row] for name, row in values.items()}
    same = [[name, row[0]] for name, row in words.items() if len(set(row)) == 1]
    other = {name: row for name, row in words.items() if len(set(row)) > 1}
    made: list[tuple[str, Grid]] = []
    if other:
        rows = [[mark.label, *(row[i] for row in other.values())] for i, mark in enumerate(marks)]
        made.append((f"{title} that differ", Grid(["run", *other], rows, marks)))
    if same:
        all_runs = " that all runs share" if len(marks) > 1 else ""
        made.append((f"{title}{all_runs}", Grid(["name", "value"], same)))
    return made


def _commands(found: list[Found]) -> str:
    lines: list[str] = []
    for one in found:
        lines.append(f"{compare.command(one.settings)} --out {shlex.quote(str(one.run.folder))}")
        lines.append(shlex.join(["slotmesh", "evaluate", str(one.path)]))
    return "\n".join(lines)
