"""``slotmesh data``: preview, export and convert worlds and datasets."""

from collections.abc import Callable
from typing import Any

from slotmesh.data.bench import Bench, run_bench
from slotmesh.data.convert import Convert, run_convert
from slotmesh.data.export import Export, run_export
from slotmesh.data.preview import Preview, run_preview
from slotmesh.data.stats import Stats, run_stats

COMMANDS: dict[str, tuple[type, Callable[[Any], object]]] = {
    "preview": (Preview, run_preview),
    "export": (Export, run_export),
    "convert": (Convert, run_convert),
    "stats": (Stats, run_stats),
    "bench": (Bench, run_bench),
}
"""Name, settings (a dataclass, whose docstrings are the help text), and what runs them."""

__all__ = [
    "COMMANDS",
    "Bench",
    "Convert",
    "Export",
    "Preview",
    "Stats",
    "run_bench",
    "run_convert",
    "run_export",
    "run_preview",
    "run_stats",
]
