"""Sphinx configuration."""

from slotmesh import __version__

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
