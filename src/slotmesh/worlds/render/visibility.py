"""Which object each pixel shows: correctly rounded float64, the same bits on every device.

A ray is tested only against objects whose bounding box in the image touches its tile of pixels.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.worlds.render.camera import Camera, camera_of
from slotmesh.worlds.render.rays import groups
from slotmesh.worlds.render.scene import Lens, Scene
from slotmesh.worlds.render.shapes import HITS
from slotmesh.worlds.render.threads import spread
from slotmesh.worlds.render.vec import Vec, dot, rotate_back, scale, sub, vec

TILE = 8
"""Side of a tile in pixels."""
_NEAR = 0.05
_CHUNK = {"cpu": 8, "cuda": 2048}
"""Scenes processed at once: on a CPU few enough to stay in its cache."""


class Visible(NamedTuple):
    """What the rays through the pixels' centres hit."""

    mask: Tensor
    """uint8 ``(batch, H, W)``: 1 + the object's index, 0 for none."""
    depth: Tensor
    """float64 ``(batch, H, W)``: distance along the camera's axis; infinity for no object."""


@dataclass(frozen=True)
class Frames:
    """The camera in the frame of each object.

    The ray ``o + t (f + u r + v d)`` with u, v in [-1, 1] over the image has depth t.
    """

    axes: Tensor
    """``(batch * n, 4, 3)``: o, f, r and d."""
    shape: Tensor
    """int64 ``(batch * n)``."""


def look_at(scene: Scene, size: tuple[int, int], lens: Lens) -> Visible:
    """Find the object at every pixel's centre."""
    step = _CHUNK.get(scene.position.device.type, 16)
    chunks = [scene[i : i + step] for i in range(0, max(len(scene), 1), step)]
    parts = spread(lambda part: _look_at(part, size, lens), chunks, scene.position.device)
    return Visible(torch.cat([p.mask for p in parts]), torch.cat([p.depth for p in parts]))


