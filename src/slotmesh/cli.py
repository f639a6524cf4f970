"""The command line: ``slotmesh COMMAND``."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro
from rich.console import Console

from slotmesh import __version__
from slotmesh.experiments.demo import Demo, run_demo

COMMANDS: dict[str, tuple[type, Callable[[Any], object]]] = {"demo": (Demo, run_demo)}
"""Name, settings (a dataclass, whose docstrings are the help text), and what runs them."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; a mistake of the caller's ends in one line and exit code 1."""
    if list(sys.argv[1:] if args is None else args) == ["--version"]:
        Console().print(f"slotmesh {__version__}", highlight=False)
        return
    settings: Any = tyro.extras.subcommand_cli_from_dict(
        {name: kind for name, (kind, _) in COMMANDS.items()},
        prog="slotmesh",
        description="Slot attention whose cross-attention is optimal transport.",
        args=args,
    )
    errors = Console(stderr=True, highlight=False)
    try:
        next(run for kind, run in COMMANDS.values() if type(settings) is kind)(settings)
    except (ValueError, OSError) as error:
        errors.print(f"[red]slotmesh:[/red] {error}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("slotmesh: interrupted")
        sys.exit(130)
