"""Worlds as the commands ask for them."""

from collections.abc import Sequence
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slotmesh.readers import labels
from slotmesh.training.places import place_of
from slotmesh.worlds import (
    Clevrer,
    MultiDSprites,
    RandomObjects,
    World,
    clevr,
    clevrtex,
    make_world,
)

WorldName = Literal[
    "multi-dsprites", "clevr", "clevrtex", "clevrer-s", "clevrer-l", "random-objects"
]


def open_world(name: str, *, seed: int, size: int | None, device: str) -> World | RandomObjects:
    """A world with the settings that were given, and its own for the others."""
    options: dict[str, Any] = {"seed": seed, "device": place_of(device)}
    if size is not None:
        options["size"] = size
    return make_world(name, **options)


def settings_of(world: World | RandomObjects) -> dict[str, Any]:
    """What determines a world's samples: its public, plain attributes."""
    plain = (bool, int, float, str, tuple, list)
    return {
        name: value
        for name, value in vars(world).items()
        # How a picture is computed is no part of what it shows.
        if not name.startswith("_") and name not in ("name", "compile") and isinstance(value, plain)
    }


def classes_of_world(name: str) -> dict[str, Sequence[str]]:
    """Names of the classes of a world, by the columns of its table that hold their numbers."""
    if name == "multi-dsprites":
        return {"shape": MultiDSprites.SHAPES}
    if name == "clevr":
        return {
            "size": clevr.CLEVR_SIZES,
            "color": clevr.CLEVR_COLOURS,
            "material": clevr.CLEVR_MATERIALS,
            "shape": clevr.CLEVR_SHAPES,
        }
    if name == "clevrtex":
        return {
            "size": clevrtex.CLEVRTEX_SIZES,
            "material": clevrtex.CLEVRTEX_MATERIALS,
            "shape": clevrtex.CLEVRTEX_SHAPES,
            "ground": clevrtex.CLEVRTEX_MATERIALS,
        }
    if name in ("clevrer-s", "clevrer-l"):
        return {
            "color": Clevrer.COLOURS,
            "material": Clevrer.MATERIALS,
            "shape": Clevrer.SHAPES,
        }
    return {}


def classes_of_dataset(name: str) -> dict[str, Sequence[str]]:
    """Names of the classes of a real dataset, by the columns that hold their numbers."""
    if name == "clevrtex":
        return {
            "shape": labels.CLEVRTEX_SHAPES,
            "size": labels.CLEVRTEX_SIZES,
            "material": labels.CLEVRTEX_MATERIALS,
        }
    if name in ("clevr", "clevrer"):
        return {
            "shape": labels.SHAPES,
            "material": labels.MATERIALS,
            "color": labels.COLORS,
            "size": labels.SIZES,
        }
    return {}


def progress_bar(console: Console) -> Progress:
    """The bar that all commands show."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def check_at_least(option: str, value: int, least: int) -> None:
    """A number given on the command line."""
    if value < least:
        raise ValueError(f"{option} is {value}, expected at least {least}.")
