"""The playground: MESH in JavaScript agrees with slotmesh, and the page does what one expects."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from slotmesh import emd, mesh, sinkhorn
from slotmesh.app.playground import render_playground
from slotmesh.ops import entropy

from ..browser import WIDTHS, open_page, violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "playground.html"
CALL = """([cost, options]) => {
    const found = slotmesh.mesh(cost, options);
    return {
        mesh: found.plan, adjusted: found.cost, entropies: found.plans.map(slotmesh.entropy),
        sinkhorn: slotmesh.sinkhorn(cost, options), emd: slotmesh.emd(cost),
    };
}"""
DRAWN = "() => document.querySelector('slotmesh-tie').entropies.at(-1)"
AT = "([kind, k]) => document.querySelector('slotmesh-tie').state[kind][k]"


def test_the_page_of_the_docs_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_playground(), "run docs/make_playground.py"


@pytest.fixture(scope="module")
def page(browser: "Browser") -> Iterator["Page"]:
    with open_page(browser, PAGE.as_uri()) as opened:
        yield opened


def open_playground(browser: "Browser", query: str = "", **options: Any) -> Any:
    return open_page(browser, PAGE.as_uri() + query, **options)


def tie(m: int, n: int, equal: int, seed: int) -> torch.Tensor:
    """Random costs, the first rows equal."""
    cost = 8 * torch.rand(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cost[:equal] = cost[0]
    return cost


@pytest.mark.parametrize(
    ("cost", "settings"),
    [
        (tie(2, 2, 0, 0), {}),
        (torch.ones(2, 2, dtype=torch.float64), {}),
        (torch.ones(3, 3, dtype=torch.float64), {"noise": 0.0}),
        (tie(3, 6, 2, 1), {"n_iters": 20}),
        (tie(4, 12, 4, 2), {"n_steps": 8, "temperature": 0.3}),
        (tie(6, 4, 0, 3).round(), {"step": 2.5, "n_iters": 3}),
        (tie(5, 1, 2, 4), {"n_steps": 1}),
        (tie(1, 7, 0, 5), {"n_steps": 0}),
        (tie(6, 12, 3, 6), {"noise": 0.1, "step": 0.2, "temperature": 3.0, "n_iters": 50}),
    ],
)
def test_transport_in_javascript(
    page: "Page", cost: torch.Tensor, settings: dict[str, float]
) -> None:
    options: dict[str, Any] = {"step": 1.0, "n_steps": 4, "n_iters": 5, "temperature": 1.0}
    options |= {"noise": 1e-3} | settings
    source = torch.Generator().manual_seed(7)
    noise = options.pop("noise") * torch.randn(cost.shape, generator=source, dtype=torch.float64)
    names = {"n_steps": "nSteps", "n_iters": "nIters"}
    given = {names.get(k, k): v for k, v in options.items()} | {"noise": noise.tolist()}
    found = page.evaluate(CALL, [cost.tolist(), given])

    def same(value: object, expected: torch.Tensor) -> None:
        got = torch.tensor(value, dtype=torch.float64)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)

    expected = mesh(cost, **options, noise=noise)
    same(found["mesh"], expected.plan)
    same(found["adjusted"], expected.cost)
    steps = range(options.pop("n_steps") + 1)
    plans = [mesh(cost, **options, n_steps=k, noise=noise).plan for k in steps]
    same(found["entropies"], entropy(torch.stack(plans)))
    del options["step"]
    same(found["sinkhorn"], sinkhorn(cost, **options).plan)
    # There may be several cheapest plans.
    exact = torch.tensor(found["emd"], dtype=torch.float64)
    m, n = cost.shape
    same((exact * cost).sum().item(), (emd(cost).plan * cost).sum())
    same(exact.sum(0).tolist(), torch.full((n,), m / n, dtype=torch.float64))
    same(exact.sum(1).tolist(), torch.ones(m, dtype=torch.float64))
    assert exact.min() >= 0


def test_noise_is_normal(page: "Page") -> None:
    noise = torch.tensor(page.evaluate("slotmesh.gaussian(60, 60, 3)"))
    assert abs(noise.mean()) < 0.06
    assert abs(noise.std() - 1) < 0.05
    again = torch.tensor(page.evaluate("slotmesh.gaussian(60, 60, 3)"))
    assert torch.equal(again, noise)
    assert not torch.equal(torch.tensor(page.evaluate("slotmesh.gaussian(60, 60, 4)")), noise)


def test_drag(browser: "Browser") -> None:
    with open_playground(browser) as page:
        assert page.evaluate(AT, ["slots", 0]) == page.evaluate(AT, ["slots", 1])
        before = page.evaluate(DRAWN)
        slot = page.get_by_role("slider", name="Slot B")
        box = slot.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 40, y, steps=3)
        # Everything is redrawn before the slot is dropped.
        page.wait_for_function(f"(before) => ({DRAWN})() !== before", arg=before)
        page.mouse.up()
        (left, _), (other, _) = (page.evaluate(AT, ["slots", k]) for k in (1, 0))
        assert left < other
        page.wait_for_function("() => location.search.includes('slots=')")
        link = page.evaluate("location.href")
    with open_page(browser, link) as page:
        assert page.evaluate(AT, ["slots", 1]) == [left, page.evaluate(AT, ["slots", 0])[1]]


def test_a_link_restores_everything(browser: "Browser") -> None:
    query = (
        "?cost=0,0,6;0,0,6;6,6,0&step=0.5&steps=7&iters=9&noise=0.01&temp=0.5&seed=3&show=SA-EMD"
    )
    with open_playground(browser, query) as page:
        shown = page.evaluate("() => document.querySelector('slotmesh-tie').state")
        assert shown["cost"] == [[0, 0, 6], [0, 0, 6], [6, 6, 0]]
        names = ("mode", "step", "steps", "iters", "noise", "temp", "seed", "show")
        assert [shown[k] for k in names] == ["cost", 0.5, 7, 9, 0.01, 0.5, 3, "SA-EMD"]
        page.evaluate("() => document.querySelector('slotmesh-tie').writeLink()")
        assert page.evaluate("location.search") == query
        assert len(page.evaluate("() => document.querySelector('slotmesh-tie').entropies")) == 8


@pytest.mark.parametrize("query", ["?slots=1;2&inputs=x", "?cost=1,2;3", "?steps=-4&temp=zero"])
def test_a_damaged_link_shows_the_first_example(browser: "Browser", query: str) -> None:
    with open_playground(browser, query) as page:
        assert page.evaluate(AT, ["slots", 0]) == [5, 3.4]
        assert page.get_by_text("4 MESH steps").is_visible()


def test_keyboard_only(browser: "Browser") -> None:
    """Tab to a point and move it, then to a slider."""
    with open_playground(browser) as page:
        for _ in range(40):
            page.keyboard.press("Tab")
            focused = page.evaluate(
                "() => document.querySelector('slotmesh-tie').shadowRoot.activeElement"
                "?.getAttribute('aria-label')"
            )
            if focused == "Slot A":
                break
        x, y = page.evaluate(AT, ["slots", 0])
        page.keyboard.press("Shift+ArrowLeft")
        page.keyboard.press("ArrowUp")
        assert page.evaluate(AT, ["slots", 0]) == [x - 1, pytest.approx(y - 0.2)]
        steps = page.get_by_role("slider", name="MESH steps")
        for _ in range(40):
            page.keyboard.press("Tab")
            if steps.evaluate("node => node.matches(':focus')"):
                break
        page.keyboard.press("ArrowRight")
        page.get_by_text("Sinkhorn after 5 MESH steps").wait_for()


def test_costs_and_sizes(browser: "Browser") -> None:
    with open_playground(browser) as page:
        page.get_by_label("Example").select_option("All costs equal")
        page.get_by_label("Cost of slot A and input 2").wait_for()
        # Undecided for all but exact transport and MESH.
        plans = "() => document.querySelector('slotmesh-tie').plans"
        assert page.evaluate(plans)["SA-SH"] == [[0.5, 0.5], [0.5, 0.5]]
        assert max(page.evaluate(plans)["SA-MESH"][0]) > 0.9
        page.get_by_label("Cost of slot A and input 2").fill("9")
        page.wait_for_function(f"() => ({plans})()['SA-SH'][0][0] > 0.9")
        page.get_by_label("One slot more").click()
        page.get_by_label("Cost of slot C and input 1").wait_for()
        page.get_by_role("button", name="Points").click()
        page.get_by_role("button", name="SA-EMD").click()
        page.wait_for_function("() => location.search.includes('show=SA-EMD')")


@pytest.mark.parametrize("width", WIDTHS.values())
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_windows(browser: "Browser", width: int, scheme: Any) -> None:
    size = {"width": width, "height": 900}
    with open_playground(browser, viewport=size, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        ink = page.evaluate("getComputedStyle(document.body).color")
        assert (ink == "rgb(29, 36, 48)") == (scheme == "light")
        box = page.get_by_role("slider", name="Slot C").bounding_box()
        assert box is not None
        assert 0 < box["x"] < width - box["width"]
        assert violations(page) == []
        page.get_by_label("Example").select_option("Four equal slots, four groups")
        page.get_by_role("button", name="Costs").click()
        page.get_by_label("Cost of slot D and input 12").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == width
