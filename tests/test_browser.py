"""What the tests of pages rely on: errors and foreign requests of a page fail its test."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .browser import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_a_page(browser: "Browser", tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<title>Seen</title><p id=p></p><script>p.textContent = 6 * 7</script>")
    with open_page(browser, file.as_uri(), color_scheme="dark") as page:
        assert page.title() == "Seen"
        assert page.inner_text("#p") == "42"
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<script>throw Error('broken')</script>", "broken"),
        ("<img src='http://example.invalid/a.png'>", "example.invalid"),
    ],
)
def test_a_bad_page_fails(browser: "Browser", tmp_path: Path, body: str, message: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(body)
    with (
        pytest.raises(AssertionError, match=message),
        open_page(browser, file.as_uri()) as page,
    ):
        page.wait_for_load_state()
