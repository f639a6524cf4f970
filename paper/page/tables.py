"""Tables 2 to 5 and the appendix: our results beside the paper's."""

import textwrap
from pathlib import Path

from paper.page.markdown import MISSING, code, grid, minutes
from paper.page.notes import COMMON, NOTES
from paper.page.real_clevr import real_section, real_videos
from paper.recorded import current_command
from paper.tables.definitions import TABLES as TRAINED
from paper.tables.definitions import TrainedTable
from paper.tables.record import (
    RunRecord,
    mean_cells,
    metrics_of,
    records_in,
)
from slotmesh.training.export import weights_name
from slotmesh.training.published import TABLES, Row, published_rows

_CURVES = "curves.svg"
RunRecords = dict[str, list[RunRecord]]


def trained_section(name: str, results: Path) -> list[str]:
    """Return the section with the table, how it was measured, curves and pictures."""
    [table] = [one for one in TRAINED if one.paper == name]
    folder = results / table.name
    records = records_in(folder, table.rows)
    notes = [_caption(name), NOTES.get(name, ""), COMMON if records else ""]
    return [
        f"## {name}",
        "",
        *(line for note in notes if note for line in (*note.strip().splitlines(), "")),
        *code(f"python -m paper {table.name}"),
        *_beside(table, records),
        *_measured(table, records),
        *_pictures(table, records, folder),
        *(real_section(results) if name == "Table 2" else []),
        *(real_videos(results) if name == "Table 5" else []),
    ]


def _caption(name: str) -> str:
    table = TABLES[name]
    if not table.numbers:
        return table.about
    seeds = "Ours: the number of seeds is in the table."
    return textwrap.fill(f"{table.about} The paper: {table.numbers}. {seeds}", 100)


def _beside(table: TrainedTable, records: RunRecords) -> list[str]:
    """Each row of the paper, and ours below it."""
    # Imports matplotlib, which is slow.
    from slotmesh.training.report.compare import as_printed, heading, shown

    rows = [row for row in published_rows() if row.table == table.paper]
    runs = [one for group in records.values() for one in group]
    metrics = metrics_of(rows, records)
    names = {id(row): name for name, row in table.rows.items()}
    # Rows that are not in the paper are shown only if they are measured.
    rows += [row for row in table.more if names[id(row)] in records]
    several = len({row.task for row in rows}) > 1
    lines: list[list[str]] = []
    for row in rows:
        label = f"{row.label}, {row.task}" if several else row.label
        said = [as_printed(m, *row.results[m]) if m in row.results else "—" for m in metrics]
        if row.variant is None:
            lines.append(_italic([f"{label}, quoted by the paper", *said, "", ""]))
            continue
        if row.results:
            lines.append(_italic([f"{label}, paper", *said, _seeds(row), _steps(row)]))
        group = records.get(names[id(row)])
        if group is None:
            lines.append([label, *([MISSING] * max(len(metrics), 1)), "", ""])
            continue
        failed = sum(one.test is None for one in group)
        seeds = f"{len(group)}, {failed} failed" if failed else f"{len(group)}"
        steps = " or ".join(dict.fromkeys(f"{one.steps:,}" for one in group))
        lines.append([label, *mean_cells(group, metrics), seeds, steps])
    for task in dict.fromkeys(row.task for row in rows):
        blind = [one.test.blind for one in runs if one.test and one.settings["task"] == task]
        if blind:
            label = "ignores its input" + (f", {task}" if several else "")
            known = blind[0]["metrics"]
            cells = ["—" if known.get(m) is None else shown(m, known[m]) for m in metrics]
            lines.append([label, *cells, "", ""])
    heads = [heading(m) for m in metrics] or ["ours"]
    missing = [row.label for row in table.more if names[id(row)] not in records]
    note = [f"Not in the paper, and not measured yet: {', '.join(missing)}.", ""] if missing else []
    return [*grid(["", *heads, "seeds", "steps"], lines), *note]


def _italic(cells: list[str]) -> list[str]:
    return [f"*{cell}*" if cell and cell != "—" else cell for cell in cells]


def _seeds(row: Row) -> str:
    """Seeds of the paper, if it says how many."""
    return str(TABLES[row.table].seeds or "—")


def _steps(row: Row) -> str:
    """Steps of the paper, as far as they are known."""
    return f"{row.settings().steps:,}"


def _measured(table: TrainedTable, records: RunRecords) -> list[str]:
    """How the runs were trained and tested, one row per run."""
    if not records:
        return []
    lines = [
        [
            row,
            f"{one.seed}",
            f"{one.parameters:,}",
            _machine(one),
            minutes(one.seconds),
            f"failed at step {one.failed:,}" if one.best_step is None else f"{one.best_step:,}",
            _test_of(one),
            _weights(table, row, one),
            f"`{current_command(one.command)}`",
        ]
        for row, group in records.items()
        for one in group
    ]
    head = ["", "seed", "parameters", "trained on", "time", "tested step", "test", "weights"]
    note = "Times include validation, and all parts of a run that was interrupted."
    early = [_early(row, one) for row, group in records.items() for one in group]
    return [*grid([*head, "command"], lines), note, *filter(None, early), ""]


def _early(row: str, one: RunRecord) -> str:
    """Say so if training did not end with the best weights."""
    if one.best_step in (None, one.steps):
        return ""
    losses = dict(zip(one.val["step"], one.val["loss"], strict=True))
    best, last = losses[one.best_step], one.val["loss"][-1]
    return (
        f"The validation loss of {row}, seed {one.seed}, was lowest at step {one.best_step:,}, "
        f"{best:.3g}; at the end it was {last:.3g}."
    )


def _machine(one: RunRecord) -> str:
    versions = ", ".join(dict.fromkeys(part["torch"] for part in one.trained_on))
    kind = {"32": "float32", "tf32": "TF32", "bf16": "bfloat16"}[one.settings["hardware.precision"]]
    parts = len(one.trained_on)
    return f"{one.device}, torch {versions}, {kind}" + (f", {parts} parts" if parts > 1 else "")


def _test_of(one: RunRecord) -> str:
    if one.test is None:
        return "—"
    # Imports matplotlib, which is slow.
    from slotmesh.training.report.compare import PERCENT

    errors = [
        f"{100 * error:.2f}" if name in PERCENT else f"{error:.1g}"
        for name, error in one.test.standard_errors.items()
    ]
    called = "standard error" if len(errors) == 1 else "standard errors"
    said = f", {called} {' and '.join(errors)}" if errors else ""
    return f"{one.test.n:,} samples{said}"


def _weights(table: TrainedTable, row: str, one: RunRecord) -> str:
    if one.test is None or not table.keeps_weights(row, one.seed):
        return "—"
    kept = weights_name(one.settings["task"], one.settings["variant"])
    return f"`checkpoints/{kept}`"


def _pictures(table: TrainedTable, records: RunRecords, folder: Path) -> list[str]:
    """Links to the pictures that exist."""
    lines: list[str] = []
    place = f"results/{table.name}"
    if (folder / _CURVES).is_file() and records:
        lines += [f"![Training loss and validation metrics by step]({place}/{_CURVES})", ""]
    names = [f"{row}-{one.seed}" for row, group in records.items() for one in group]
    shown = [name for name in names if (folder / f"{name}.png").is_file()]
    if shown:
        lines += ["The first test samples of each run, not selected:", ""]
        lines += [f"- [{name}]({place}/{name}.png)" for name in shown]
        lines += [""]
    return lines
