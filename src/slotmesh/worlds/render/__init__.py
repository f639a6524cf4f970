"""A small batched ray caster in torch: spheres, cylinders, rounded cubes and tori on a plane.

``render(scene, size)`` returns images and masks of a batch of scenes on any device.
"""

from slotmesh.worlds.render.caster import render
from slotmesh.worlds.render.look import CLEVR_LOOK, Look
from slotmesh.worlds.render.scene import (
    CLEVR_LENS,
    METAL,
    RUBBER,
    SHAPES,
    Lens,
    Scene,
    yaw_matrix,
)

__all__ = [
    "CLEVR_LENS",
    "CLEVR_LOOK",
    "METAL",
    "RUBBER",
    "SHAPES",
    "Lens",
    "Look",
    "Scene",
    "render",
    "yaw_matrix",
]
