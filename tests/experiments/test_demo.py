"""The demo: what it prints and the page it writes."""

import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from slotmesh.experiments.demo import Demo, run_demo


class Outside(HTMLParser):
    """Collects addresses that a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and not (value or "").startswith("data:"):
                self.found.append(value or "")
        self.images += tag == "img"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    screen = io.StringIO()
    out = tmp_path_factory.mktemp("demo")
    page = run_demo(Demo(out=out, steps=3), Console(file=screen, width=80))
    return screen.getvalue(), page.read_text(encoding="utf-8"), out


def test_table_fits_80_columns(demo: tuple[str, str, Path]) -> None:
    screen, _, _ = demo
    lines = screen.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("A tie")) :]
    assert max(len(line) for line in table if line[:1] in "┏┃┡│└") <= 80
    rows = {line.split()[1]: line for line in screen.splitlines() if line.startswith("│ SA")}
    assert {name: "yes" in row for name, row in rows.items()} == {
        "SA": False,
        "SA-SH": False,
        "SA-EMD": True,
        "SA-MESH": True,
    }


def test_page_needs_no_other_file(demo: tuple[str, str, Path]) -> None:
    _, page, out = demo
    outside = Outside()
    outside.feed(page)
    assert outside.found == ["report.html"]
    assert outside.images == 3
    assert not re.search(r"url\(|@import|<script", page)
    assert {file.name for file in out.iterdir()} == {"index.html", "report.html", "runs"}


def test_page_shows_the_numbers_of_the_table(demo: tuple[str, str, Path]) -> None:
    screen, page, _ = demo
    rows = [line for line in screen.splitlines() if line.startswith("│ SA")]
    errors = [found[0] for row in rows if (found := re.findall(r"[01]\.\d{3}", row))]
    assert len(errors) == 2
    for error in errors:
        assert error in page
