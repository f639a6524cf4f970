"""The command line: ``slotmesh COMMAND``.

Nothing heavy is imported before the command is known.
"""

import difflib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, Union

from slotmesh import __version__
from slotmesh.files import is_full, make_room

Command = tuple[type, Callable[[Any], object]]
"""Settings (a dataclass whose docstrings are the help text), and the function that runs them."""


class Entry(NamedTuple):
    """Where to import a command from, once it is needed."""

    module: str
    settings: str
    """A dataclass in the module, or a dict of subcommands by name."""
    run: str
    """The function that runs the settings; empty if there are subcommands."""
    about: str
    """The help text."""

    def load(self) -> Any:
        """Import the command, or its subcommands."""
        module = import_module(self.module)
        found = getattr(module, self.settings)
        return found if isinstance(found, dict) else (found, getattr(module, self.run))


COMMANDS = {
    "demo": Entry("slotmesh.demo", "Demo", "run_demo", "Watch MESH break a tie and find objects."),
    "train": Entry(
        "slotmesh.training.tasks", "TASKS", "", "Train a model on a task, or resume a run."
    ),
    "evaluate": Entry(
        "slotmesh.training.evaluate", "Evaluate", "run_evaluate", "Evaluate a trained model."
    ),
    "report": Entry("slotmesh.training.report", "Report", "run_report", "Write a report on runs."),
    "export": Entry(
        "slotmesh.training.export",
        "ExportModel",
        "run_export_model",
        "Export a trained model for from_pretrained.",
    ),
    "segment": Entry(
        "slotmesh.training.segment", "Segment", "run_segment", "Find the objects in your images."
    ),
    "score": Entry(
        "slotmesh.training.score", "Score", "run_score", "Compare two folders of masks."
    ),
    "explore": Entry(
        "slotmesh.app.explore", "Explore", "run_explore", "Explore slots in the browser."
    ),
    "data": Entry(
        "slotmesh.data", "COMMANDS", "", "Preview, export and convert worlds and datasets."
    ),
}
"""All commands, in the order of the help."""
# The name that tyro uses.
_COMPLETION = "--tyro-print-completion"


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; on a user's mistake, print one line and exit with code 1 or 2."""
    words = list(sys.argv[1:] if args is None else args)
    for name in ("stdout", "stderr"):
        # None if it was closed before Python started, as services may do.
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (stays open)
            setattr(sys, name, nowhere)
    with one_line_errors("slotmesh"):
        _main(words)


def _main(words: list[str]) -> None:
    if words and words[0] in ("-h", "--help"):
        _say(_help())
    elif words == ["--version"]:
        _say(f"slotmesh {__version__}")
    elif not words:
        _say(_help(), error=True)
        sys.exit(2)
    elif words[0] == _COMPLETION:
        _completion(words)
    elif words[0] not in COMMANDS:
        _unknown("slotmesh", words[0], COMMANDS)
    else:
        with _starting("slotmesh") as started:
            from slotmesh.environment import running

            with running(["slotmesh", *words]):
                _dispatch(words, started)


