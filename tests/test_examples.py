"""Every example in a docstring, the README and the documentation runs and prints what it says."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks
import paper
import slotmesh

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = [
    module
    for room in (slotmesh, paper, benchmarks)
    for module in (
        room,
        *(
            importlib.import_module(info.name)
            for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
            # Kernels are imported when they run, natively or interpreted; the page needs Gradio.
            # Neither has examples.
            if "._triton" not in info.name and info.name != "slotmesh.app.page"
        ),
    )
]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(module: ModuleType) -> list[doctest.DocTest]:
    return [t for t in doctest.DocTestFinder().find(module) if t.examples]


@pytest.mark.parametrize(
    "module", [m for m in MODULES if examples(m)], ids=lambda module: module.__name__
)
def test_docstrings(module: ModuleType) -> None:
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, optionflags=FLAGS)
    assert result.failed == 0
    if page.name in ("README.md", "how-mesh-works.md", "choosing-a-transport.md"):
        assert result.attempted > 0


def test_everything_public_has_an_example() -> None:
    """Functions and classes that a user calls; bases and plain records are described instead."""
    described = {
        "BackboneError",
        "BackendStatus",
        "Backends",
        "DecodedFeatures",
        "MeshObjective",
        "Objective",
        "OptimalTransport",
        "SlotAttentionOutput",
        "SlotInitializer",
        "SlotTransport",
        "Transport",
        "TransitionOutput",
    }
    for room in (slotmesh.ops, slotmesh.nn):
        for name in room.__all__:
            thing = getattr(room, name)
            if (isinstance(thing, type) or inspect.isfunction(thing)) and name not in described:
                assert ">>>" in (thing.__doc__ or ""), f"{room.__name__}.{name} has no example"


def test_the_quickstart_is_short() -> None:
    code = (ROOT / "README.md").read_text().split("```python")[1].split("```")[0]
    assert len([line for line in code.strip().splitlines() if line.strip()]) <= 12
