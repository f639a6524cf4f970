"""Tables of measurements for a terminal with 80 columns."""

import math
from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from benchmarks.measure import Measurement

NOTHING = "-"


def ops_table(rows: Sequence[Measurement]) -> Table:
    """Return operations with times, baselines, memory and errors."""
    table = _table("Operations, ms", "op", "batch x n x m")
    for head in ("median", "10 to 90 %", "baseline", "memory", "error"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        others: dict[str, Measurement] = row.get("baselines", {})
        table.add_row(
            row["name"],
            " x ".join(f"{row[key]}" for key in ("batch", "n", "m")),
            milliseconds(row),
            spread(row),
            "\n".join(f"{name} {milliseconds(one)}" for name, one in others.items()),
            f"{row['memory_over_cost']:.1f}" if "memory_over_cost" in row else "",
            largest_error(row),
            style=None if row["passed"] else "red",
        )
    table.caption = "Memory: peak of a call beyond its inputs, in cost matrices."
    return table


def steps_table(rows: Sequence[Measurement]) -> Table:
    """Return training steps with their times, also relative to SA."""
    table = _table("Training steps, ms", "task", "variant", "batch", "float")
    for head in ("median", "10 to 90 %", "over SA", "error"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            row["variant"],
            f"{row['batch']}",
            row["precision"],
            milliseconds(row),
            spread(row),
            over_sa(row, rows),
            largest_error(row),
            style=None if row["passed"] else "red",
        )
    return table


def table1_table(rows: Sequence[Measurement]) -> Table:
    """Return the time of a step of all runs of Table 1, and that of the whole training."""
    table = _table("Table 1, ms per step of all runs at once", "variant", "runs", "steps timed")
    for head in ("median", "10 to 90 %", "all (extrapolated)"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["variant"],
            f"{row['replicas']}",
            f"{row.get('steps_timed', NOTHING)}",
            milliseconds(row),
            spread(row),
            whole_run(row),
            style=None if row["passed"] else "red",
        )
    return table


TABLES: dict[str, Callable[[Sequence[Measurement]], Table]] = {
    "ops": ops_table,
    "steps": steps_table,
    "table1": table1_table,
}


def milliseconds(row: Measurement) -> str:
    """Return the median with three digits; a dash if it was not timed."""
    return three(row["ms"]) if "ms" in row else NOTHING


def spread(row: Measurement) -> str:
    """Return the 10th and the 90th percentile relative to the median."""
    if "ms" not in row:
        return NOTHING
    return " ".join(f"{row[key] / row['ms'] - 1:+.0%}" for key in ("p10_ms", "p90_ms"))


def over_sa(row: Measurement, rows: Sequence[Measurement]) -> str:
    """Return the time divided by that of SA, all else equal."""
    same = ("name", "batch", "precision")
    for other in rows:
        alike = other["variant"] == "SA" and all(other[key] == row[key] for key in same)
        if alike and "ms" in other and "ms" in row:
            return f"{row['ms'] / other['ms']:.2f}"
    return NOTHING


def whole_run(row: Measurement) -> str:
    """Return the extrapolated time of all steps."""
    return f"{row['extrapolated_s']:.0f} s" if "extrapolated_s" in row else NOTHING


def largest_error(row: Measurement) -> str:
    """Return the largest error of all checks."""
    if "error" not in row:
        return "failed"
    errors: list[float | None] = list(row["error"].values())
    known = [error for error in errors if error is not None]
    return f"{max(known):.0e}" if len(known) == len(errors) else "NaN"


def three(x: float) -> str:
    """Return a number with three digits and no exponent.

    Example:
        >>> from benchmarks.tables import three
        >>> three(0.04617), three(1.5), three(1234.5)
        ('0.0462', '1.50', '1234')
    """
    size = math.floor(math.log10(x)) if x > 0 else 0
    return f"{x:.{max(0, 2 - size)}f}"


def _table(title: str, *names: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in names:
        words = name in ("op", "task", "variant", "float")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    return table
