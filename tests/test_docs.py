"""The documentation builds without a warning."""

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_sphinx_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="the documentation's tools are not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(DOCS)]
    built = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "ops.html").read_text()
    assert "slotmesh.mesh" in page
    assert (tmp_path / "_images" / "descent.svg").exists()


def test_pictures_are_made_by_code(tmp_path: Path) -> None:
    """What docs/make_figures.py draws are the pictures that are shown."""
    from paper.figures.descent import draw_descent
    from slotmesh.report.figures import svg_bytes

    shown = (DOCS / "images" / "descent.svg").read_text()
    drawn = svg_bytes(draw_descent()).decode()
    # Rasters may differ in a bit from machine to machine; the numbers written may not.
    texts = [line for line in drawn.splitlines() if line.strip().startswith("<!--")]
    assert texts
    assert texts == [line for line in shown.splitlines() if line.strip().startswith("<!--")]