def _look_at(scene: Scene, size: tuple[int, int], lens: Lens) -> Visible:
    n_scenes, n = scene.present.shape
    height, width = size
    camera = camera_of(scene)
    frames = frames_of(scene, camera, lens)
    down, across = -(-height // TILE), -(-width // TILE)
    row, low_x, low_y, wide, count = _boxes(scene, camera, lens, size)
    # By object first: no tile occurs twice for one object, so each round is a plain write.
    which = torch.repeat_interleave(torch.arange(len(row), device=row.device), count)
    start = count.cumsum(0) - count
    place = torch.arange(len(which), device=row.device) - start[which]
    tile_x = low_x[which] + place % wide[which]
    tile_y = low_y[which] + place // wide[which]
    which = row[which]

    step = torch.arange(TILE, dtype=torch.float64, device=row.device)
    u = ((tile_x * TILE)[:, None] + 0.5 + step) * (2 / width) - 1
    v = ((tile_y * TILE)[:, None] + 0.5 + step) * (2 / height) - 1
    pixels = (len(which), TILE, TILE)
    t = cast(frames, which, u[:, None, :].expand(pixels), v[:, :, None].expand(pixels))

    whole = (n_scenes * down * across, TILE, TILE)
    depth = torch.full(whole, torch.inf, dtype=torch.float64, device=row.device)
    where = ((which // n) * down + tile_y) * across + tile_x
    index = where[:, None, None].expand(pixels)
    depth = depth.scatter_reduce(0, index, t, "amin")
    # The first of several that are equally near.
    number = (which % n + 1).to(torch.int32)[:, None, None]
    number = torch.where((t == depth[where]) & (t < torch.inf), number, n + 1)
    mask = torch.full(whole, n + 1, dtype=torch.int32, device=row.device)
    mask = mask.scatter_reduce(0, index, number, "amin")
    mask = torch.where(mask > n, 0, mask).to(torch.uint8)
    return Visible(untile(mask, n_scenes, size), untile(depth, n_scenes, size))


def cast(frames: Frames, which: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Depth at which rays hit given objects: ``(p)`` objects, ``(p, ...)`` rays each."""
    kind = frames.shape[which].to(torch.uint8)
    # One sort finds the rays of every shape; to look for each would wait for a GPU each time.
    order = kind.argsort(stable=True)
    lift = (..., *([None] * (u.ndim - 1)))
    t = torch.empty(u.shape, dtype=torch.float64, device=u.device)
    for shape, rows in groups(kind, len(HITS)):
        if rows.stop > rows.start:
            chosen = order[rows]
            o, f, r, d = frames.axes[which[chosen]].permute(1, 2, 0)[lift]
            t[chosen] = HITS[shape](o, f + u[chosen] * r + v[chosen] * d)
    return t


def frames_of(scene: Scene, camera: Camera, lens: Lens) -> Frames:
    """The camera of each scene in the frames of its objects."""
    eye, right, down, forward = (_per_object(a) for a in camera)
    axes = (
        sub(eye, vec(scene.position)),
        forward,
        scale(right, lens.tan_x),
        scale(down, lens.tan_y),
    )
    x, y, z = (torch.stack([a[i].expand_as(scene.size) for a in axes]) for i in range(3))
    seen = scale(rotate_back(scene.rotation, (x, y, z)), 1 / scene.size)
    return Frames(torch.stack(seen).flatten(2).permute(2, 1, 0).contiguous(), scene.shape.flatten())


def _boxes(
    scene: Scene, camera: Camera, lens: Lens, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tiles that each object's bounding cube touches, by object first, then by scene.

    Returns:
        Row of `Frames`, first tile across and down, tiles per row, tiles in total; each
        ``(n * batch)``.
    """
    eye, *axes = (torch.stack(a)[:, None, :, None] for a in camera)
    corner = torch.stack(vec(scene.position))[:, None] - eye
    for i in range(3):
        side = torch.stack(scale(vec(scene.rotation[..., :, i]), scene.size))[:, None]
        corner = torch.cat((corner + side, corner - side), dim=1)
    # Along the camera's three axes: (3, 8, batch, n).
    x, y, z = corner[:, None].unbind()
    parts = torch.stack(axes, dim=1)
    u, v, depth = dot((x, y, z), (parts[0], parts[1], parts[2]))
    flat = depth.clamp(min=_NEAR)
    u, v = u / flat * (1 / lens.tan_x), v / flat * (1 / lens.tan_y)
    # A cube across the camera's plane may be anywhere in the image.
    crossing = depth.amin(0) < _NEAR
    first, last = [], []
    for at, n in ((u, size[1]), (v, size[0])):
        low, high = at.amin(0), at.amax(0)
        tiles = -(-n // TILE)
        begin = torch.where(crossing, 0.0, ((low + 1) * (n / 2) / TILE).floor())
        end = torch.where(crossing, float(tiles), ((high + 1) * (n / 2) / TILE).floor() + 1)
        first.append(begin.clamp(0, tiles).long().T.flatten())
        last.append(end.clamp(0, tiles).long().T.flatten())
    wide, tall = last[0] - first[0], last[1] - first[1]
    shown = scene.present.T.flatten()
    row = torch.arange(scene.present.numel(), device=shown.device)
    row = row.view(scene.present.shape).T.flatten()
    return row, first[0], first[1], wide.clamp(min=1), wide * tall * shown


def _per_object(a: Vec) -> Vec:
    return a[0][:, None], a[1][:, None], a[2][:, None]


def untile(x: Tensor, batch: int, size: tuple[int, int]) -> Tensor:
    """Assemble tiles ``(batch * tiles, TILE, TILE)`` into images of this size."""
    down, across = -(-size[0] // TILE), -(-size[1] // TILE)
    whole = x.reshape(batch, down, across, TILE, TILE).transpose(2, 3)
    whole = whole.reshape(batch, down * TILE, across * TILE)
    return whole[:, : size[0], : size[1]].contiguous()


def tile(x: Tensor) -> Tensor:
    """Cut images into tiles: ``(batch, H, W)`` to ``(batch, tiles * TILE * TILE)``.

    Consecutive pixels then lie close together; the last tiles are padded with zeros.
    """
    height, width = x.shape[1:]
    padded = torch.nn.functional.pad(x, (0, -width % TILE, 0, -height % TILE))
    return padded.unflatten(2, (-1, TILE)).unflatten(1, (-1, TILE)).transpose(2, 3).flatten(1)
