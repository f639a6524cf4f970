"""Procedural datasets: endless, labelled, batched on any device.

Sample ``i`` of a world is a pure function of (seed, i): no file is read, and no state is kept.
"""

from slotmesh.worlds.clevr import Clevr
from slotmesh.worlds.clevrer import Clevrer
from slotmesh.worlds.clevrtex import ClevrTex
from slotmesh.worlds.multi_dsprites import MultiDSprites
from slotmesh.worlds.random_objects import RandomObjects, VectorSample
from slotmesh.worlds.registry import WORLDS, WorldEntry, make_world, register_world
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
    "WorldEntry",
    "make_world",
    "register_world",
]
