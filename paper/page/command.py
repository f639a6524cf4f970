"""``python -m paper results``: the page about everything that is measured."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from paper.page.table1 import table1_section
from paper.page.trained import trained_section
from slotmesh.files import write_whole
from slotmesh.training.published import TABLES

_HEAD = """# Results

What was measured with slotmesh, beside what the paper reports. This page is made from the files in
`results/` by `python -m paper results`; the tests check that it is up to date. A run that
diverges (NaN or infinity in its loss, gradient or error) has failed: it counts as worse than any
other.
"""


@dataclass(frozen=True)
class Results:
    """Write the page about everything that is measured, beside the paper's numbers."""

    results: Path = Path("results")
    """Folder with the measurements."""
    out: Path = Path("RESULTS.md")
    """The page; it is replaced if it is there."""


def run_results(settings: Results, console: Console | None = None) -> Path:
    """Write the page and return its path."""
    console = Console() if console is None else console
    write_whole(settings.out, render(settings.results))
    console.print(f"Page: [bold]{escape(str(settings.out))}[/bold]", soft_wrap=True)
    return settings.out


def render(results: Path) -> str:
    """The page, from a folder of measurements; what is missing there is said."""
    lines = [_HEAD]
    for table in TABLES:
        section = table1_section if table == "Table 1" else trained_section
        lines += section(table, results)
    return "\n".join(lines).rstrip() + "\n"
