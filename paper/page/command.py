"""``python -m paper results``: write the page with all results."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from paper.page.table1 import table1_section
from paper.page.tables import trained_section
from slotmesh.files import write_whole
from slotmesh.training.published import TABLES

_HEAD = """# Results

Our measurements with slotmesh, next to the paper's numbers (in italics). `python -m paper results`
generates this page from the files in `results/`, and the tests check that it is up to date. A run
that diverges (NaN or infinity in its loss, gradient or error) is recorded as failed and ranks below
all others.
"""


@dataclass(frozen=True)
class ResultsPage:
    """Write the page with all results beside the paper's numbers."""

    results: Path = Path("results")
    """Folder with the results."""
    out: Path = Path("RESULTS.md")
    """The page; an existing file is replaced."""


def run_results(settings: ResultsPage, console: Console | None = None) -> Path:
    """Write the page and return its path."""
    console = Console() if console is None else console
    write_whole(settings.out, render(settings.results))
    console.print(f"Page: [bold]{escape(str(settings.out))}[/bold]", soft_wrap=True)
    return settings.out


def render(results: Path) -> str:
    """Return the page for a folder of results; it says what has not been measured."""
    lines = [_HEAD]
    for table in TABLES:
        section = table1_section if table == "Table 1" else trained_section
        lines += section(table, results)
    return "\n".join(lines).rstrip() + "\n"