@contextmanager
def one_line_errors(prog: str) -> Iterator[None]:
    """Print expected errors (ValueError, OSError, Ctrl-C) as one line and exit."""
    try:
        try:
            yield
        finally:
            # Not when Python exits, when an error would be a traceback.
            sys.stdout.flush()
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            sys.exit(141)  # as shells count SIGPIPE
        from rich.console import Console
        from rich.markup import escape

        errors = Console(stderr=True, highlight=False)
        errors.print(f"[red]{prog}:[/red] {escape(_words(error))}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        _say(f"{prog}: interrupted", error=True)
        sys.exit(130)


def _words(error: ValueError | OSError) -> str:
    """The message of an error; for errors of the system, without their number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        said = f"{error.filename}: {error.strerror}"
        return f"{said}. {make_room(error)}." if is_full(error) else said
    return str(error)


def _nobody_reads() -> bool:
    """Whether the reader of the output has exited, as `head` does; if so, discard the rest."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


@contextmanager
def _starting(prog: str) -> Iterator[Callable[[], None]]:
    """Let Ctrl-C exit at once with one line, until the function that is yielded is called.

    During imports, a KeyboardInterrupt may be turned into another error, or get lost.
    """
    before = signal.getsignal(signal.SIGINT)

    def leave(*_: object) -> NoReturn:
        os.write(2, f"{prog}: interrupted\n".encode())
        os._exit(130)

    def started() -> None:
        if mine:
            signal.signal(signal.SIGINT, before)

    # Only the main thread may set a handler; a handler of the caller is left alone.
    here = threading.current_thread() is threading.main_thread()
    mine = here and before is signal.default_int_handler
    if mine:
        signal.signal(signal.SIGINT, leave)
    try:
        yield started
    finally:
        started()


def _parse(kind: Any, **options: Any) -> Any:
    """Call ``tyro.cli`` with re-flowed help texts: it would keep breaks before some lines."""
    import tyro

    with suppress(ImportError):
        from tyro import _strings

        _strings.remove_single_line_breaks = _flow
    return tyro.cli(kind, **options)


def _flow(text: str) -> str:
    """Join the lines of each paragraph."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def run_one_of(
    commands: Mapping[str, Command],
    words: Sequence[str],
    prog: str,
    about: str,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Run the subcommand that the first word names.

    Args:
        commands: Subcommands by name.
        words: The arguments, starting with the name of the subcommand.
        prog: The words before them, for the help.
        about: Description of the subcommands, for the help.
        started: Called when everything is imported and parsed, before the command runs.
    """
    import tyro

    if words and words[0] in commands:
        kind, run = commands[words[0]]
        settings = _parse(kind, prog=f"{prog} {words[0]}", args=words[1:])
        started()
        run(settings)
    elif words and not words[0].startswith("-"):
        _unknown(prog, words[0], commands)
    else:
        subcommands = tuple(
            Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)]
            for name, (kind, _) in commands.items()
        )
        either: Any = Union[subcommands]  # noqa: UP007
        _parse(either, prog=prog, description=about, args=words)


def _dispatch(words: list[str], started: Callable[[], None]) -> None:
    from importlib.metadata import entry_points

    # Installed packages that register their own transports, worlds and tasks.
    for plugin in entry_points(group="slotmesh.plugins"):
        plugin.load()
    entry = COMMANDS[words[0]]
    prog = f"slotmesh {words[0]}"
    if words[0] == "train":
        _train(words[1:], prog, entry.about, started)
    elif entry.run:
        kind, run = entry.load()
        settings = _parse(kind, prog=prog, args=words[1:])
        started()
        run(settings)
    else:
        run_one_of(entry.load(), words[1:], prog, entry.about, started)


def _train(words: list[str], prog: str, about: str, started: Callable[[], None]) -> None:
    from slotmesh.training.loop import run_train
    from slotmesh.training.tasks import TASKS

    if words and words[0] in TASKS:
        settings = parse_train(words, prog)
        started()
        run_train(settings)
    else:
        commands = {name: (task.settings_type, run_train) for name, task in TASKS.items()}
        run_one_of(commands, words, prog, about)


def _completion(words: list[str]) -> None:
    """Print a script for a shell that completes all commands and options."""
    import tyro

    from slotmesh.training.tasks import TASKS

    def one_of(commands: Mapping[str, Any]) -> Any:
        return Union[  # noqa: UP007
            tuple(
                Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)]
                for name, kind in commands.items()
            )
        ]

    tasks = {name: task.settings_type for name, task in TASKS.items()}
    kinds: dict[str, Any] = {}
    for name, entry in COMMANDS.items():
        if name == "train":
            kinds[name] = one_of(tasks)
        elif entry.run:
            kinds[name] = entry.load()[0]
        else:
            kinds[name] = one_of({second: kind for second, (kind, _) in entry.load().items()})
    _parse(one_of(kinds), prog="slotmesh", args=words)


