"""The page about runs as one sees it and uses it, in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from slotmesh.report.charts import chart, ticks
from slotmesh.report.marks import Mark

from ..browser import open_page
from ..looks import LOOKS, cut_off, serious, window
from .test_report import make, tiny, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ERRORS = {"SA": 0.5, "SA-SH": 0.25, "SA-MESH": 0.125}
# What write_run logs as training loss, by step.
LOSS = {10: "0.9", 20: "0.5"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page about three runs of one task and two of another."""
    room = tmp_path_factory.mktemp("runs")
    runs = [
        write_run(room / name, tiny("random-objects", name), metrics={"nrmse": error})
        for name, error in ERRORS.items()
    ]
    properties = {"ap_inf": 0.5, "ap_1": 0.4, "ap_0.5": 0.3, "ap_0.25": 0.2, "ap_0.125": 0.1}
    for name in ("SA", "SA-MESH"):
        settings = tiny("clevr-properties", name)
        runs.append(write_run(room / f"properties-{name}", settings, metrics=properties))
    settings = tiny("multi-dsprites", "SA-MESH")
    runs.append(write_run(room / "sprites", settings, metrics={"fg_ari": 0.5, "fg_miou": 0.25}))
    out = room / "page.html"
    make(runs, out, n_samples=1, n_cases=1)
    return out.as_uri()


@pytest.fixture
def page(browser: "Browser", url: str) -> Iterator["Page"]:
    with open_page(browser, url, viewport={"width": 1280, "height": 844}) as opened:
        yield opened


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_everyone_can_read_it(browser: "Browser", url: str, size: str, scheme: str) -> None:
    with open_page(browser, url, **window(size, scheme)) as page:
        page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
        assert cut_off(page) == []
        assert serious(page) == []


def test_dark_is_dark(browser: "Browser", url: str) -> None:
    ink: list[str] = []
    for scheme in ("light", "dark"):
        with open_page(browser, url, **window("phone", scheme)) as page:
            ink.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    light, dark = ([int(n) for n in re.findall(r"\d+", one)] for one in ink)
    assert min(light) > 200
    assert max(dark) < 60


def names(page: "Page") -> list[str]:
    """The runs in the table of results of the first task, from the top."""
    heads = page.locator("#random-objects .results tbody:first-of-type th[scope=row]")
    return [text.split(",")[0].strip() for text in heads.all_inner_texts()]


def test_runs_are_switched_off_without_scripts(browser: "Browser", url: str) -> None:
    with open_page(browser, url, java_script_enabled=False) as page:
        task = page.locator("#random-objects")
        line = task.locator(".chart .run[data-name^='SA-SH']").first
        picture = task.locator("figure.run", has_text="SA-SH").first
        assert line.is_visible()
        assert picture.is_visible()
        page.get_by_role("checkbox", name="SA-SH, sigma 1.0", exact=True).uncheck()
        assert not line.is_visible()
        assert not picture.is_visible()
        assert task.locator(".results tr.run:visible").count() == 2
        # Those of other tasks stay.
        assert page.locator("#clevr-properties .results tr.run:visible").count() == 2
        page.get_by_role("checkbox", name="SA-SH, sigma 1.0", exact=True).check()
        assert line.is_visible()


def test_pictures_enlarge_without_scripts(browser: "Browser", url: str) -> None:
    with open_page(browser, url, java_script_enabled=False) as page:
        image = page.locator("#multi-dsprites-samples .tile img").first
        before = image.bounding_box()
        image.click(force=True)
        after = image.bounding_box()
        assert before is not None
        assert after is not None
        assert after["width"] > 2 * before["width"]
        page.locator("#multi-dsprites-samples .tile input").first.click(force=True)
        closed = image.bounding_box()
        assert closed is not None
        assert closed["width"] == before["width"]


def test_all_runs_at_once(page: "Page") -> None:
    page.get_by_role("button", name="none").first.click()
    assert page.locator("#random-objects .results tr.run:visible").count() == 0
    page.get_by_role("button", name="all", exact=True).first.click()
    assert page.locator("#random-objects .results tr.run:visible").count() == 3


