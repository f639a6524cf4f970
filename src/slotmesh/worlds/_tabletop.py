"""Common base of CLEVR and ClevrTex: objects on a table, placed by the same rules."""

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.worlds._placement import Footprints, Layout, place
from slotmesh.worlds._random import distinct, integers, uniform
from slotmesh.worlds._slivers import drop_slivers, min_pixels, visible_pixels
from slotmesh.worlds.render import SHAPES, Lens, Scene, yaw_matrix
from slotmesh.worlds.render.camera import CLEVR_CAMERA, project
from slotmesh.worlds.render.caster import paint
from slotmesh.worlds.render.look import CLEVR_LOOK, LAMPS, Look
from slotmesh.worlds.render.threads import spread
from slotmesh.worlds.render.visibility import Visible, look_at
from slotmesh.worlds.sample import Sample
from slotmesh.worlds.world import World

_CHUNK = {"cpu": 32, "cuda": 8192}
"""Samples made at once per thread."""


class Rule(NamedTuple):
    """When an object counts as visible, on a fixed grid of pixels whatever the image's size."""

    lens: Lens
    size: tuple[int, int]
    """Height and width of the grid."""
    pixels: int
    """Pixels of the grid that every object must show."""


class Tabletop(World):
    """Three to ten objects on a plane; subclasses document the arguments."""

    max_objects = 10
    kinds: ClassVar[dict[str, tuple[str, ...]]]
    """Classes that are drawn uniformly for every object, by columns of the table."""
    easy_kinds: ClassVar[dict[str, tuple[str, ...]]]
    """The classes that the easy world is limited to."""
    easy_mark: ClassVar[str]
    """The column in which no two objects of an easy scene are alike."""
    easy_objects: ClassVar[int] = 3
    """Largest number of objects in a scene of the easy world."""
    extents: tuple[float, ...]
    """Radii used for distances, by the column ``size``."""
    lens: Lens
    """What the image shows."""
    look: Look = CLEVR_LOOK
    """Strengths of the lamps and other parameters of the shading."""
    rule: Rule
    whole: tuple[float, float, float]
    """Focal length, width and height of the dataset's own images, for the column ``pixel``."""

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        size: int = 128,
        easy: bool = False,
        compile: bool | None = None,  # noqa: A002
    ) -> None:
        super().__init__(seed=seed, device=device)
        self.size = checks.as_count(type(self).__name__, "size", size, 1)
        self.easy = easy
        self.compile = compile
        if easy:
            self.max_objects = self.easy_objects

    @property
    def min_pixels(self) -> int:
        """Visible pixels that make an object present: 4 at 64x64, scaled with the area."""
        return min_pixels(self.size)

    def make(self, index: Tensor) -> Sample:
        """Make the samples of these indices, int64 ``(batch)`` on the world's device."""
        step = _CHUNK.get(self.device.type, 32)
        if self.device.type == "cpu":
            # At least one chunk per thread.
            step = min(step, -(-len(index) // torch.get_num_threads()))
        return Sample.join(spread(self._make, index.split(step), self.device))

    def scenes(self, index: Tensor) -> tuple[Scene, dict[str, Tensor]]:
        """Make the scenes and tables of objects of these samples without rendering them.

        Args:
            index: int64 ``(batch)`` on the world's device.
        """
        scene, table, _ = self._scenes(index)
        return scene, table

    @abstractmethod
    def _draw(self, index: Tensor) -> tuple[dict[str, Tensor], Scene]:
        """Draw the objects: columns of the table, and scenes whose objects have no places yet."""

    def _draw_kinds(self, index: Tensor) -> dict[str, Tensor]:
        """The columns of ``kinds``: int64 ``(batch, n)``."""
        n = (self.max_objects,)
        if not self.easy:
            return {k: integers(self.seed, index, k, len(v), n) for k, v in self.kinds.items()}
        table: dict[str, Tensor] = {}
        for name, names in self.kinds.items():
            few = self.easy_kinds.get(name, names)
            if name == self.easy_mark:
                drawn = distinct(self.seed, index, name, len(few))[:, : self.max_objects]
            else:
                drawn = integers(self.seed, index, name, len(few), n)
            table[name] = torch.tensor([names.index(k) for k in few], device=index.device)[drawn]
        return table

    def _radius(self, table: dict[str, Tensor]) -> Tensor:
        """Radius used for distances: float64 ``(batch, n)``."""
        size = table["size"]
        return torch.tensor(self.extents, dtype=torch.float64, device=size.device)[size]

    def _make(self, index: Tensor) -> Sample:
        scene, table, seen = self._scenes(index)
        size = (self.size, self.size)
        if (self.lens, size) != (self.rule.lens, self.rule.size):
            seen = look_at(scene, size, self.lens)
        image = paint(scene, seen, lens=self.lens, look=self.look, compile=self.compile)
        mask, present, visible = drop_slivers(seen.mask, self.max_objects, self.min_pixels)
        table = {"visible": visible, **table}
        return Sample(image, mask, _masked(table, present), present, index)

    def _scenes(self, index: Tensor) -> tuple[Scene, dict[str, Tensor], Visible]:
        table, blank = self._draw(index)
        cube = blank.shape == SHAPES.index("cube")
        prints = Footprints(self._radius(table), torch.where(cube, blank.size, 0.0), blank.present)

        def accept(layout: Layout, rows: Tensor) -> tuple[Tensor, Visible]:
            seen = look_at(_stand(blank[rows], layout), self.rule.size, self.rule.lens)
            counts = visible_pixels(seen.mask, self.max_objects)
            enough = (counts >= self.rule.pixels) | ~blank.present[rows]
            return enough.all(1), seen

        layout, seen = place(self.seed, index, prints, accept)
        scene = _stand(blank, layout)
        focal, width, height = self.whole
        pixel = project(scene, scene.position)
        at = (width / 2 + focal * pixel[..., 0], height / 2 + focal * pixel[..., 1], pixel[..., 2])
        places = {
            "position": scene.position.float(),
            "pixel": torch.stack(at, dim=-1).float(),
            "rotation": (layout.turn * 360).float(),
        }
        return scene, _masked({**places, **table}, scene.present), Visible(*seen)

    def _blank(self, index: Tensor, **what: Tensor) -> Scene:
        """Scenes with a random number of objects and random lamps, but no places yet."""
        n = self.max_objects
        least = 2 if self.easy else 3
        count = least + integers(self.seed, index, "count", n - least + 1)
        present = torch.arange(n, device=index.device) < count[:, None]
        zeros = torch.zeros(len(index), n, 3, dtype=torch.float64, device=index.device)
        turned = torch.zeros(len(index), n, 3, 3, dtype=torch.float64, device=index.device)
        jitter = uniform(self.seed, index, "lamps", (3, 3)) * 2 - 1
        lamps = torch.tensor(LAMPS, dtype=torch.float64, device=index.device)
        lamps = lamps + torch.nn.functional.pad(jitter, (0, 0, 0, 1))
        return Scene(
            position=zeros,
            rotation=turned,
            present=present,
            camera=zeros[:, 0],
            lamps=lamps,
            **what,
        )


def _stand(scene: Scene, layout: Layout) -> Scene:
    """Put the objects of a scene on the table."""
    camera = torch.tensor(CLEVR_CAMERA, dtype=torch.float64, device=layout.camera.device)
    return replace(
        scene,
        position=torch.cat([layout.xy, scene.size[..., None]], dim=-1),
        rotation=yaw_matrix(*layout.turned.unbind(-1)),
        camera=camera + layout.camera,
    )


def _masked(table: dict[str, Tensor], present: Tensor) -> dict[str, Tensor]:
    """The table with zeros in rows that are not present."""
    return {
        k: v * present.view(*present.shape, *([1] * (v.ndim - 2))).to(v.dtype)
        for k, v in table.items()
    }
