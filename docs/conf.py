"""Sphinx configuration."""

from pathlib import Path
from typing import Any

from slotmesh import __version__
from slotmesh.app.playground import render_playground

project = "slotmesh"
author = "The slotmesh authors"
copyright = "2026, the slotmesh authors"  # noqa: A001
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"slotmesh {version}"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True


def write_playground(app: Any, error: Exception | None) -> None:
    """Beside the other pages, with a link back to them."""
    if error is None and app.builder.format == "html":
        page = render_playground(docs="index.html")
        (Path(app.outdir) / "playground.html").write_text(page, encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("build-finished", write_playground)
