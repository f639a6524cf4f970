"""CLEVR: three to ten plain objects on a grey table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from slotmesh.worlds._tabletop import Rule, Tabletop
from slotmesh.worlds.render import CLEVR_LENS, SHAPES, Scene, render, yaw_matrix
from slotmesh.worlds.render.camera import fit_camera
from slotmesh.worlds.render.look import LAMPS

CLEVR_SHAPES = ("cube", "sphere", "cylinder")
"""Names of the column ``shape``, in order."""
CLEVR_COLOURS = ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
"""Names of the column ``color``, in order."""
CLEVR_MATERIALS = ("rubber", "metal")
"""Names of the column ``material``, in order."""
CLEVR_SIZES = ("small", "large")
"""Names of the column ``size``, in order: half-extents 0.35 and 0.7."""
CLEVR_RGB = (
    (87, 87, 87),
    (173, 35, 35),
    (42, 75, 215),
    (29, 105, 20),
    (129, 74, 25),
    (129, 38, 192),
    (41, 208, 208),
    (255, 238, 51),
)
"""The colours, in the order of ``CLEVR_COLOURS``."""

_EXTENTS = (0.35, 0.7)
_FOCAL, _WIDTH, _HEIGHT = 525.0, 480.0, 320.0


class Clevr(Tabletop):
    """CLEVR as an endless world that follows the rules of its generator.

    Counts are uniform over 3 to 10; shape, size, colour and material are uniform and independent.
    Objects keep a distance of 0.25 and a margin of 0.4 along the table's axes, and do not touch.
    Every object has at least 43 visible pixels in the 128x128 mask (CLEVR's 200 of 320x240). This
    is decided on that grid in float64 with correctly rounded operations, so scenes are the same on
    every device and at every size. In small images, fewer pixels of an object may be visible: an
    object with fewer than ``min_pixels`` (4 at 64x64, scaled with the area, at least 1) is not
    ``present``, and its pixels count as background.

    Columns of the table of objects: ``position`` (x, y, z), ``pixel`` (x, y in the 480x320 pixels
    of the original, depth), ``rotation`` (degrees), ``size``, ``color``, ``material``, ``shape``
    (indices into ``CLEVR_SIZES``, ``CLEVR_COLOURS``, ``CLEVR_MATERIALS``, ``CLEVR_SHAPES``) and
    ``visible`` (pixels of the mask). The image is the whole 480x320 view, squashed to a square.

    Args:
        seed: Each seed is a different dataset.
        device: Where samples are computed.
        size: Height and width of the images in pixels.
        easy: Two or three objects (``max_objects`` is 3), all large and of rubber, in different
            colours out of red, blue and green, which are darker than the ground. A small model
            learns these scenes in minutes.
        compile: Whether to fuse the shading with ``torch.compile``; by default, only on CUDA.

    Example:
        >>> from slotmesh.worlds.clevr import Clevr
        >>> batch = Clevr(seed=0).sample(range(2))
        >>> batch.image.shape, batch.objects["position"].shape
        (torch.Size([2, 3, 128, 128]), torch.Size([2, 10, 3]))
    """

    name = "clevr"
    kinds: ClassVar = {
        "size": CLEVR_SIZES,
        "color": CLEVR_COLOURS,
        "material": CLEVR_MATERIALS,
        "shape": CLEVR_SHAPES,
    }
    easy_kinds: ClassVar = {
        "size": ("large",),
        "color": ("red", "blue", "green"),
        "material": ("rubber",),
    }
    easy_mark = "color"
    classes = kinds
    extents = _EXTENTS
    lens = CLEVR_LENS
    rule = Rule(CLEVR_LENS, (128, 128), math.ceil(200 * 128 * 128 / (320 * 240)))
    whole = (_FOCAL, _WIDTH, _HEIGHT)

    def _draw(self, index: Tensor) -> tuple[dict[str, Tensor], Scene]:
        table = self._draw_kinds(index)
        rgb = torch.tensor(CLEVR_RGB, dtype=torch.float64, device=index.device) / 255
        scene = self._blank(
            index,
            size=self._radius(table),
            shape=table["shape"],
            material=table["material"],
            colour=rgb[table["color"]],
        )
        return table, scene

    @staticmethod
    def from_json(
        entries: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        device: torch.device | str = "cpu",
    ) -> Scene:
        """Read scenes from entries of a real CLEVR scenes file.

        The camera is fitted to the ``pixel_coords`` of each entry; lamps are at their mean
        positions, since the file does not contain their own.

        Args:
            entries: One entry of ``scenes``, or several.
            device: Where to put the scenes.
        """
        several = [entries] if isinstance(entries, Mapping) else list(entries)
        return _from_json(several).to(device)

    def render_scene(
        self, entries: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> tuple[Tensor, Tensor]:
        """Render real CLEVR scenes: images ``(n, 3, size, size)`` and masks ``(n, size, size)``."""
        scene = self.from_json(entries, self.device)
        return render(scene, self.size, lens=self.lens, compile=self.compile)


def _from_json(entries: list[Mapping[str, Any]]) -> Scene:
    n = max((len(_field(e, "objects", i)) for i, e in enumerate(entries)), default=0)
    if n == 0:
        raise ValueError("Clevr.from_json: no entry has an object, expected CLEVR scenes.")
    position = torch.zeros(len(entries), n, 3, dtype=torch.float64)
    turn = torch.zeros(len(entries), n, dtype=torch.float64)
    kinds = torch.zeros(len(entries), n, 4, dtype=torch.int64)
    present = torch.zeros(len(entries), n, dtype=torch.bool)
    camera = torch.zeros(len(entries), 3, dtype=torch.float64)
    names = {
        "shape": SHAPES,
        "material": CLEVR_MATERIALS,
        "size": CLEVR_SIZES,
        "color": CLEVR_COLOURS,
    }
    for i, entry in enumerate(entries):
        pixels = []
        for k, item in enumerate(entry["objects"]):
            position[i, k] = torch.tensor(_field(item, "3d_coords", i), dtype=torch.float64)
            turn[i, k] = float(_field(item, "rotation", i))
            kinds[i, k] = torch.tensor([_kind(item, f, v, i) for f, v in names.items()])
            present[i, k] = True
            pixels.append(_field(item, "pixel_coords", i)[:2])
        points = position[i, : len(pixels)].numpy()
        middle = (_WIDTH / 2, _HEIGHT / 2)
        place, _ = fit_camera(points, np.asarray(pixels, dtype=float), _FOCAL, middle)
        camera[i] = torch.from_numpy(place)
    rgb = torch.tensor(CLEVR_RGB, dtype=torch.float64) / 255
    return Scene(
        position=position,
        # The generator passes degrees as radians, as its images show.
        rotation=yaw_matrix(turn.cos(), turn.sin()),
        size=torch.tensor(_EXTENTS, dtype=torch.float64)[kinds[..., 2]],
        shape=kinds[..., 0],
        material=kinds[..., 1],
        colour=rgb[kinds[..., 3]],
        present=present,
        camera=camera,
        lamps=torch.tensor(LAMPS, dtype=torch.float64).repeat(len(entries), 1, 1),
    )


def _field(record: Mapping[str, Any], name: str, which: int) -> Any:
    if name not in record:
        raise ValueError(
            f"Clevr.from_json: entry {which} has no field {name!r} (it has {sorted(record)}). "
            "Pass an entry of `scenes` of a CLEVR v1.0 scenes file."
        )
    return record[name]


def _kind(item: Mapping[str, Any], field: str, names: tuple[str, ...], which: int) -> int:
    value = _field(item, field, which)
    if value not in names:
        raise ValueError(
            f"Clevr.from_json: entry {which} has {field} {value!r}, expected one of {names}."
        )
    return names.index(value)
