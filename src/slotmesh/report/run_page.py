"""The page about runs: its contents."""

from dataclasses import dataclass

from slotmesh.report.charts import Chart
from slotmesh.report.marks import Mark
from slotmesh.report.mosaic import Mosaic
from slotmesh.report.page import render_page


@dataclass(frozen=True)
class Cell:
    """One result: what was measured, and what the paper reports."""

    value: str
    paper: str = ""
    best: bool = False
    number: float | None = None
    """To sort by."""


@dataclass(frozen=True)
class ResultRow:
    """The results of one run, or of several seeds together."""

    mark: Mark
    about: str
    """The folder, or the number of seeds."""
    quick: bool
    cells: list[Cell]
    together: bool = False
    """Whether it is several seeds."""


@dataclass(frozen=True)
class Picture:
    """The output of a run for one sample."""

    mark: Mark
    note: str
    blocks: list[Mosaic]
    """One, or one per frame of a video."""


@dataclass(frozen=True)
class Gallery:
    """Pictures under one heading."""

    title: str
    pictures: list[Picture]
    mark: Mark | None = None
    """The run that the pictures are from, if it is only one."""


@dataclass(frozen=True)
class Grid:
    """A table of text: a head, and rows whose first cell is a name."""

    head: list[str]
    rows: list[list[str]]
    marks: list[Mark] | None = None
    """One per row, if rows are runs."""


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
    diagnostics: Grid | None
    """How slots are used, one row per run."""
    charts: list[Chart]
    more_charts: list[Chart]
    samples: list[Gallery]
    samples_about: str
    cases: list[Gallery]
    cases_about: str
    paper_tables: list[tuple[str, Grid]]
    tables: list[tuple[str, Grid]]
    """Settings and environment: those that runs share, and those that differ."""
    commands: str


def render_runs(lead: str, sections: list[Section], command: str, versions: str) -> str:
    """Render the page as one HTML file."""
    return render_page("run.html", lead=lead, sections=sections, command=command, versions=versions)
