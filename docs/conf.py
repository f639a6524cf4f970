"""Sphinx configuration."""

import sys
from pathlib import Path
from typing import Any

from slotmesh import __version__
from slotmesh.app.playground import render_playground

sys.path.insert(0, str(Path(__file__).parent))

project = "slotmesh"
author = "The slotmesh authors"
copyright = "2026, the slotmesh authors"  # noqa: A001
version = release = __version__

extensions = [
    "myst_parser",
    "page_parts",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"slotmesh {version}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#a3195b", "color-brand-content": "#a3195b"},
    "dark_css_variables": {"color-brand-primary": "#f08ab8", "color-brand-content": "#f08ab8"},
}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "gallery_style.Order",
    "image_scrapers": ("gallery_style.scrape",),
    "reset_modules": ("matplotlib", "gallery_style.restyle"),
    "doc_module": ("slotmesh",),
    "inspect_global_variables": False,
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "show_memory": False,
    "abort_on_example_error": True,
    "thumbnail_size": (480, 270),
}


def write_playground(app: Any, error: Exception | None) -> None:
    """Beside the other pages, with a link back to them."""
    if error is None and app.builder.format == "html":
        page = render_playground(docs="index.html")
        (Path(app.outdir) / "playground.html").write_text(page, encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("build-finished", write_playground)
