"""``slotmesh explore`` as a person meets it, in a real browser."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from slotmesh.app import explore
from slotmesh.app.explore import Explore, run_explore
from slotmesh.app.pictures import MOST_BYTES, as_image, world_scene
from slotmesh.cli import main

from ..browser import WIDTHS, open_page, violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OBJECTS = "#slotmesh-objects .slotmesh-view"
PROPERTIES = "#slotmesh-properties .slotmesh-view"


@pytest.fixture(scope="module")
def url(browser: "Browser") -> Iterator[str]:
    """The command, run as it is typed; where there is no browser, it is not even started."""

    if find_spec("gradio") is None:
        pytest.skip("needs gradio")
    command = [sys.executable, "-u", "-m", "slotmesh", "explore"]
    # A proxy that is out of reach does not matter, since nothing goes out.
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | proxies,
    ) as server:
        assert server.stdout is not None
        stop = threading.Timer(300, server.kill)
        stop.start()
        try:
            said = []
            for line in server.stdout:
                said.append(line)
                if found := re.search(r"Explore at (http://127\.0\.0\.1:\d+/)", line):
                    break
            else:
                pytest.fail("".join(said))
            stop.cancel()
            yield found[1]
        finally:
            stop.cancel()
            server.kill()


def wait_for_link(page: "Page", part: str) -> str:
    """The address of the page, once it has this part."""
    page.wait_for_function("part => location.search.includes(part)", arg=part)
    return page.evaluate("location.href")


def open_tab(page: "Page", name: str, view: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    page.locator(view).wait_for()


def source(page: "Page", k: int = 1) -> str:
    """The picture that the left (0) or right (1) model made."""
    return page.locator(".slotmesh-reconstruction").nth(k).get_attribute("src") or ""


def wait_until_changed(page: "Page", before: str, k: int = 1) -> None:
    code = """([k, before]) => {
        const shown = document.querySelectorAll('.slotmesh-reconstruction')[k];
        return shown && shown.src !== before;
    }"""
    page.wait_for_function(code, arg=[k, before])


def tab_to(page: "Page", reached: str, key: str = "Tab") -> None:
    """Press Tab until the focus is where the expression is true."""
    for _ in range(60):
        page.keyboard.press(key)
        if page.evaluate(f"() => {reached}"):
            return
    pytest.fail(f"Tab never comes to: {reached}")


def test_tie(browser: "Browser", url: str) -> None:
    """Open, drag, and follow the link."""
    with open_page(browser, url) as page:
        slot = page.get_by_role("slider", name="Slot C")
        slot.wait_for()
        box = slot.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 60, y - 30, steps=4)
        page.mouse.up()
        link = wait_for_link(page, "view=tie")
        at = page.evaluate("() => document.querySelector('slotmesh-tie').state.slots[2]")
        assert at != [5.2, 7]
    with open_page(browser, link) as page:
        page.get_by_role("slider", name="Slot C").wait_for()
        assert at == page.evaluate("() => document.querySelector('slotmesh-tie').state.slots[2]")


def test_objects(browser: "Browser", url: str) -> None:
    """Switch a slot off, look at another iteration, take more slots, and follow the link."""
    with open_page(browser, url) as page:
        open_tab(page, "Objects", OBJECTS)
        assert page.locator(".slotmesh-panel").count() == 2
        before = source(page)
        page.locator("#slotmesh-on-right").get_by_label("2").uncheck()
        wait_until_changed(page, before)
        page.locator(".slotmesh-panel").nth(1).get_by_text("1 off").wait_for()
        iteration = page.get_by_role("slider", name="Attention of iteration")
        iteration.press("ArrowLeft")
        page.get_by_text("Attention of iteration 2 of 3").first.wait_for()
        iteration.press("ArrowLeft")
        page.get_by_text("Attention of iteration 1 of 3").first.wait_for()
        link, shown = wait_for_link(page, "iteration=1"), source(page)
        assert "off_right=2" in link
        n_slots = page.get_by_role("slider", name="range slider for Slots")
        n_slots.press("ArrowRight")
        n_slots.press("ArrowRight")
        page.get_by_text("8 slots, trained with 6").first.wait_for()
        assert "off_right" not in wait_for_link(page, "slots=8")
        before = source(page)
        page.get_by_role("button", name="Next").first.click()
        wait_until_changed(page, before)
        wait_for_link(page, "scene=7")
    with open_page(browser, link) as page:
        page.locator(OBJECTS).wait_for()
        assert source(page) == shown
        right = page.locator("#slotmesh-on-right")
        assert not right.get_by_label("2").is_checked()
        assert right.get_by_label("3").is_checked()


def test_numbers_outside_their_limits(browser: "Browser", url: str) -> None:
    with open_page(browser, f"{url}?view=objects") as page:
        page.locator(OBJECTS).wait_for()
        for label, wrong, part, right in (
            ("Scene", "-5", "scene=0", "0"),
            ("Scene", "2.5", "scene=2", "2"),
            ("Scene", "3.5", "scene=4", "4"),
            ("Scene", "4.7", "scene=5", "5"),
            ("Scene", "99999999999999999999", "scene=999999", "999999"),
            ("Seed of the first slots", "-1", "scene=999999", "0"),
            ("Seed of the first slots", "5000000000", "seed=2147483648", "2147483648"),
        ):
            number = page.get_by_label(label).first
            number.fill(wrong)
            wait_for_link(page, part)
            number.press("Tab")
            page.wait_for_function(
                "([e, v]) => e.value === v", arg=[number.element_handle(), right]
            )
        # Nothing else is held up.
        page.get_by_role("slider", name="range slider for Slots").press("Home")
        page.get_by_text("1 slot, trained with 6").first.wait_for()


def test_uploads(browser: "Browser", url: str, tmp_path: Path) -> None:
    image = tmp_path / "mine.png"
    as_image(world_scene("multi-dsprites", 11).pixels).resize((100, 80)).save(image)
    note = tmp_path / "note.png"
    note.write_text("no image")
    wide = tmp_path / "wide.png"
    Image.new("L", (5000, 4000)).save(wide)
    heavy = tmp_path / "heavy.png"
    heavy.write_bytes(bytes(MOST_BYTES + 1))
    with open_page(browser, f"{url}?view=objects") as page:
        page.locator(OBJECTS).wait_for()
        upload = page.locator("input[type=file]").first
        for bad, words in (
            (note, "note.png cannot be used: it is not a PNG, JPEG, WebP, BMP, TIFF or GIF"),
            (wide, "5,000 x 4,000 pixels, expected at most 16,000,000"),
            (heavy, "heavy.png cannot be used: it has 10.1 MB, expected at most 10 MB"),
        ):
            upload.set_input_files(bad)
            page.get_by_role("alert").get_by_text(words).wait_for()
        edge = "e => getComputedStyle(e).borderTopWidth"
        assert page.get_by_role("alert").evaluate(edge) == "1px"
        before = source(page)
        upload.set_input_files(image)
        page.get_by_role("heading", name="mine.png").wait_for()
        page.get_by_role("alert").wait_for(state="detached")
        assert source(page) != before
        # The same pixels under another name.
        upload.set_input_files(image.rename(tmp_path / "ours.png"))
        page.get_by_role("heading", name="ours.png").wait_for()
        # A scene again.
        page.get_by_role("button", name="Next").first.click()
        page.get_by_role("heading", name="multi-dsprites, scene 7").wait_for()


def test_properties(browser: "Browser", url: str) -> None:
    with open_page(browser, url) as page:
        open_tab(page, "Properties", PROPERTIES)
        page.get_by_role("table").get_by_text("8 objects").wait_for()
        page.get_by_role("row", name=re.compile("large brown metal cube")).wait_for()
        wait_for_link(page, "view=properties")
        page.get_by_role("button", name="Next").last.click()
        page.get_by_role("heading", name="clevr, scene 1").wait_for()
        link = wait_for_link(page, "scene=1")
        words = page.locator(f"{PROPERTIES} table").inner_text()
    with open_page(browser, link) as page:
        page.get_by_role("heading", name="clevr, scene 1").wait_for()
        assert page.locator(f"{PROPERTIES} table").inner_text() == words


def test_keyboard_only(browser: "Browser", url: str) -> None:
    """Tab and Enter to the view, Tab and Space to switch a slot off."""
    with open_page(browser, url) as page:
        page.get_by_role("slider", name="Slot C").wait_for()
        tab_to(page, "document.activeElement.textContent === 'Objects'")
        page.keyboard.press("Enter")
        page.locator(OBJECTS).wait_for()
        page.get_by_text("6 slots").first.wait_for()
        page.locator("input[type=checkbox]:visible").first.wait_for()
        before = source(page, 0)
        tab_to(page, "document.activeElement.type === 'checkbox'")
        page.keyboard.press("Space")
        wait_until_changed(page, before, 0)
        page.get_by_text("6 slots; 1 off").wait_for()
        # Passing through the settings changes nothing.
        tab_to(page, "document.activeElement.ariaLabel === 'World'", "Shift+Tab")
        tab_to(page, "document.activeElement.type === 'range'")
        page.keyboard.press("ArrowLeft")
        page.get_by_text("6 slots; 1 off. Attention of iteration 2 of 3").wait_for()


def test_an_upload_stays_while_the_focus_passes(
    browser: "Browser", url: str, tmp_path: Path
) -> None:
    image = tmp_path / "mine.png"
    as_image(world_scene("multi-dsprites", 11).pixels).save(image)
    with open_page(browser, f"{url}?view=objects") as page:
        page.locator(OBJECTS).wait_for()
        page.locator("input[type=file]").first.set_input_files(image)
        page.get_by_role("heading", name="mine.png").wait_for()
        page.get_by_label("World").focus()
        tab_to(page, "document.activeElement.type === 'range'")
        page.keyboard.press("ArrowLeft")
        page.get_by_text("Attention of iteration 2 of 3").first.wait_for()
        assert page.get_by_role("heading", name="mine.png").is_visible()


NARROW, WIDE = WIDTHS.values()


@pytest.mark.parametrize(
    ("scheme", "width", "other"), [("light", NARROW, WIDE), ("dark", WIDE, NARROW)]
)
def test_windows(browser: "Browser", url: str, scheme: Any, width: int, other: int) -> None:
    size = {"width": width, "height": 900}
    with open_page(browser, f"{url}?view=properties", viewport=size, color_scheme=scheme) as page:
        for name, view in (
            ("Properties", PROPERTIES),
            ("Objects", OBJECTS),
            ("Tie", "slotmesh-tie"),
        ):
            open_tab(page, name, view)
            ink = page.locator(view).evaluate("node => getComputedStyle(node).color")
            assert (ink == "rgb(29, 36, 48)") == (scheme == "light")
            # Views fade in, during which nothing has its colours.
            page.wait_for_function(
                "() => document.getAnimations().every(a => a.playState !== 'running')"
            )
            assert violations(page) == []
            for pixels in (width, other, width):
                page.set_viewport_size({"width": pixels, "height": 900})
                # Nothing is wider than the window, once what is drawn by code has followed.
                page.wait_for_function(
                    "width => document.documentElement.scrollWidth === width", arg=pixels
                )


def test_a_phone_shows_the_whole_table(browser: "Browser", url: str) -> None:
    size = {"width": NARROW, "height": 900}
    with open_page(browser, f"{url}?view=properties", viewport=size) as page:
        page.locator(f"{PROPERTIES} table").wait_for()
        wide = page.locator(f"{PROPERTIES} .slotmesh-wide")
        assert wide.evaluate("node => node.scrollWidth <= node.clientWidth")


def test_seven_slots_make_two_rows_of_about_the_same_length(browser: "Browser", url: str) -> None:
    size = {"width": WIDE, "height": 900}
    with open_page(browser, f"{url}?view=objects&slots=7", viewport=size) as page:
        page.locator(OBJECTS).wait_for()
        slots = page.locator(".slotmesh-slots").first.locator("li")
        tops = slots.evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
        assert [tops.count(top) for top in sorted(set(tops))] == [4, 3]


def test_models_have_short_names_that_differ() -> None:
    pytest.importorskip("gradio")
    from slotmesh.app.page import model_choices

    run, export = "runs/images/mine-SA-quick-0", "exports/multi-dsprites-sa"
    assert model_choices(["multi-dsprites-sa", run]) == [
        ("multi-dsprites-sa", "multi-dsprites-sa"),
        ("mine-SA-quick-0", run),
    ]
    assert model_choices(["multi-dsprites-sa", export])[1] == (export, export)


def test_without_gradio(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explore, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["explore"])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install 'gradio>=6.10'" in said


def test_a_port_that_is_taken() -> None:
    if find_spec("gradio") is None:
        pytest.skip("needs gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"served at 127\.0\.0\.1:{port}: the port is taken"):
            run_explore(Explore(port=port))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Explore(port=0), "--port is 0, expected 1 to 65535"),
        (Explore("nothing"), "nothing is not a run, an export or a checkpoint"),
        (Explore(device="moon"), "--device is 'moon'"),
        (Explore(host="192.0.2.1"), "cannot be served at 192.0.2.1"),
    ],
)
def test_mistakes(settings: Explore, message: str) -> None:
    if find_spec("gradio") is None:
        pytest.skip("needs gradio")
    with pytest.raises(ValueError, match=re.escape(message)):
        run_explore(settings)
