"""HTML pages that need no other file."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_page(template: str, **values: Any) -> str:
    """Fill a template of ``report/templates``; a missing value is an error."""
    environment = Environment(
        loader=PackageLoader("slotmesh.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
