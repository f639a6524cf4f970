"""Open worlds with the options of a command."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import tyro

from slotmesh.readers import READERS
from slotmesh.training.places import place_of
from slotmesh.worlds import WORLDS, RandomObjects, World, make_world


def name_in(table: Mapping[str, object]) -> Any:
    """The type of an option whose values are the names in a table at the time of reading."""

    def names() -> Any:
        return Literal[tuple(table)]

    return tyro.conf.arg(constructor_factory=names)


WorldName = Annotated[str, name_in(WORLDS)]
DatasetName = Annotated[str, name_in(READERS)]


def open_world(
    name: str, *, seed: int, size: int | None, device: str, easy: bool = False
) -> World | RandomObjects:
    """Make a world with the settings that were passed, and its own defaults for the others."""
    options: dict[str, Any] = {"seed": seed, "device": place_of(device)}
    if size is not None:
        options["size"] = size
    if easy:
        options["easy"] = True
    return make_world(name, **options)


def settings_of(world: World | RandomObjects) -> dict[str, Any]:
    """The settings that determine a world's samples: its public, plain attributes."""
    plain = (bool, int, float, str, tuple, list)
    # How a picture is computed does not change what it shows.
    others = {"name", "compile"}
    if not getattr(world, "easy", False):
        # As in files from before there were easy worlds, so that these can be resumed.
        others.add("easy")
    return {
        name: value
        for name, value in vars(world).items()
        if not name.startswith("_") and name not in others and isinstance(value, plain)
    }


def classes_of_world(name: str) -> Mapping[str, Sequence[str]]:
    """Names of the classes of a world, by the columns of its table that hold their numbers."""
    return WORLDS[name].classes if name in WORLDS else {}


def classes_of_dataset(name: str) -> Mapping[str, Sequence[str]]:
    """Names of the classes of a real dataset, by the columns that hold their numbers."""
    return READERS[name].classes if name in READERS else {}
