"""The playground: how transports handle a tie, as a single page without Python."""

import json
from functools import cache
from importlib.resources import files


def render_playground(docs: str | None = None) -> str:
    """Render the page, with MESH in plain JavaScript: no server and no other file.

    Args:
        docs: Address of the documentation, to link to.

    Example:
        >>> from slotmesh.app.playground import render_playground
        >>> render_playground().startswith("<!doctype html>")
        True
    """
    links = "" if docs is None else f'<a href="{docs}">Documentation</a>'
    light, dark = colours()
    style = f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    return web_file("page.html") % {"colours": style, "links": links, "script": tie_script()}


def colours() -> tuple[str, str]:
    """Declarations of CSS for the light and for the dark colours of all views."""
    light, _, dark = web_file("colours.css").partition("/* dark */")
    return light.strip(), dark.strip()


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
