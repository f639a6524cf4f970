"""The playground: what transports make of a tie, as one page without Python and other files."""

import json
from functools import cache
from importlib.resources import files


def render_playground(docs: str | None = None) -> str:
    """The page, with MESH in plain JavaScript: no server, no other file.

    Args:
        docs: Address of the documentation, to link to.

    Example:
        >>> from slotmesh.app.playground import render_playground
        >>> render_playground().startswith("<!doctype html>")
        True
    """
    links = "" if docs is None else f'<a href="{docs}">Documentation</a>'
    parts = {"colours": web_file("colours.css"), "links": links, "script": tie_script()}
    return web_file("page.html") % parts


def tie_script() -> str:
    """JavaScript that defines the element ``<slotmesh-tie>``, to stand in a ``<script>``."""
    # A script ends at its closing tag, wherever that is.
    template = json.dumps(web_file("tie.html")).replace("</", "<\\/")
    return "\n".join(
        (web_file("transport.js"), f"const TIE_TEMPLATE = {template};", web_file("tie.js"))
    )


@cache
def web_file(name: str) -> str:
    """A file of ``slotmesh/app/web``."""
    return (files("slotmesh.app") / "web" / name).read_text(encoding="utf-8")
