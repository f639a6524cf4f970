"""ClevrTex: CLEVR with textured objects on a textured ground."""

from typing import ClassVar

import torch
from torch import Tensor

from slotmesh.worlds._random import integers
from slotmesh.worlds._tabletop import Rule, Tabletop
from slotmesh.worlds.render import SHAPES, Lens, Scene
from slotmesh.worlds.render.look import CLEVRTEX_LOOK
from slotmesh.worlds.render.textures import TEXTURES

CLEVRTEX_SHAPES = SHAPES
"""Names of the column ``shape``, in order; the torus replaces ClevrTex's monkey."""
CLEVRTEX_SIZES = ("small", "medium", "large")
"""Names of the column ``size``, in order: 0.4, 0.6 and 0.9; a cube's half-extent is that over
the square root of 2."""
CLEVRTEX_MATERIALS = tuple(t.name for t in TEXTURES)
"""Names of the columns ``material`` and ``ground``, in order."""

_EASY_GROUNDS = ("ebony",)
_FOCAL, _WIDTH, _HEIGHT, _CROP = 350.0, 320.0, 240.0, 192.0
_WHOLE = Lens.of(_FOCAL, _WIDTH, _HEIGHT)


class ClevrTex(Tabletop):
    """ClevrTex as an endless world, with procedural materials instead of photographs.

    Placement, camera and lamps are those of :class:`~slotmesh.worlds.clevr.Clevr`. There are four
    shapes (a torus replaces the monkey of the original, a mesh, which a ray caster of closed-form
    shapes cannot draw), three sizes, and a material drawn independently for every object and for
    the ground. Every object has more than 200 visible pixels in the whole 320x240 view, decided on
    a grid of half that size. The image is the central 192x192 of that view, as the paper crops it,
    so an object may lie partly or wholly outside. An object is ``present`` if at least
    ``min_pixels`` of its pixels are visible in the image (4 at 64x64, scaled with the area, at
    least 1); the few pixels of other objects count as background.

    The table of objects has the columns of CLEVR, with other classes (``CLEVRTEX_SIZES``,
    ``CLEVRTEX_SHAPES``, ``CLEVRTEX_MATERIALS``), and with ``ground`` instead of ``color``: the
    material of the ground, which is the same for all objects of a scene. ``pixel`` is a position in
    the whole 320x240 view.

    Args:
        seed: Each seed is a different dataset.
        device: Where samples are computed.
        size: Height and width of the images in pixels.
        easy: Two or three objects (``max_objects`` is 3), all large, of different materials out of
            four bright ones (bubbles, cracked ice, dunes, turquoise), on dark ebony. Meant for
            short runs of small models: brightness alone distinguishes objects from the ground.
        compile: Whether to fuse the shading with ``torch.compile``; by default, only on CUDA.

    Example:
        >>> from slotmesh.worlds.clevrtex import ClevrTex
        >>> ClevrTex(seed=0).sample(range(2)).image.shape
        torch.Size([2, 3, 64, 64])
    """

    name = "clevrtex"
    kinds: ClassVar = {
        "size": CLEVRTEX_SIZES,
        "shape": CLEVRTEX_SHAPES,
        "material": CLEVRTEX_MATERIALS,
    }
    easy_kinds: ClassVar = {
        "size": ("large",),
        "material": ("bubbles", "cracked ice", "dunes", "turquoise"),
    }
    easy_mark = "material"
    classes: ClassVar = {**kinds, "ground": CLEVRTEX_MATERIALS}
    extents = (0.4, 0.6, 0.9)
    lens = Lens.of(_FOCAL, _WIDTH, _HEIGHT, crop=(_CROP, _CROP))
    look = CLEVRTEX_LOOK
    rule = Rule(_WHOLE, (120, 160), 51)
    whole = (_FOCAL, _WIDTH, _HEIGHT)

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        size: int = 64,
        easy: bool = False,
        compile: bool | None = None,  # noqa: A002
    ) -> None:
        super().__init__(seed=seed, device=device, size=size, easy=easy, compile=compile)

    def _draw(self, index: Tensor) -> tuple[dict[str, Tensor], Scene]:
        n = self.max_objects
        table = self._draw_kinds(index)
        grounds = _EASY_GROUNDS if self.easy else CLEVRTEX_MATERIALS
        ground = integers(self.seed, index, "ground", len(grounds))
        if self.easy:
            which = [CLEVRTEX_MATERIALS.index(name) for name in grounds]
            ground = torch.tensor(which, device=index.device)[ground]
        cube = table["shape"] == SHAPES.index("cube")
        radius = self._radius(table)
        scene = self._blank(
            index,
            size=torch.where(cube, radius * 0.5**0.5, radius),
            shape=table["shape"],
            material=2 + table["material"],
            colour=torch.ones(len(index), n, 3, device=index.device),
            ground=2 + ground,
        )
        return {**table, "ground": ground[:, None].expand(-1, n)}, scene
