"""What every result file holds: the command that made it, and the settings behind its numbers."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from slotmesh.training.published import flags
from slotmesh.training.settings import Settings, is_one_of, leaves

# Flags that a recorded command leaves out: paths, and settings that are presets by now.
_NOT_RECORDED = ("out", "runs", "checkpoints", "overwrite", "device", "choice")
# Results measured before the paper had a command line of its own.
_FORMER = ("slotmesh", "reproduce")
_PROGRAM = ("python", "-m", "paper")

ADDED_LATER = {
    "transport.grad": "straight_through",
    "optim.warmup_part": None,
    "data.easy": False,
    "model.he_init": False,
}
"""Settings that were added after some results, with the value that those were measured with."""


def command_of(name: str, settings: Any, only: dict[str, Any]) -> str:
    """Return the command that measures one group of runs.

    It names what differs from the defaults, but no paths.

    Args:
        name: The command, such as ``table1``.
        settings: Its settings, a dataclass with a default for every field.
        only: Values of fields for this group alone.

    Example:
        >>> from paper import Table1
        >>> from paper.recorded import command_of
        >>> command_of("table1", Table1(steps=10), {"variants": "SA"})
        'python -m paper table1 --variants SA --steps 10'
    """
    defaults = type(settings)()
    given = {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if field.name not in _NOT_RECORDED
        and getattr(settings, field.name) != getattr(defaults, field.name)
    }
    words = flags(dict(only) | {k: v for k, v in given.items() if k not in only})
    return shlex.join([*_PROGRAM, name, *words])


def current_command(recorded: str) -> str:
    """Return a recorded command as it is typed today.

    Example:
        >>> from paper.recorded import current_command
        >>> current_command("slotmesh reproduce table1 --variants SA")
        'python -m paper table1 --variants SA'
        >>> current_command("slotmesh reproduce table1 --seeds 3")
        'python -m paper table1 --n-seeds 3'
    """
    words = shlex.split(recorded)
    if tuple(words[:2]) == _FORMER:
        words[:2] = _PROGRAM
    if " ".join(words).startswith("python -m paper table1"):
        # In other tables it is a list of seeds.
        words = ["--n-seeds" if word == "--seeds" else word for word in words]
    return shlex.join(words)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors while a result file is read into a ValueError that says what to do."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} holds no result of `python -m paper` ({error!r}). Move it away, or pass "
            "--overwrite to the command that writes it."
        ) from error


def by_flag(settings: Settings) -> dict[str, Any]:
    """Return all settings by their names on the command line, with values as JSON holds them.

    Example:
        >>> from paper.recorded import by_flag
        >>> from slotmesh.training.tasks import preset
        >>> by_flag(preset("random-objects", "SA"))["data.n_objects"]
        5
    """
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in leaves(settings).items()
    }


def difference(
    old: dict[str, Any], new: dict[str, Any], *, ignore: tuple[str, ...] = ()
) -> tuple[str, Any, Any] | None:
    """Return the first setting that differs, with its old and new value; None if none does.

    Args:
        old: Settings of a result, by flag.
        new: Settings that are asked for, by flag.
        ignore: Flags that may differ, and groups of them such as ``hardware``.

    Example:
        >>> from paper.recorded import difference
        >>> difference({"steps": 10, "seed": 1}, {"steps": 20, "seed": 1})
        ('steps', 10, 20)
    """
    old = {name: ADDED_LATER[name] for name in new if name in ADDED_LATER} | old
    for name in old | new:
        if not is_one_of(name, ignore) and old.get(name) != new.get(name):
            return name, old.get(name), new.get(name)
    return None


def without(settings: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return settings by flag without some of them, or without groups such as ``hardware``."""
    return {name: value for name, value in settings.items() if not is_one_of(name, names)}
