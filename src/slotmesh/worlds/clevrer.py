"""CLEVRER: videos of objects that enter, collide and slow down."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.worlds._clevrer_scene import LENS, NEAR_LENS, make_scene, scene_of_annotation
from slotmesh.worlds._clevrer_start import EASY_COLOURS, MAX_BODIES, Start, draw_start
from slotmesh.worlds._dynamics import HALF_EXTENT, N_FRAMES, SHAPES, Trajectory, simulate
from slotmesh.worlds._slivers import drop_slivers, min_pixels
from slotmesh.worlds.clevr import CLEVR_COLOURS, CLEVR_MATERIALS
from slotmesh.worlds.render import Scene, render
from slotmesh.worlds.render.visibility import look_at
from slotmesh.worlds.sample import Sample
from slotmesh.worlds.world import World

FRAMES_S = (0, 16)
FRAMES_L = (0, 127)
# Masks computed at once, to bound memory.
_CHUNK = 256


class Clevrer(World):
    """Videos of 4 to 6 objects of one size on a grey ground, after CLEVRER.

    Some objects rest; others enter, hit them and slow down, by laws measured on real annotations.
    No two objects of a video are alike, and row ``i`` of the table (``mask == i + 1``) is the same
    object in every frame. An object is ``present`` in a frame if at least ``min_pixels`` of its
    pixels are visible; the few pixels of other objects count as background.

    Between frames 0 and 16 (CLEVRER-S) the number of present objects rises by two or more in
    about 9.5% of the videos, and between 0 and 127 (CLEVRER-L) in about 69%, as the paper reports
    for the real dataset.

    Columns of the table, with ``n = max_objects`` and ``T = len(frames)``:

    ============  ============================  ==================================================
    ``real``      bool ``(batch, n)``           rows that are objects, in view or not
    ``shape``     int64 ``(batch, n)``          index into ``Clevrer.SHAPES``
    ``material``  int64 ``(batch, n)``          index into ``Clevrer.MATERIALS``
    ``color``     int64 ``(batch, n)``          index into ``Clevrer.COLOURS``
    ``position``  float32 ``(batch, T, n, 3)``  centre; the camera looks along -x, y is right
    ``velocity``  float32 ``(batch, T, n, 3)``  change per time unit; a frame is 0.028 time units
    ``rotation``  float32 ``(batch, T, n)``     rotation about the vertical in radians
    ``spin``      float32 ``(batch, T, n)``     change of the rotation per time unit
    ``visible``   int64 ``(batch, T, n)``       pixels of the mask
    ``collided``  bool ``(batch, T, n, n)``     pairs that have met by that frame
    ============  ============================  ==================================================

    Simplification: objects collide as discs of equal mass (the disc of a cube contains its
    corners).

    Args:
        seed: Each seed is a different dataset.
        device: Where samples are computed.
        size: Height and width of the images in pixels; the whole 480x320 view is squashed to a
            square, as in the authors' code.
        easy: Three or four rubber objects (``max_objects`` is 4), one of which moves, in different
            colours out of red, blue, green and yellow; and only the central 320x214 pixels of the
            view, so that they look larger. A small model learns to follow them in minutes.
        frames: Which of the 128 frames to render, in ascending order.
        compile: Whether to fuse the shading with ``torch.compile``; by default, only on CUDA.

    Raises:
        ValueError: If ``frames`` or ``size`` is invalid.

    Example:
        >>> from slotmesh.worlds import Clevrer
        >>> video = Clevrer(frames=(0, 16)).sample(range(2))
        >>> video.image.shape, video.present.shape
        (torch.Size([2, 2, 3, 64, 64]), torch.Size([2, 2, 7]))
    """

    SHAPES = SHAPES
    MATERIALS = CLEVR_MATERIALS
    COLOURS = CLEVR_COLOURS
    classes: ClassVar = {"color": COLOURS, "material": MATERIALS, "shape": SHAPES}
    max_objects = 7
    """One more than ever occurs, as in the authors' files; the background is the eighth slot."""

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        size: int = 64,
        frames: Sequence[int] = FRAMES_S,
        easy: bool = False,
        compile: bool | None = None,  # noqa: A002
    ) -> None:
        super().__init__(seed=seed, device=device)
        self.easy = easy
        if easy:
            self.max_objects = len(EASY_COLOURS)
        self._lens = NEAR_LENS if easy else LENS
        self.compile = compile
        self.size = checks.as_count("Clevrer", "size", size, 1)
        self.frames = _check_frames(frames)
        self.name = {FRAMES_S: "clevrer-s", FRAMES_L: "clevrer-l"}.get(self.frames, "clevrer")

    @classmethod
    def short(cls, *, seed: int = 0, device: torch.device | str = "cpu", size: int = 64) -> Self:
        """CLEVRER-S: frames 0 and 16."""
        return cls(seed=seed, device=device, size=size, frames=FRAMES_S)

    @classmethod
    def long(cls, *, seed: int = 0, device: torch.device | str = "cpu", size: int = 64) -> Self:
        """CLEVRER-L: frames 0 and 127, the last."""
        return cls(seed=seed, device=device, size=size, frames=FRAMES_L)

    @property
    def min_pixels(self) -> int:
        """Visible pixels that make an object present: 4 at 64x64, scaled with the area."""
        return min_pixels(self.size)

    def motion(self, index: Tensor) -> tuple[Start, Trajectory]:
        """Compute the objects and float64 trajectories of these videos without rendering them."""
        start = draw_start(self.seed, index, easy=self.easy)
        return start, simulate(start.bodies, start.shape, start.real, self.frames)

    def make(self, index: Tensor) -> Sample:
        """Make the videos of these indices, int64 ``(batch)`` on the world's device."""
        start, path = self.motion(index)
        image, mask = render(_scenes(start, path), self.size, lens=self._lens, compile=self.compile)
        image, mask = (x.unflatten(0, path.yaw.shape[:2]) for x in (image, mask))
        mask, present, visible = drop_slivers(mask, self.max_objects, self.min_pixels)
        objects = {**self._table(start, path), "visible": visible}
        return Sample(image, mask, objects, present, index)

    def masks(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``mask`` and ``present`` of these videos, bit for bit, without the shading."""
        start, path = self.motion(index)
        scene = _scenes(start, path)
        parts = [
            look_at(scene[first : first + _CHUNK], (self.size, self.size), self._lens).mask
            for first in range(0, len(scene), _CHUNK)
        ]
        mask = torch.cat(parts).unflatten(0, path.yaw.shape[:2])
        return drop_slivers(mask, self.max_objects, self.min_pixels)[:2]

    def render_annotation(
        self, annotation: Mapping[str, Any], frames: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Render frames of a real annotation file (its parsed JSON).

        Returns:
            Images uint8 ``(T, 3, size, size)`` and masks uint8 ``(T, size, size)``, where object
            ``i`` of ``object_property`` has the index ``i + 1``.
        """
        chosen = self.frames if frames is None else _check_frames(frames)
        scene = scene_of_annotation(annotation, chosen).to(self.device)
        return render(scene, self.size, lens=self._lens, compile=self.compile)

    def _table(self, start: Start, path: Trajectory) -> dict[str, Tensor]:
        # Negative for the easy world, whose last rows are never objects.
        extra = self.max_objects - MAX_BODIES
        real = start.real
        real_then = real[:, None]
        height = torch.full_like(path.yaw, HALF_EXTENT)

        def fixed(column: Tensor) -> Tensor:
            return F.pad(torch.where(real, column, 0), (0, extra))

        def moving(*parts: Tensor) -> Tensor:
            column = torch.where(real_then[..., None], torch.stack(parts, dim=-1), 0.0)
            return F.pad(column.to(torch.float32), (0, 0, 0, extra))

        return {
            "real": F.pad(real, (0, extra)),
            "shape": fixed(start.shape),
            "material": fixed(start.material),
            "color": fixed(start.colour),
            "position": moving(*path.position.unbind(-1), height),
            "velocity": moving(*path.velocity.unbind(-1), torch.zeros_like(height)),
            "rotation": moving(path.yaw).squeeze(-1),
            "spin": moving(path.spin).squeeze(-1),
            "collided": F.pad(path.collided, (0, extra, 0, extra)),
        }


def _scenes(start: Start, path: Trajectory) -> Scene:
    """All frames of all videos in one batch, video by video."""
    times = path.yaw.shape[1]

    def every_frame(column: Tensor) -> Tensor:
        return column[:, None].expand(-1, times, -1).flatten(0, 1)

    return make_scene(
        path.position.flatten(0, 1),
        path.facing.flatten(0, 1),
        every_frame(start.shape),
        every_frame(start.material),
        every_frame(start.colour),
        every_frame(start.real),
    )


def _check_frames(frames: Sequence[int]) -> tuple[int, ...]:
    chosen = tuple(checks.plain(k) for k in frames)
    whole = all(isinstance(k, int) and not isinstance(k, bool) for k in chosen)
    if (
        not chosen
        or not whole
        or not all(0 <= k < N_FRAMES for k in chosen)
        or any(b <= a for a, b in pairwise(chosen))
    ):
        raise ValueError(
            f"Clevrer: frames are {chosen}, expected at least one whole number from 0 to "
            f"{N_FRAMES - 1}, in ascending order. CLEVRER-S is (0, 16), CLEVRER-L (0, 127)."
        )
    return chosen
