"""The documentation builds without a warning."""

import ast
import json
import re
import runpy
import shutil
from pathlib import Path

import pytest

from .processes import Script

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MAP = runpy.run_path(str(DOCS / "make_map.py"))


def test_sphinx_builds_without_warnings(tmp_path: Path) -> None:
    sphinx = pytest.importorskip("sphinx", reason="the documentation's tools are not installed")
    for tool in ("furo", "latex2mathml", "sphinx_gallery"):
        pytest.importorskip(tool, reason="the documentation's tools are not installed")
    # A copy: the gallery's pages are written beside the others. Its scripts are run by
    # test_gallery.py, not here.
    for name in ("docs", "examples"):
        unwanted = shutil.ignore_patterns("_build", "gallery", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=unwanted)
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    out = tmp_path / "html"
    options = ["-W", "-q", "-b", "html", "-D", "sphinx_gallery_conf.plot_gallery=0"]
    command = Path(sphinx.__file__).with_name("__main__.py")
    built = Script(command, tmp_path / "log", *options, tmp_path / "docs", out)
    assert built.wait() == 0, built.output
    assert "slotmesh.mesh" in (out / "ops.html").read_text()
    assert (out / "_images" / "descent.svg").exists()
    # Formulas are drawn by the browser, and no page loads anything from elsewhere.
    source = re.sub(r"```.*?```", "", (DOCS / "how-mesh-works.md").read_text(), flags=re.S)
    formulas = re.findall(r"\$\$.*?\$\$|\$[^$]+\$", source, re.S)
    assert len(formulas) > 10
    assert (out / "how-mesh-works.html").read_text().count("<math") == len(formulas)
    for page in out.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert not loaded, page
    # Every script of the gallery has a page, in the order that was chosen.
    style = runpy.run_path(str(DOCS / "gallery_style.py"))
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert scripts <= set(style["_ORDER"])
    assert all((out / "gallery" / f"{Path(name).stem}.html").exists() for name in scripts)


def test_words_lead_somewhere() -> None:
    page = (DOCS / "words.md").read_text(encoding="utf-8")
    for word in ("dustbin", "unbalanced", "DETR", "router", "own data", "notebook", "DINO"):
        assert re.search(rf"^\|[^|]*\b{word}", page, re.M | re.I), word


def test_pictures_are_made_by_code(tmp_path: Path) -> None:
    """The pictures shown are those that ``python -m docs.make_figures`` draws."""
    from paper.figures.descent import draw_descent
    from slotmesh.report.figures import svg_bytes

    shown = (DOCS / "images" / "descent.svg").read_text()
    drawn = svg_bytes(draw_descent()).decode()
    # Rasters may differ in a bit from machine to machine; the numbers written may not.
    texts = [line for line in drawn.splitlines() if line.strip().startswith("<!--")]
    assert texts
    assert texts == [line for line in shown.splitlines() if line.strip().startswith("<!--")]


# The map of the code.


def exists(path: str) -> bool:
    """Whether a file or folder is there; of a module the ending may be left out."""
    return any((ROOT / name).exists() for name in (path, f"{path}.py"))


def test_the_map_is_up_to_date() -> None:
    shown = (DOCS / "images" / "map.svg").read_text(encoding="utf-8")
    assert shown == MAP["render"](), "run python -m docs.make_map"
    assert "prefers-color-scheme: dark" in shown


def test_every_path_on_the_map_exists() -> None:
    rooms = [path for layer in MAP["ROOMS"] for _, path, _ in layer]
    steps = [path for _, _, path, _ in MAP["STEPS"]]
    assert len(steps) == 13
    for path in [*rooms, *steps]:
        assert exists(f"{MAP['LIBRARY']}/{path}"), path
    for path, _ in MAP["BESIDE"]:
        assert exists(path), path
    # Every room is on it, and the page tells of every step.
    library = ROOT / MAP["LIBRARY"]
    folders = {init.parent.name for init in library.glob("*/__init__.py")}
    assert folders == {Path(room).name for room in rooms if not room.endswith(".py")}
    page = (DOCS / "map.md").read_text(encoding="utf-8")
    for path in steps:
        assert f"`{path}`" in page, path


@pytest.mark.parametrize("page", ["docs/map.md", "CONTRIBUTING.md"])
def test_every_path_on_a_page_exists(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    named = re.findall(r"`([\w./-]+)`", text)
    paths = [path for path in named if "/" in path or path.endswith((".py", ".md", ".txt"))]
    assert len(paths) > 5
    for path in paths:
        # Made by `make setup`, which not every machine that runs the tests needs.
        if path.startswith(".venv/"):
            continue
        assert exists(path) or exists(f"{MAP['LIBRARY']}/{path}"), path


def test_no_room_imports_from_a_row_above_it() -> None:
    library = ROOT / MAP["LIBRARY"]
    row = {Path(path).stem: i for i, layer in enumerate(MAP["ROOMS"]) for _, path, _ in layer}
    for file in library.rglob("*.py"):
        room = file.relative_to(library).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                parts = name.split(".")
                other = parts[1] if parts[0] == "slotmesh" and len(parts) > 1 else ""
                assert row.get(other, 99) >= row.get(room, 0), f"{file} imports {name}"


# Slots on frozen features.

FROZEN = runpy.run_path(str(DOCS / "make_frozen_features.py"))


def test_the_measured_part_of_a_page_is_what_was_measured() -> None:
    """Nothing is there before it was measured; afterwards, the numbers of the result."""
    page = FROZEN["PAGE"].read_text(encoding="utf-8")
    shown = page.split(FROZEN["BEGIN"])[1].split(FROZEN["END"])[0]
    if FROZEN["RESULT"].is_file():
        assert FROZEN["render"](json.loads(FROZEN["RESULT"].read_text())) in shown
    else:
        assert not shown.strip()


def test_the_measured_part_of_a_page_is_replaced() -> None:
    metrics = {"fg_ari": 0.5, "fg_miou": 0.25, "mbo": 0.125}
    one = {
        "metrics": metrics,
        "blind": {"metrics": metrics},
        "n": 1000,
        "settings": {"steps": 3000, "data.batch_size": 32, "model.layers": 3, "model.hidden": 8},
    }
    found = {
        "variants": {"SA": one, "SA-MESH": one},
        "encoder": {"settings": {"encoder_steps": 10, "encoder_batch": 4}},
        "environment": {"device": "a GPU"},
    }
    part = FROZEN["render"](found)
    assert "| SA-MESH | 50.0 | 25.0 | 12.5 |" in part
    assert "on 1,000 test images" in part
    page = f"before\n{FROZEN['BEGIN']}old\n{FROZEN['END']}after\n"
    new = FROZEN["updated"](page, part)
    assert "old" not in new
    assert FROZEN["updated"](new, part) == new
    assert new.startswith("before\n")
    assert new.endswith("after\n")
