"""Learning curves as inline SVG; with scripts, values appear under the pointer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from slotmesh.report.marks import Mark

Points = list[tuple[float, float]]

# More points than this cannot be distinguished: of one line, and of a chart.
_MOST_POINTS = 400
_MOST_IN_ALL = 6000
# In units of the drawing, which is as wide as its column.
_WIDTH, _HEIGHT = 420, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 410, 10, 204


@dataclass(frozen=True)
class Chart:
    """A figure of curves."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class _Scale:
    """From values to places along one side of the drawing."""

    least: float
    most: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        a, b, x = self.least, self.most, value
        if self.log:
            a, b, x = math.log10(a), math.log10(b), math.log10(x)
        share = (x - a) / (b - a) if b > a else 0.5
        return self.start + share * (self.end - self.start)


def chart(
    title: str,
    curves: Sequence[tuple[Mark, Points]],
    *,
    percent: bool = False,
    baseline: float | None = None,
    x_title: str = "training step",
) -> Chart:
    """Draw one metric over training steps, one line per run.

    Args:
        title: Name of the metric.
        curves: Points (step, value) of each run, in order.
        percent: Whether values are fractions, to be shown as percentages.
        baseline: A value to compare with, drawn as a dotted line.
        x_title: Title of the horizontal axis.

    Example:
        >>> from slotmesh.report.charts import chart
        >>> from slotmesh.report.marks import Mark
        >>> drawn = chart("loss", [(Mark("SA", "#7a869a"), [(0, 1.0), (100, 0.5)])])
        >>> str(drawn.svg)[:4]
        '<svg'
    """
    factor = 100.0 if percent else 1.0
    most = max(20, min(_MOST_POINTS, _MOST_IN_ALL // max(1, len(curves))))
    lines = [(mark, [(x, factor * y) for x, y in thin(points, most)]) for mark, points in curves]
    lines = [(mark, points) for mark, points in lines if points]
    level = None if baseline is None or not math.isfinite(baseline) else factor * baseline
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    log = bool(ys) and min(ys) > 0 and max(ys) > 8 * min(ys) and not percent
    if level is not None and (level > 0 or not log):
        ys.append(level)
    across = _Scale(min(xs, default=0), max(xs, default=1), _LEFT, _RIGHT)
    up = _vertical(ys, log)
    unit = " %" if percent else ""
    parts = [_axes(across, up, x_title)]
    if level is not None and up.least <= level <= up.most:
        y = f"{up(level):.1f}"
        words = escape(f"blind: {number(level)}{unit}")
        parts.append(
            f'<g class="blind"><line x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
            f"<title>{words}</title></g>"
        )
    parts += [_line(mark, points, across, up, unit) for mark, points in lines]
    head = (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)} over {escape(x_title)}s" '
        f'data-x="{_plain(across.least)} {_plain(across.most)}" '
        f'data-y="{_plain(up.least)} {_plain(up.most)}" data-log="{int(up.log)}" '
        f'data-unit="{unit}">'
    )
    shown = f"{title}, %" if percent else title
    return Chart(shown, Markup(head + "".join(parts) + "</svg>"))  # noqa: S704 (escaped above)


def thin(points: Points, most: int = _MOST_POINTS) -> Points:
    """Reduce the number of points by averaging neighbours.

    Example:
        >>> from slotmesh.report.charts import thin
        >>> thin([(1, 2.0), (2, 4.0), (3, 6.0)], most=2)
        [(1.5, 3.0), (3.0, 6.0)]
    """
    points = [(float(x), float(y)) for x, y in points if math.isfinite(y)]
    if len(points) <= most:
        return points
    edges = [round(i * len(points) / most) for i in range(most + 1)]
    parts = [points[a:b] for a, b in pairwise(edges)]
    return [(sum(x for x, _ in p) / len(p), sum(y for _, y in p) / len(p)) for p in parts]


def number(value: float) -> str:
    """A value with four digits, or without decimals if it has more."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def ticks(least: float, most: float, n: int) -> list[float]:
    """About ``n`` round numbers between two others.

    Example:
        >>> from slotmesh.report.charts import ticks
        >>> ticks(0, 400, 5)
        [0.0, 100.0, 200.0, 300.0, 400.0]
    """
    if not most > least:
        return [least]
    raw = (most - least) / n
    size = 10.0 ** math.floor(math.log10(raw))
    step = next((k * size for k in (1, 2, 2.5, 5, 10) if k * size >= raw * 0.999), 10 * size)
    first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
    return [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]


def _vertical(ys: list[float], log: bool) -> _Scale:
    least, most = min(ys, default=0.0), max(ys, default=1.0)
    if log:
        return _Scale(least / 1.15, most * 1.15, _BOTTOM, _TOP, log=True)
    if least == most == 0:
        return _Scale(0.0, 1.0, _BOTTOM, _TOP)
    room = 0.05 * (most - least) or max(abs(most), 1e-12) * 0.05
    return _Scale(least - room, most + room, _BOTTOM, _TOP)


def _axes(across: _Scale, up: _Scale, x_title: str) -> str:
    parts: list[str] = []
    if up.log:
        low, high = math.floor(math.log10(up.least)), math.ceil(math.log10(up.most))
        each = (1, 2, 5) if high - low <= 3 else (1,)
        every = max(1, (high - low) // 5)
        levels = [k * 10.0**e for e in range(low, high + 1, every) for k in each]
        levels = [level for level in levels if up.least <= level <= up.most]
    else:
        levels = ticks(up.least, up.most, 5)
    for level in levels:
        y = up(level)
        parts.append(f'<path class="rule" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{_short(level)}</text>')
    for step in ticks(across.least, across.most, 5):
        x = across(step)
        side = "end" if x > _RIGHT - 12 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 15}" class="{side}">{_short(step)}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_BOTTOM}H{_RIGHT}"/>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 4}" class="middle">{escape(x_title)}</text>')
    return f'<g class="axes" aria-hidden="true">{"".join(parts)}</g>'


def _line(mark: Mark, points: Points, across: _Scale, up: _Scale, unit: str) -> str:
    places = " ".join(f"{across(x):.2f} {up(y):.2f}" for x, y in points)
    words = escape(f"{mark.label}: {number(points[-1][1])}{unit} at {number(points[-1][0])}")
    # A line of one point is visible only by its round ends.
    path = f'<path d="M{places}"/>' if len(points) > 1 else f'<path class="dot" d="M{places}h0"/>'
    name = escape(mark.label)
    return (
        f'<g class="run {escape(mark.key)}" style="{mark.style}" data-name="{name}">{path}'
        f"<title>{words}</title></g>"
    )


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


def _plain(value: float) -> str:
    return f"{value:.9g}"
