"""Results of runs beside the paper's."""

import contextlib
import math
import shlex
import statistics
from typing import Any

from slotmesh.report.marks import Mark
from slotmesh.report.run_page import Cell, Grid, ResultRow
from slotmesh.training.published import TABLES, flags, published_rows
from slotmesh.training.report.collect import Found
from slotmesh.training.settings import INCIDENTAL, Settings, flag, is_one_of, leaves, plain
from slotmesh.training.tasks import preset

NAMES = {
    "nrmse": "RMSE / sigma",
    "ap_inf": "AP ∞",
    "ap_1": "AP 1",
    "ap_0.5": "AP 0.5",
    "ap_0.25": "AP 0.25",
    "ap_0.125": "AP 0.125",
    "ap_0.0625": "AP 0.0625",
    "fg_ari": "FG-ARI",
    "fg_miou": "FG-mIoU",
    "tc": "TC",
    "mbo": "mBO",
}
"""Names of the metrics in papers."""
PERCENT = frozenset(NAMES) - {"nrmse"}
"""Metrics that are given in percent."""

# Most runs that a note names.
_MOST_NAMED = 3
# Settings that may differ between runs that differ only in their seed.
_NOT_THE_RUN = (*INCIDENTAL, "seed", "val_every")
_NOT_THE_RESULT = (*_NOT_THE_RUN, "preset", "data.root", "data.val_size")


def shown(name: str, value: float, std: float | None = None) -> str:
    """Format a value for tables, in percent where the paper does."""
    if value != value:
        return "undefined"
    if name in PERCENT:
        return f"{100 * value:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")
    return f"{value:.3f}"


def as_printed(name: str, value: float, std: float | None) -> str:
    """Format a result of the paper with the digits that it gives.

    Example:
        >>> from slotmesh.training.report.compare import as_printed
        >>> as_printed("fg_ari", 0.9, 0.05), as_printed("nrmse", 0.5, None)
        ('90.0 ± 5.0', '0.50')
    """
    return shown(name, value, std) if name in PERCENT else f"{value:.2f}"


def in_words(name: str, value: float) -> str:
    """A metric and its value, for text.

    Example:
        >>> from slotmesh.training.report.compare import in_words
        >>> in_words("fg_ari", 0.9), in_words("nrmse", 0.5)
        ('FG-ARI 90.0 %', 'RMSE / sigma 0.500')
    """
    return f"{NAMES.get(name, name)} {shown(name, value)}{' %' if name in PERCENT else ''}"


def heading(name: str) -> str:
    """The heading of a column of results."""
    return NAMES.get(name, name) + (", %" if name in PERCENT else "")


def metrics_of(found: list[Found]) -> list[str]:
    """All metrics that the paper or the runs have, in the paper's order."""
    seen = {name for one in found for name in (one.evaluation or {}).get("metrics", {})}
    seen |= {name for one in found if one.row is not None for name in one.row.results}
    # Without masks or labels, there is only the loss.
    return in_order(seen) or ["loss"]


def in_order(metrics: set[str]) -> list[str]:
    """Names of metrics: those of the paper in its order, then others."""
    return [name for name in NAMES if name in metrics] + sorted(metrics - set(NAMES))


def result_rows(found: list[Found], marks: list[Mark], metrics: list[str]) -> list[ResultRow]:
    """One row per run; then one for several seeds of the same settings."""
    best = _best(found, metrics)
    rows: list[ResultRow] = []
    for one, mark in zip(found, marks, strict=True):
        values = _values(one)
        cells = [
            Cell(
                "—" if name not in values else shown(name, values[name]),
                _of_paper(one, name),
                values.get(name) is not None and values.get(name) == best.get(name),
                values.get(name),
            )
            for name in metrics
        ]
        rows.append(ResultRow(mark, _about(one), one.settings.preset == "quick", cells))
    for group in _seeds(found):
        one = found[group[0]]
        cells = [
            Cell(_together(name, [_values(found[i])[name] for i in group]), _of_paper(one, name))
            if all(name in _values(found[i]) for i in group)
            else Cell("—")
            for name in metrics
        ]
        label = one.row.label if one.row is not None else one.settings.variant
        mark = Mark(f"{label}, {len(group)} seeds", marks[group[0]].colour)
        seeds = ", ".join(str(found[i].settings.seed) for i in group)
        how = "median" if "nrmse" in metrics else "mean and deviation"
        about = f"{how} of the seeds {seeds}"
        rows.append(ResultRow(mark, about, one.settings.preset == "quick", cells, together=True))
    blind = blind_values(found)
    if blind:
        cells = [Cell("—" if m not in blind else shown(m, blind[m])) for m in metrics]
        mark = Mark("blind", "#9aa3af")
        rows.append(ResultRow(mark, "a model that ignores its input", False, cells, together=True))
    return rows