def parse_train(words: Sequence[str], prog: str = "slotmesh train") -> Any:
    """Parse the words after ``slotmesh train``, of which the first is the task."""
    from slotmesh.training.runs import with_kept_defaults
    from slotmesh.training.tasks import preset

    task, *rest = words
    # The variant, the preset and the data decide all other defaults.
    given = {name: _value(rest, f"--{name}") for name in ("variant", "preset")}
    root, size, masks = (_value(rest, f"--data.{name}") for name in ("root", "size", "masks"))
    start = preset(
        task,
        **{name: value for name, value in given.items() if value is not None},
        root=None if root is None else Path(root),
        # tyro reports anything else as an error.
        size=int(size) if size is not None and size.isdecimal() and int(size) > 0 else None,
        masks=None if masks in (None, "None") else Path(masks),
    )
    _check_flags(start, rest)
    if root is not None and hasattr(start.data, "root") and "--overwrite" not in rest:
        seed, out = (_value(rest, f"--{name}") for name in ("seed", "out"))
        there = replace(
            start,
            seed=int(seed) if seed is not None and seed.isdecimal() else start.seed,
            out=None if out is None else Path(out),
            data=replace(start.data, root=Path(root)),
        )
        start = with_kept_defaults(start, Path(root), there.folder)
    lr, step = (_value(rest, f"--transport.{name}") for name in ("lr", "step"))
    if lr is None and step not in (None, "None") and hasattr(start.transport, "step"):
        # A step replaces the preset's lr.
        start = replace(start, transport=replace(start.transport, lr=None))
    return _parse(type(start), default=start, prog=f"{prog} {task}", args=rest)


def _check_flags(start: Any, words: Sequence[str]) -> None:
    """Raise a ValueError for a setting that only other variants have."""
    from slotmesh.training.variants import VARIANTS

    for word in words:
        part, _, name = word.partition("=")[0].removeprefix("--").partition(".")
        mine = getattr(start, part, None) if part in ("transport", "transition") else None
        field = name.replace("-", "_")
        if mine is None or not name or field in vars(mine):
            continue
        others = [
            variant.name
            for variant in VARIANTS.values()
            if field in getattr(getattr(variant, part), "__dataclass_fields__", {})
        ]
        if others:
            raise ValueError(
                f"--{part}.{name}: {start.variant} has no {name}. {' and '.join(others)} "
                f"ha{'s' if len(others) == 1 else 've'} it: pass --variant {others[-1]}, or leave "
                "it out."
            )


def _unknown(prog: str, word: str, known: Iterable[str]) -> NoReturn:
    near = difflib.get_close_matches(word, list(known), 1)
    hint = f"Did you mean {near[0]}?" if near else f"Expected one of {', '.join(known)}."
    _say(f"{prog}: there is no {word!r}. {hint} See {prog} --help.", error=True)
    sys.exit(2)


def _help() -> str:
    lines = ["usage: slotmesh [-h] [--version] COMMAND ...", ""]
    lines += ["Slot attention with optimal transport.", "", "commands:"]
    lines += [f"  {name:<10}{entry.about}" for name, entry in COMMANDS.items()]
    lines += ["", "options:", "  -h, --help  show this help, or that of a command: COMMAND --help"]
    lines += ["  --version   show the version"]
    lines += [f"  {_COMPLETION} {{bash,zsh,tcsh}}"]
    lines += ["              print a script that completes commands and options"]
    return "\n".join(lines)


def _say(text: str, *, error: bool = False) -> None:
    (sys.stderr if error else sys.stdout).write(text + "\n")


def _value(words: Sequence[str], flag: str) -> str | None:
    found = None
    for word, after in zip_longest(words, words[1:]):
        if word == flag and after is not None:
            found = after
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found