def test_tables_sort(page: "Page") -> None:
    assert names(page) == list(ERRORS)
    head = page.locator("#random-objects .results th", has_text="RMSE")
    head.get_by_role("button").click()
    assert names(page) == ["SA", "SA-SH", "SA-MESH"]
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").press("Enter")
    assert names(page) == ["SA-MESH", "SA-SH", "SA"]
    assert head.get_attribute("aria-sort") == "ascending"
    by_name = page.locator("#random-objects .results th", has_text="Run").get_by_role("button")
    by_name.click()
    by_name.click()
    assert names(page) == ["SA", "SA-SH", "SA-MESH"]
    assert head.get_attribute("aria-sort") is None
    # The blind baseline is no run: it stays below.
    rows = page.locator("#random-objects .results tbody tr").all_inner_texts()
    assert "blind" in rows[-1]


def test_curves_show_their_values(page: "Page") -> None:
    plot = page.locator("#random-objects .plot", has_text="training loss")
    tip = page.locator(".tip")
    plot.scroll_into_view_if_needed()
    plot.locator("svg").hover(position={"x": 60, "y": 80})
    words = tip.inner_text()
    assert words.startswith("step 10")
    assert words.count(LOSS[10]) == 3
    page.get_by_role("checkbox", name="SA-SH, sigma 1.0", exact=True).uncheck()
    plot.locator("svg").hover(position={"x": 330, "y": 80})
    words = tip.inner_text()
    assert words.startswith("step 20")
    assert words.count(LOSS[20]) == 2
    assert "SA-SH" not in words
    page.mouse.move(2, 2)
    assert not tip.is_visible()


def test_curves_follow_the_arrow_keys(page: "Page") -> None:
    svg = page.locator("#random-objects .plot", has_text="training loss").locator("svg")
    svg.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".tip").inner_text().startswith("step 20")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".tip").inner_text().startswith("step 10")
    page.keyboard.press("Escape")
    assert not page.locator(".tip").is_visible()


def test_the_keyboard_reaches_pictures_and_tables(page: "Page") -> None:
    box = page.locator("#random-objects-samples .zoom input").first
    box.focus()
    page.keyboard.press("Enter")
    assert box.is_checked()
    page.keyboard.press("Escape")
    assert not box.is_checked()
    wide = page.locator("#random-objects .wide").first
    wide.focus()
    assert wide.evaluate("e => e === document.activeElement")


def test_the_contents_lead_to_every_part(page: "Page") -> None:
    links = page.locator("nav a")
    for i in range(links.count()):
        target = links.nth(i).get_attribute("href")
        assert target is not None
        assert page.locator(target).count() == 1
    assert links.count() == 3 * 6


@pytest.mark.parametrize(
    ("curves", "options"),
    [
        ([], {}),
        ([[]], {}),
        ([[(1.0, 0.5)]], {}),
        ([[(0.0, 0.0), (5.0, 0.0)]], {"baseline": 0.0}),
        ([[(0.0, 1e-30), (1e12, 1e30)]], {"baseline": -1.0}),
        ([[(0.0, -3.0), (1.0, 5e99)]], {"percent": True, "baseline": float("nan")}),
    ],
)
def test_odd_curves_are_drawn(curves: list[Any], options: dict[str, Any]) -> None:
    drawn = chart("x & y", [(Mark("<a>", "#123456"), points) for points in curves], **options)
    assert "nan" not in drawn.svg
    assert "inf" not in drawn.svg
    assert "<a>" not in drawn.svg
    assert "x &amp; y" in drawn.svg


def test_what_stays_0_has_an_axis_like_others() -> None:
    drawn = chart("AP 0.0625", [(Mark("SA", "#123456"), [(0.0, 0.0), (5.0, 0.0)])], percent=True)
    levels = re.findall(r'class="end">([^<]+)</text>', drawn.svg)
    assert levels[:6] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]


def test_ticks_are_round() -> None:
    assert ticks(0.0, 1.0, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(93.1, 97.9, 5) == [94, 95, 96, 97]
    assert ticks(2.0, 2.0, 5) == [2]


def test_a_page_about_many_runs_is_small(tmp_path: Path) -> None:
    """Curves share their points; a run costs little more than its row."""
    lines = [[(float(x), 1 / (1 + x + i)) for x in range(1000)] for i in range(200)]
    drawn = chart("loss", [(Mark(f"run {i}", "#123456"), one) for i, one in enumerate(lines)])
    assert len(drawn.svg) < 250_000