def blind_values(found: list[Found]) -> dict[str, float]:
    """Metrics of the blind baseline, if all runs were evaluated on the same samples."""
    made = [values for one in found if (values := _blind(one))]
    return made[0] if made and all(values == made[0] for values in made) else {}


def paper_tables(found: list[Found]) -> list[tuple[str, Grid]]:
    """The whole tables of the paper that the runs belong to, with the command of each row."""
    names = dict.fromkeys(one.row.table for one in found if one.row is not None)
    made: list[tuple[str, Grid]] = []
    for table in names:
        task = found[0].settings.task
        rows = [row for row in published_rows() if (row.table, row.task) == (table, task)]
        seen = {name for row in rows for name in row.results}
        metrics = in_order(seen)
        cells = [
            [
                row.label,
                *(as_printed(m, *row.results[m]) if m in row.results else "—" for m in metrics),
                "" if row.args is None else shlex.join(["slotmesh", "train", row.task, *row.args]),
            ]
            for row in rows
        ]
        head = ["Model", *(heading(m) for m in metrics), "Command"]
        made.append((_caption(table), Grid(head, cells)))
    return made


def _caption(table: str) -> str:
    known = TABLES.get(table)
    if known is None:
        return table
    numbers = f" {known.numbers.capitalize()}." if known.numbers else ""
    return f"The paper's {table}: {known.about}{numbers}"


def diagnostics(found: list[Found], marks: list[Mark]) -> Grid | None:
    """How runs use their slots, one row per run; None if it was not measured."""
    rows: list[list[str]] = []
    kept: list[Mark] = []
    for one, mark in zip(found, marks, strict=True):
        values = (one.evaluation or {}).get("slots") or {}
        if not values:
            continue
        model: Any = getattr(one.settings, "model", None)
        total = getattr(model, "n_slots", None)
        entropies = [v for name, v in values.items() if name.startswith("entropy_")]
        rows.append(
            [
                mark.label,
                f"{values['used']:.1f}" + ("" if total is None else f" of {total}"),
                f"{values['evenness']:.2f}",
                " → ".join(f"{value:.2f}" for value in entropies) or "—",
                f"{values['duplicates']:.1f}",
                f"{values['background']:.1f}" if "background" in values else "—",
            ]
        )
        kept.append(mark)
    head = ["run", "slots used", "evenness", "attention entropy", "duplicate pairs", "background"]
    return Grid(head, rows, kept) if rows else None


def warnings(found: list[Found]) -> list[str]:
    """Why the numbers cannot be compared with the paper's."""
    said: list[str] = []
    if not found[0].run.experiment.published:
        return said
    if any(one.settings.preset == "quick" for one in found):
        said.append(
            "Runs marked quick are small and short, to check that everything works. They are not "
            "comparable with the paper."
        )
    images = [one for one in found if hasattr(one.settings.data, "root")]
    if any(one.settings.data.root is None for one in images):
        said.append(
            "Trained and tested on the procedural world that stands in for the dataset. The "
            "paper's numbers are on the dataset itself (--data.root)."
        )
    if any(getattr(one.settings.data, "easy", False) for one in found):
        said.append(
            "Runs with data.easy see the easy version of that world: a few large objects in clear "
            "colours. Numbers are higher there than on the paper's scenes (--data.no-easy)."
        )
    return said


def notes(found: list[Found], marks: list[Mark]) -> list[str]:
    """Other notes on each run."""
    said: dict[str, list[str]] = {}
    published = bool(found[0].run.experiment.published)
    for one, mark in zip(found, marks, strict=True):
        here = [*one.problems]
        if not published:
            pass
        elif one.row is None:
            here.append("No row of the paper has these settings.")
        elif one.settings.preset == "paper" and (other := _unlike_paper(one)):
            here.append(f"Unlike the paper's row: {other}.")
        for name, n in ((one.evaluation or {}).get("undefined") or {}).items():
            if n:
                total = (one.evaluation or {}).get("n")
                name = NAMES.get(name, name)
                here.append(
                    f"{name} is undefined for {n:g} of {total} samples, which are left out."
                )
        for words in here:
            said.setdefault(words, []).append(mark.label)
    goal = found[0].run.experiment.goal
    better = "higher" if goal.higher else "lower"
    name = NAMES.get(goal.metric, goal.metric)
    small = " Small numbers are the paper's." if published else ""
    made = [f"{_whose(labels)}: {words}" for words, labels in said.items()]
    return [*made, f"{name}: {better} is better.{small}"]


