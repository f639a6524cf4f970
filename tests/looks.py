"""What every page has to be in every window: readable, whole, and of use to everyone."""

from typing import TYPE_CHECKING, Any

import pytest

from .browser import WIDTHS

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOOKS = list(zip(WIDTHS, ("light", "dark"), strict=True))
"""Windows that pages are looked at in; what fits does not depend on colours."""


def window(name: str, scheme: str) -> dict[str, Any]:
    """Options of a browser context."""
    return {"viewport": {"width": WIDTHS[name], "height": 844}, "color_scheme": scheme}


def serious(page: "Page") -> list[str]:
    """What axe-core finds serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['target']} {node.get('failureSummary', '')}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def cut_off(page: "Page") -> list[str]:
    """Elements that reach beyond the window, or whose text does not fit into them.

    What is inside of something that scrolls, and that the keyboard can reach, can be seen.
    """
    return page.evaluate(
        """() => {
          const bad = [];
          if (document.documentElement.scrollWidth > innerWidth) bad.push("the page is too wide");
          for (const e of document.querySelectorAll("main *, nav *")) {
            if (e.closest(".wide[tabindex], .vh, svg") || !e.checkVisibility()) continue;
            const box = e.getBoundingClientRect();
            if (!box.width) continue;
            const clipped = getComputedStyle(e).overflowX !== "visible"
              && e.scrollWidth > e.clientWidth + 1;
            const hidden = (a) => a && (getComputedStyle(a).clipPath !== "none"
              || hidden(a.parentElement));
            if ((box.right > innerWidth + 1 || box.left < -1 || clipped) && !hidden(e))
              bad.push(`${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 40)}`);
          }
          return bad;
        }"""
    )
