"""The command line: ``slotmesh COMMAND``."""

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Union

import tyro
from rich.console import Console
from rich.markup import escape

from slotmesh import __version__, data
from slotmesh.demo import Demo, run_demo
from slotmesh.training.evaluate import Evaluate, run_evaluate
from slotmesh.training.export import ExportModel, run_export_model
from slotmesh.training.report import Report, run_report
from slotmesh.training.score import Score, run_score
from slotmesh.training.segment import Segment, run_segment
from slotmesh.training.tasks import TASKS, preset
from slotmesh.training.train import run_train

Command = tuple[type, Callable[[Any], object]]
"""Settings (a dataclass, whose docstrings are the help text), and what runs them."""

COMMANDS: dict[str, Command] = {
    "demo": (Demo, run_demo),
    "evaluate": (Evaluate, run_evaluate),
    "report": (Report, run_report),
    "export": (ExportModel, run_export_model),
    "segment": (Segment, run_segment),
    "score": (Score, run_score),
}


def groups() -> dict[str, tuple[str, dict[str, Command]]]:
    """Commands of two words; tasks may have been registered since this was imported."""
    tasks: dict[str, Command] = {
        name: (task.settings_type, run_train) for name, task in TASKS.items()
    }
    return {
        "train": ("Train a model on a task, or resume a run that stopped.", tasks),
        "data": ("Look at worlds and datasets, and write them to files.", data.COMMANDS),
    }


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; a mistake of the caller's ends in one line and exit code 1."""
    words = list(sys.argv[1:] if args is None else args)
    if words == ["--version"]:
        Console().print(f"slotmesh {__version__}", highlight=False)
        return
    # Packages that register transports, worlds and tasks of their own.
    for plugin in entry_points(group="slotmesh.plugins"):
        plugin.load()
    about = "Slot attention whose cross-attention is optimal transport."
    run_command(
        lambda: _all_settings(words), lambda s: _runner(type(s))(s), words, "slotmesh", about
    )


def run_command(
    settings: Callable[[], Any],
    run: Callable[[Any], object],
    words: Sequence[str],
    prog: str,
    about: str,
) -> None:
    """Parse the words of a command line and run the command that they name.

    Args:
        settings: Returns the type that the words are parsed into, such as :func:`choices`.
        run: Called with the parsed settings.
        words: The arguments.
        prog: The name of the program.
        about: The first line of its help.
    """
    errors = Console(stderr=True, highlight=False)
    try:
        parsed: Any = tyro.cli(settings(), prog=prog, description=about, args=words)
        run(parsed)
    except (ValueError, OSError) as error:
        errors.print(f"[red]{prog}:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print(f"{prog}: interrupted")
        sys.exit(130)


def _runner(kind: type) -> Callable[[Any], object]:
    more = [command for _, group in groups().values() for command in group.values()]
    return dict([*COMMANDS.values(), *more])[kind]


def choices(commands: dict[str, Command]) -> Any:
    """One type for tyro: a choice of commands by their names."""
    return Union[tuple(_choice(name, kind) for name, (kind, _) in commands.items())]  # noqa: UP007


def _all_settings(words: Sequence[str]) -> Any:
    """One type for tyro: a choice of commands and of groups of commands."""
    found = [_choice(name, kind) for name, (kind, _) in COMMANDS.items()]
    for name, (description, commands) in groups().items():
        group = [
            _choice(task, kind, _start(task, words) if name == "train" else None)
            for task, (kind, _) in commands.items()
        ]
        word = tyro.conf.subcommand(name, description=description)
        found.append(Annotated[Union[tuple(group)], word])  # noqa: UP007
    return Union[tuple(found)]  # noqa: UP007


def _choice(name: str, kind: type, start: Any = None) -> Any:
    if start is None:
        return Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)]
    return Annotated[kind, tyro.conf.subcommand(name, default=start, prefix_name=False)]


def _start(task: str, words: Sequence[str]) -> Any:
    """Where the settings of a task start: its variant, preset and data decide all defaults."""
    if list(words[:2]) != ["train", task]:
        return preset(task)
    given = {name: _value(words, f"--{name}") for name in ("variant", "preset")}
    root, size = (_value(words, f"--data.{name}") for name in ("root", "size"))
    return preset(
        task,
        **{name: value for name, value in given.items() if value is not None},
        root=None if root is None else Path(root),
        # Anything else is for tyro to complain about.
        size=int(size) if size is not None and size.isdecimal() and int(size) > 0 else None,
    )


def _value(words: Sequence[str], flag: str) -> str | None:
    found = None
    for word, after in zip(words, [*words[1:], None], strict=True):
        if word == flag and after is not None:
            found = after
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found
