"""HTML pages that need no other file."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_page(template: str, **values: Any) -> str:
    """Fill a template of ``report/templates``; a value that is missing is an error."""
    environment = Environment(
        loader=PackageLoader("slotmesh.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is never seen half-written; where that fails, the old one stays."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
