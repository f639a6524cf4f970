"""The command line: ``slotmesh COMMAND``."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union

import tyro
from rich.console import Console

from slotmesh import __version__
from slotmesh.experiments import data
from slotmesh.experiments.demo import Demo, run_demo

Command = tuple[type, Callable[[Any], object]]
"""Settings (a dataclass, whose docstrings are the help text), and what runs them."""

COMMANDS: dict[str, Command] = {"demo": (Demo, run_demo)}
GROUPS: dict[str, tuple[str, dict[str, Command]]] = {
    "data": ("Look at worlds and datasets, and write them to files.", data.COMMANDS),
}


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; a mistake of the caller's ends in one line and exit code 1."""
    if list(sys.argv[1:] if args is None else args) == ["--version"]:
        Console().print(f"slotmesh {__version__}", highlight=False)
        return
    settings: Any = tyro.cli(
        _all_settings(),
        prog="slotmesh",
        description="Slot attention whose cross-attention is optimal transport.",
        args=args,
    )
    runs = dict([*COMMANDS.values(), *(c for _, group in GROUPS.values() for c in group.values())])
    errors = Console(stderr=True, highlight=False)
    try:
        runs[type(settings)](settings)
    except (ValueError, OSError) as error:
        errors.print(f"[red]slotmesh:[/red] {error}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("slotmesh: interrupted")
        sys.exit(130)


def _all_settings() -> Any:
    """One type for tyro: a choice of commands and of groups of commands."""
    choices = _choices(COMMANDS)
    for name, (description, commands) in GROUPS.items():
        word = tyro.conf.subcommand(name, description=description)
        choices.append(Annotated[Union[tuple(_choices(commands))], word])  # noqa: UP007
    return Union[tuple(choices)]  # noqa: UP007


def _choices(commands: dict[str, Command]) -> list[Any]:
    return [
        Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)]
        for name, (kind, _) in commands.items()
    ]
