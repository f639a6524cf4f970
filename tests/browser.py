"""A real browser for the tests of pages: Chromium without a window, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 120_000
"""Milliseconds to wait for a condition: long, because a busy machine is no reason to fail."""
WIDTHS = {"phone": 390, "desktop": 1280}
"""Widths of the window that pages are looked at in."""

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def open_browser() -> Iterator["Browser"]:
    """Chromium; skips the test with a reason where it or Playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"needs Chromium: none of {', '.join(_NAMES)} is installed")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(
            executable_path=path, args=list(_ARGUMENTS), timeout=PATIENCE
        )
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def open_page(browser: "Browser", url: str = "about:blank", **options: Any) -> Iterator["Page"]:
    """A page in a profile of its own that must end without an error and without other hosts.

    Args:
        browser: From the fixture of this name.
        url: Of the page.
        options: For ``browser.new_context``, such as ``color_scheme="dark"`` or
            ``viewport={"width": 390, "height": 844}``.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    home = urlsplit(url).netloc
    errors: list[str] = []
    strangers: set[str] = set()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)

    def watch(request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about", "file") and parts.netloc != home:
            strangers.add(request.url)

    context.on("request", watch)
    try:
        if url != "about:blank":
            page.goto(url, timeout=PATIENCE)
        yield page
        assert not strangers, f"asked other hosts: {sorted(strangers)}"
        assert not errors, errors
    finally:
        context.close()


def violations(page: "Page") -> list[str]:
    """What axe finds wrong for people who cannot see, or not well; nothing where it is missing."""
    if find_spec("axe_playwright_python") is None:
        return []
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]