def _whose(labels: list[str]) -> str:
    """The runs that a note is about."""
    if len(labels) <= _MOST_NAMED:
        return "; ".join(labels)
    return f"{'; '.join(labels[:_MOST_NAMED])} and {len(labels) - _MOST_NAMED} more"


def command(settings: Settings) -> str:
    """The line that trains a run with these settings."""
    start = preset(settings.task, settings.variant, settings.preset)
    different = differences(settings, start)
    root = getattr(settings.data, "root", None)
    if root is not None and root.exists():
        # Defaults that depend on the data, which may have changed.
        with contextlib.suppress(ValueError):
            masks = getattr(settings.data, "masks", None)
            suited = preset(
                settings.task, settings.variant, settings.preset, root=root, masks=masks
            )
            different |= differences(settings, suited)
    changes = {
        name: value
        for name, value in different.items()
        if name not in ("task", "variant", "preset", "seed", "out", "overwrite")
    }
    words = ["slotmesh", "train", settings.task, "--variant", settings.variant]
    words += ["--preset", settings.preset, "--seed", str(settings.seed)]
    return shlex.join([*words, *flags(changes)])


def differences(settings: Settings, start: Settings) -> dict[str, Any]:
    """Settings that differ from others, by their names with dots."""
    there = leaves(start)
    return {
        name: value
        for name, value in leaves(settings).items()
        if name not in there or there[name] != value
    }


def _unlike_paper(found: Found) -> str:
    assert found.row is not None
    usual = leaves(found.row.settings())
    changes = differences(found.settings, found.row.settings())
    return ", ".join(
        f"{flag(name)} is {value} ({usual.get(name)} there)"
        for name, value in changes.items()
        if not is_one_of(name, _NOT_THE_RESULT)
    )


def _about(found: Found) -> str:
    """Where a run is, and how long it took."""
    words = [str(found.path)]
    if found.last_step:
        known = [s for s in found.curves.get("seconds", []) if math.isfinite(s)]
        seconds = max(known, default=0.0)
        steps = f"{found.last_step} steps"
        words.append(f"{steps} in {_duration(seconds)}" if seconds else steps)
    return " · ".join(words)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _values(found: Found) -> dict[str, float]:
    evaluation = found.evaluation or {}
    values = evaluation.get("metrics") or {"loss": evaluation.get("loss")}
    return {name: float(value) for name, value in values.items() if value is not None}


def _of_paper(found: Found, name: str) -> str:
    if found.row is None or name not in found.row.results:
        return ""
    return f"paper {as_printed(name, *found.row.results[name])}"


def _best(found: list[Found], metrics: list[str]) -> dict[str, float]:
    """The best value of each metric, where several runs were measured on the same data.

    A value that a model which ignores its input would also reach is never the best.
    """
    measured = [one for one in found if _values(one)]
    if len(measured) < 2 or len({_data(one) for one in measured}) > 1:
        return {}
    goal = found[0].run.experiment.goal
    lower = {"nrmse", "loss"} | (set() if goal.higher else {goal.metric})
    made: dict[str, float] = {}
    for name in metrics:
        less = name in lower
        known = [(v, one) for one in measured if (v := _values(one).get(name)) is not None]
        known = [(v, one) for v, one in known if v == v]
        values = [v for v, _ in known]
        best = (min if less else max)(values, default=math.nan)
        blind = [_blind(one).get(name, math.nan) for v, one in known if v == best]
        if values.count(best) == 1 and not (best >= blind[0] if less else best <= blind[0]):
            made[name] = best
    return made


def _blind(found: Found) -> dict[str, float]:
    """The results of a model that ignores its input on the samples of a run."""
    blind = (found.evaluation or {}).get("blind", {})
    return blind.get("metrics") or {name: blind[name] for name in ("loss",) if name in blind}


def _data(found: Found) -> str:
    values = plain(found.settings.data)
    batch = (found.evaluation or {}).get("n")
    kept = {k: v for k, v in values.items() if k not in ("batch_size", "train_size", "workers")}
    return f"{kept} {batch}"


def _seeds(found: list[Found]) -> list[list[int]]:
    """Runs that differ only in their seed, if there are several."""
    groups: dict[str, list[int]] = {}
    for i, one in enumerate(found):
        same = {k: v for k, v in leaves(one.settings).items() if not is_one_of(k, _NOT_THE_RUN)}
        if _values(one):
            groups.setdefault(str(same), []).append(i)
    different = [group for group in groups.values() if len(group) > 1]
    return [g for g in different if len({found[i].settings.seed for i in g}) == len(g)]


def _together(name: str, values: list[float]) -> str:
    if name == "nrmse":
        return shown(name, statistics.median(values))
    return shown(name, statistics.fmean(values), statistics.stdev(values))
