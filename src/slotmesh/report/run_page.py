"""The page about runs: its contents, and learning curves."""

import base64
import io
import math
from dataclasses import dataclass, field
from itertools import pairwise

from PIL.Image import Image

from slotmesh.report.figures import panels, svg_uri
from slotmesh.report.page import render_page

DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""One SVG dash pattern per run of the same variant; they repeat."""

# More points than this cannot be distinguished on the page.
_MOST_POINTS = 400


@dataclass(frozen=True)
class Mark:
    """How a run is marked in the legend, in tables and over pictures."""

    label: str
    colour: str
    dash: str


@dataclass(frozen=True)
class Cell:
    """One result: what was measured, and what the paper reports."""

    value: str
    paper: str = ""
    best: bool = False


@dataclass(frozen=True)
class ResultRow:
    """The results of one run, or of several seeds together."""

    mark: Mark
    about: str
    """Folder, or how many seeds."""
    quick: bool
    cells: list[Cell]
    together: bool = False
    """Whether it is several seeds."""


@dataclass(frozen=True)
class Picture:
    """A picture with a line above it."""

    mark: Mark | None
    """Whose it is, if the heading does not say."""
    note: str
    uri: str
    width: int
    """In pixels; it is never shown larger."""


@dataclass(frozen=True)
class Gallery:
    """Pictures under one heading."""

    title: str
    pictures: list[Picture]
    mark: Mark | None = None
    """Whose pictures these are, if they are of one run."""


@dataclass(frozen=True)
class Chart:
    """A figure of curves."""

    title: str
    uri: str


@dataclass(frozen=True)
class Grid:
    """A table of text: a head, and rows whose first cell is a name."""

    head: list[str]
    rows: list[list[str]]
    different: list[int] = field(default_factory=list)
    """Rows whose values differ between columns."""


@dataclass(frozen=True)
class Section:
    """Everything about the runs of one task."""

    name: str
    title: str
    about: str
    marks: list[Mark]
    warnings: list[str]
    notes: list[str]
    metrics: list[str]
    rows: list[ResultRow]
    charts: list[Chart]
    more_charts: list[Chart]
    samples: list[Gallery]
    samples_about: str
    cases: list[Gallery]
    cases_about: str
    paper_tables: list[tuple[str, Grid]]
    settings: Grid
    environment: Grid
    commands: str


def render_runs(lead: str, sections: list[Section], command: str, versions: str) -> str:
    """Render the page as one HTML file."""
    return render_page("run.html", lead=lead, sections=sections, command=command, versions=versions)


def png_uri(picture: Image) -> str:
    """Encode a picture as a data URI for ``<img>``."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def chart(
    title: str,
    curves: list[tuple[Mark, list[tuple[float, float]]]],
    *,
    percent: bool = False,
    baseline: float | None = None,
) -> Chart:
    """Draw one metric over training steps, one line per run.

    Args:
        title: Name of the metric.
        curves: Points (step, value) of each run, in order.
        percent: Whether values are fractions, to be shown as percentages.
        baseline: A value to compare with, drawn as a dotted line.
    """
    factor = 100.0 if percent else 1.0
    figure, [[axes]] = panels(5.4, 2.9)
    lines = [
        (mark, [(x, factor * y) for x, y in thin(points)]) for mark, points in curves if points
    ]
    for mark, points in lines:
        dash = [float(x) / 2 for x in mark.dash.split()]
        [line] = axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=mark.colour,
            linewidth=1.8,
            # A line of one point is invisible.
            marker="o" if len(points) < 3 else "",
            markersize=4,
        )
        if dash:
            line.set_dashes(dash)
    if baseline is not None:
        axes.axhline(factor * baseline, color="#b9bfc9", linewidth=1, linestyle=":")
    values = [y for _, points in lines for _, y in points]
    least = min(values, default=0.0)
    if least > 0 and max(values) > 8 * least and not percent:
        axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.set_ylabel(f"{title}, %" if percent else title, parse_math=False)
    axes.grid(axis="y", color="#e6e8ec")
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.locator_params(axis="x", nbins=5, integer=True)
    return Chart(title, svg_uri(figure))


def thin(points: list[tuple[float, float]], most: int = _MOST_POINTS) -> list[tuple[float, float]]:
    """Reduce the number of points by averaging neighbours.

    Example:
        >>> from slotmesh.report.run_page import thin
        >>> thin([(1, 2.0), (2, 4.0), (3, 6.0)], most=2)
        [(1.5, 3.0), (3.0, 6.0)]
    """
    points = [(float(x), float(y)) for x, y in points if math.isfinite(y)]
    if len(points) <= most:
        return points
    edges = [round(i * len(points) / most) for i in range(most + 1)]
    parts = [points[a:b] for a, b in pairwise(edges)]
    return [(sum(x for x, _ in p) / len(p), sum(y for _, y in p) / len(p)) for p in parts]
