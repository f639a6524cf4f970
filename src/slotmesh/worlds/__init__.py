"""Procedural datasets: endless, labelled, batched on any device.

Sample ``i`` of a world is a pure function of (seed, i): no file is read, and nothing is kept.
"""

from typing import Any

from slotmesh.worlds.clevr import Clevr
from slotmesh.worlds.clevrer import Clevrer
from slotmesh.worlds.clevrtex import ClevrTex
from slotmesh.worlds.multi_dsprites import MultiDSprites
from slotmesh.worlds.random_objects import RandomObjects, VectorSample
from slotmesh.worlds.sample import Sample
from slotmesh.worlds.world import World

__all__ = [
    "WORLDS",
    "Clevr",
    "ClevrTex",
    "Clevrer",
    "MultiDSprites",
    "RandomObjects",
    "Sample",
    "VectorSample",
    "World",
    "make_world",
]

WORLDS: dict[str, tuple[type[World] | type[RandomObjects], dict[str, Any]]] = {
    "multi-dsprites": (MultiDSprites, {}),
    "clevr": (Clevr, {}),
    "clevrtex": (ClevrTex, {}),
    "clevrer-s": (Clevrer, {"frames": (0, 16)}),
    "clevrer-l": (Clevrer, {"frames": (0, 127)}),
    "random-objects": (RandomObjects, {}),
}
"""Names on the command line, each with its class and what the name settles."""


def make_world(name: str, **settings: Any) -> World | RandomObjects:
    """A world by its name on the command line.

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
    kind, settled = WORLDS[name]
    try:
        return kind(**settled, **settings)
    except TypeError as error:
        raise ValueError(f"The world {name} does not take these settings: {error}.") from error
