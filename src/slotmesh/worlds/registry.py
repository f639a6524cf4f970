"""The table of all worlds: one line per world, with everything that the commands know about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slotmesh.worlds.clevr import Clevr
from slotmesh.worlds.clevrer import FRAMES_L, FRAMES_S, Clevrer
from slotmesh.worlds.clevrtex import ClevrTex
from slotmesh.worlds.multi_dsprites import MultiDSprites
from slotmesh.worlds.random_objects import RandomObjects
from slotmesh.worlds.world import World


@dataclass(frozen=True)
class WorldEntry:
    """How to make a world, and which real dataset it imitates."""

    make: Callable[..., World | RandomObjects]
    """Its class, or a function with the same arguments: ``seed``, ``device``, ``size``, ..."""
    description: str
    """A few words for the help text."""
    reader: str | None = None
    """Name of the reader of the real dataset, if there is one."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the name implies, for ``make`` and for the reader."""

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """Names of the classes, by the columns of the table of objects that hold their indices."""
        return getattr(self.make, "classes", {})


WORLDS: dict[str, WorldEntry] = {
    "multi-dsprites": WorldEntry(MultiDSprites, "coloured sprites on grey", "multi-dsprites"),
    "clevr": WorldEntry(Clevr, "plain objects on a table", "clevr"),
    "clevrtex": WorldEntry(ClevrTex, "textured objects on a textured ground", "clevrtex"),
    "clevrer-s": WorldEntry(Clevrer, "videos, frames 0 and 16", "clevrer", {"frames": FRAMES_S}),
    "clevrer-l": WorldEntry(Clevrer, "videos, frames 0 and 127", "clevrer", {"frames": FRAMES_L}),
    "random-objects": WorldEntry(RandomObjects, "random vectors among zeros"),
}
"""All worlds by their names on the command line."""


def register_world(
    name: str,
    make: Callable[..., World | RandomObjects],
    *,
    description: str = "",
    reader: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Register a world of your own, so that commands and tasks find it by name.

    Args:
        name: Its name on the command line.
        make: Its class, or a function with the same arguments: ``seed``, ``device``, ``size``, ...
        description: A few words for the help text.
        reader: Name of the reader of the real dataset that it imitates, if there is one.
        settings: Arguments that the name implies, for ``make`` and for the reader.

    Raises:
        ValueError: If the name is taken.

    Example:
        >>> from slotmesh.worlds import WORLDS, MultiDSprites, make_world, register_world
        >>> register_world("large-dsprites", MultiDSprites, settings={"size": 128})
        >>> make_world("large-dsprites").sample([0]).image.shape
        torch.Size([1, 3, 128, 128])
        >>> del WORLDS["large-dsprites"]
    """
    if name in WORLDS:
        raise ValueError(
            f"register_world: a world named {name!r} already exists. Choose another name."
        )
    WORLDS[name] = WorldEntry(make, description, reader, dict(settings or {}))


def make_world(name: str, **settings: Any) -> World | RandomObjects:
    """Make a world by its name on the command line.

    Args:
        name: One of :data:`WORLDS`.
        **settings: Arguments of its class: ``seed``, ``device``, ``size``, ...

    Example:
        >>> from slotmesh.worlds import make_world
        >>> make_world("multi-dsprites", seed=1).sample([7]).image.shape
        torch.Size([1, 3, 64, 64])
    """
    if name not in WORLDS:
        raise ValueError(f"There is no world {name!r}, expected one of {', '.join(WORLDS)}.")
    entry = WORLDS[name]
    try:
        return entry.make(**entry.settings, **settings)
    except TypeError as error:
        raise ValueError(f"The world {name} does not take these settings: {error}.") from error
