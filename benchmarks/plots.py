"""Plots of the time against the numbers of inputs and slots."""

from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.measure import Measurement
from slotmesh.palette import VARIANT_COLOURS
from slotmesh.report.figures import panels

Axis = Literal["n", "m"]
Points = list[tuple[int, float]]

OPS = {"softmax": "SA", "sinkhorn": "SA-SH", "emd": "SA-EMD", "mesh": "SA-MESH"}
"""The variant whose colour each operation has."""
NAMES = {"softmax": "softmax", "sinkhorn": "Sinkhorn", "emd": "exact transport", "mesh": "MESH"}
_LABELS = {"n": "inputs n", "m": "slots m"}
_MARKS = {"eager": "x", "compiled": "o"}


def draw_speed(result: dict[str, Any]) -> Figure | None:
    """Draw median times by n and by m on logarithmic axes; None if no size was varied.

    Args:
        result: A result from :func:`benchmarks.record.read`.
    """
    rows: list[Measurement] = result["sections"].get("ops", {}).get("rows", [])
    axes_of: list[Axis] = [axis for axis in ("n", "m") if len(fixed(rows, axis)[1]) > 1]
    if not axes_of:
        return None
    figure, [row] = panels(4.6 * len(axes_of), 3.8, 1, len(axes_of))
    for panel, axis in zip(row, axes_of, strict=True):
        _draw(panel, rows, axis)
    handles, names = row[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3 * len(axes_of), frameon=False)
    return figure


def fixed(rows: list[Measurement], axis: Axis) -> tuple[dict[str, int], list[int]]:
    """Return the sizes that are fixed while ``axis`` varies most for MESH, and its values."""
    other = "m" if axis == "n" else "n"
    values: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        if row["name"] == "mesh" and "ms" in row:
            values.setdefault((row["batch"], row[other]), set()).add(row[axis])
    if not values:
        return {}, []
    batch, size = max(values, key=lambda key: len(values[key]))
    return {"batch": batch, other: size}, sorted(values[batch, size])


def lines(rows: list[Measurement], axis: Axis) -> dict[str, Points]:
    """Return (size, ms) by operation, and by baseline of MESH."""
    same, _ = fixed(rows, axis)
    found: dict[str, Points] = {}
    for row in rows:
        if row["name"] not in OPS or any(row[key] != value for key, value in same.items()):
            continue
        if "ms" in row:
            found.setdefault(row["name"], []).append((row[axis], row["ms"]))
        if row["name"] == "mesh":
            for name, other in row.get("baselines", {}).items():
                if "ms" in other:
                    found.setdefault(name, []).append((row[axis], other["ms"]))
    return {name: sorted(points) for name, points in found.items()}


def mark(name: str, axis: Axis, points: Points) -> str:
    """Return the id of a line in the picture: its numbers, so that tests can read them."""
    return f"{name}-{axis}_" + "_".join(f"{x}-{ms:g}" for x, ms in points)


def _draw(panel: Axes, rows: list[Measurement], axis: Axis) -> None:
    same, ticks = fixed(rows, axis)
    for name, points in lines(rows, axis).items():
        x, ms = zip(*points, strict=True)
        panel.plot(x, ms, gid=mark(name, axis, points), **_look(name))
    panel.set(xscale="log", yscale="log", xlabel=_LABELS[axis], ylabel="ms")
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45 if axis == "n" else 0)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_title(", ".join(f"{key} = {value:,}" for key, value in same.items()), fontsize=10)
    panel.grid(axis="y", color="#e6e8ec")
    panel.set_axisbelow(True)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))


def _look(name: str) -> dict[str, Any]:
    """Operations are lines in the colour of their variant, baselines of MESH are marks."""
    if name in OPS:
        return {"color": VARIANT_COLOURS[OPS[name]], "marker": ".", "label": NAMES[name]}
    shape = {"marker": _MARKS[name], "markerfacecolor": "none", "linestyle": "none"}
    return {"color": VARIANT_COLOURS["SA-MESH"], "label": f"MESH, {name}", **shape}
