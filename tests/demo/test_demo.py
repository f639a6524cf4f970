"""The demo: what it prints and the page it writes."""

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from slotmesh.cli import main
from slotmesh.demo import Demo, run_demo, scenes
from slotmesh.training import weights as shipped

from ..browser import open_page
from ..looks import LOOKS, cut_off, serious, window
from .test_scenes import put_weights

if TYPE_CHECKING:
    from playwright.sync_api import Browser


PARTS = ("ties", "copying", "scenes", "code")


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
    weights = put_weights(tmp_path_factory.mktemp("checkpoints"))
    page = run_demo(Demo(out, steps=3, checkpoints=weights), Console(file=screen, width=80))
    return screen.getvalue(), page.read_text(encoding="utf-8"), out


def test_table_fits_80_columns(demo: tuple[str, str, Path]) -> None:
    screen, _, _ = demo
    _, _, tables = screen.partition("Breaking a tie")
    ties, _, found = tables.partition("Objects found in 64 fresh scenes")
    assert max(len(line) for line in tables.splitlines() if line[:1] in "┏┃┡│└") <= 80
    assert [line.split()[1] for line in found.splitlines() if line[:1] == "│"] == ["SA", "SA-MESH"]
    rows = {line.split()[1]: line for line in ties.splitlines() if line.startswith("│ SA")}
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
    assert set(outside.found) == {
        "playground.html",
        "report.html",
        "#main",
        *(f"#{part}" for part in PARTS),
    }
    # Of each of four scenes: the image, the truth, and what both models found.
    assert outside.images == 4 * 3
    assert not re.search(r"url\(|@import|<script \w|fetch\(|XMLHttp", page)
    pages = {"index.html", "playground.html", "report.html"}
    assert {file.name for file in out.iterdir()} == pages | {"runs", "scenes"}


def test_page_shows_the_numbers_of_the_table(demo: tuple[str, str, Path]) -> None:
    screen, page, _ = demo
    rows = [line for line in screen.splitlines() if line.startswith("│ SA")]
    errors = [found[0] for row in rows if (found := re.findall(r"[01]\.\d{3}", row))]
    assert len(errors) == 2
    for error in errors:
        assert error in page
    numbers = re.findall(r"│ SA(?:-MESH)? +│ +(\d+\.\d) +│ +(\d+\.\d) +│ +12 steps", screen)
    assert len(numbers) == 2
    for ari, miou in numbers:
        assert f">{ari}</td>" in page
        assert f">{miou}</td>" in page


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_everyone_can_read_the_page(
    browser: "Browser", demo: tuple[str, str, Path], size: str, scheme: str
) -> None:
    with open_page(browser, (demo[2] / "index.html").as_uri(), **window(size, scheme)) as page:
        assert cut_off(page) == []
        assert serious(page) == []
        for part in PARTS:
            assert page.locator(f"#{part}").is_visible()


def test_without_weights_it_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "_HERE", Path("not-there"))
    monkeypatch.setattr(shipped, "_places", list)
    screen = io.StringIO()
    # A name that rich would take for a style.
    page = run_demo(Demo(tmp_path / "[red]", steps=2), Console(file=screen, width=80))
    assert str(page) in screen.getvalue()
    for said in (screen.getvalue(), page.read_text(encoding="utf-8")):
        assert "python -m paper table3" in " ".join(said.split())
    told = screen.getvalue().partition("There are no")[2].partition("Written:")[0].splitlines()
    assert len(told) > 1
    assert max(map(len, told)) <= 80
    assert "Objects found" not in screen.getvalue()
    assert not (tmp_path / "[red]" / "scenes").exists()


def test_a_folder_without_weights_is_known_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--checkpoints", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main(["demo", *where])
    said = capsys.readouterr().err
    assert "expected a folder with multi-dsprites-sa and multi-dsprites-sa-mesh" in said
    assert not (tmp_path / "out").exists()
