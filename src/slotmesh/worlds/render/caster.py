"""Render scenes to images and masks."""

import torch
from torch import Tensor

from slotmesh.worlds.render.camera import camera_of
from slotmesh.worlds.render.fuse import Fuse, compiled, plain, set_apart
from slotmesh.worlds.render.look import CLEVR_LOOK, Look
from slotmesh.worlds.render.scene import CLEVR_LENS, METAL, Lens, Scene
from slotmesh.worlds.render.shading import Rays, prepare, shade
from slotmesh.worlds.render.threads import spread
from slotmesh.worlds.render.visibility import (
    TILE,
    Frames,
    Visible,
    cast,
    frames_of,
    look_at,
    tile,
    untile,
)

_CHUNK = {"cpu": 4, "cuda": 2048}
"""Scenes rendered at once: enough to keep the device busy, few enough to bound memory."""
_OFFSETS = ((-0.25, -0.25), (0.25, -0.25), (-0.25, 0.25), (0.25, 0.25))
"""Offsets of the rays within a pixel at an object's edge."""


def render(
    scene: Scene,
    size: int | tuple[int, int] = 128,
    *,
    lens: Lens = CLEVR_LENS,
    look: Look = CLEVR_LOOK,
    compile: bool | None = None,  # noqa: A002
) -> tuple[Tensor, Tensor]:
    """Render a batch of scenes.

    Masks are the same bits on every device; colours agree to one grey level.

    Args:
        scene: What to draw, on any device.
        size: Size of the images: one number, or (height, width). The view is squashed to it.
        lens: The camera's window.
        look: Strengths of the lamps and other parameters of the shading.
        compile: Whether to fuse the shading with ``torch.compile``; None does so on CUDA only.

    Returns:
        image: uint8 ``(batch, 3, height, width)``, RGB.
        mask: uint8 ``(batch, height, width)``: 1 + the index of the object at the pixel's centre,
            0 for the ground and the sky.

    Example:
        >>> import torch
        >>> from slotmesh.worlds.clevr import Clevr
        >>> scene, _ = Clevr(seed=0).scenes(torch.arange(2))
        >>> image, mask = render(scene, size=(80, 120))
        >>> image.shape, mask.shape
        (torch.Size([2, 3, 80, 120]), torch.Size([2, 80, 120]))
    """
    shape = (size, size) if isinstance(size, int) else size
    if min(shape) < 1:
        raise ValueError(f"render: size is {size}, expected at least 1 pixel. Pass 128.")
    seen = look_at(scene, shape, lens)
    return paint(scene, seen, lens=lens, look=look, compile=compile), seen.mask


def paint(
    scene: Scene,
    seen: Visible,
    *,
    lens: Lens = CLEVR_LENS,
    look: Look = CLEVR_LOOK,
    compile: bool | None = None,  # noqa: A002
) -> Tensor:
    """Shade scenes for which `look_at` found what every pixel shows; arguments as in `render`."""
    device = scene.position.device
    fused = device.type == "cuda" if compile is None else compile

    def part(first: int) -> Tensor:
        rows = slice(first, first + step)
        seen_there = Visible(seen.mask[rows], seen.depth[rows])
        with set_apart(device):
            return _paint(scene[rows], seen_there, lens, look, compiled if fused else plain)

    step = _CHUNK.get(device.type, 4)
    # Concatenation copies, in the caller's mode.
    return torch.cat(spread(part, range(0, max(len(scene), 1), step), device))


def _paint(scene: Scene, seen: Visible, lens: Lens, look: Look, fuse: Fuse) -> Tensor:
    device = seen.mask.device
    n_scenes, height, width = seen.mask.shape
    camera = camera_of(scene)
    world, frames = prepare(scene, camera, lens, look), frames_of(scene, camera, lens)
    u_centre, v_centre = _centres(height, width, device)

    textured = scene.ground is not None
    edge, low, high = _edges(seen.mask)
    fine = edge | _of_metal(scene, seen.mask) | textured
    linear = torch.empty(n_scenes, len(u_centre), 3, device=device)
    mask, depth, fine = tile(seen.mask), tile(seen.depth), tile(fine)

    at, pixel = (~fine).nonzero().unbind(1)
    if len(at):
        rays = Rays(at, u_centre[pixel], v_centre[pixel], mask[at, pixel], depth[at, pixel])
        linear[at, pixel] = shade(world, rays, fuse)
    at, pixel = fine.nonzero().unbind(1)
    if len(at):
        candidates = [mask[at, pixel], tile(low)[at, pixel], tile(high)[at, pixel]]
        step = torch.tensor(_OFFSETS, dtype=torch.float64, device=device)
        u = u_centre[pixel][:, None] + step[:, 0] * (2 / width)
        v = v_centre[pixel][:, None] + step[:, 1] * (2 / height)
        which, t = _resolve(frames, at, candidates, u, v, scene.present.shape[1])
        rays = Rays(
            at.repeat_interleave(len(step)), u.flatten(), v.flatten(), which.flatten(), t.flatten()
        )
        # By object: edges lie far apart, and rays of a block should hit points close together.
        order = (rays.scene * 256 + rays.which).argsort(stable=True)
        # Clipped first: a highlight brighter than white would leave jagged edges.
        colour = torch.empty(len(order), 3, device=device)
        colour[order] = shade(world, Rays(*(x[order] for x in rays)), fuse).clamp(max=1)
        linear[at, pixel] = colour.view(len(at), len(step), 3).mean(1)
    image = _to_bytes(linear)
    return torch.stack([untile(x, n_scenes, (height, width)) for x in image.unbind(-1)], dim=1)


def _centres(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Centres of the pixels in the order of `tile`, in [-1, 1] over the image; float64."""
    high, wide = -(-height // TILE) * TILE, -(-width // TILE) * TILE
    x = torch.arange(wide, dtype=torch.float64, device=device) + 0.5
    y = torch.arange(high, dtype=torch.float64, device=device) + 0.5
    u = (x * (2 / width) - 1).expand(1, high, wide)
    v = (y * (2 / height) - 1)[:, None].expand(1, high, wide)
    return tile(u)[0], tile(v)[0]


def _edges(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where a pixel and its eight neighbours differ, and the smallest and largest of the nine."""
    low = high = mask
    for dim in (1, 2):
        n = mask.shape[dim]
        before, after = (
            torch.arange(n, device=mask.device).add(step).clamp(0, n - 1) for step in (-1, 1)
        )
        beside = low.index_select(dim, before), low.index_select(dim, after)
        low = torch.minimum(torch.minimum(low, beside[0]), beside[1])
        beside = high.index_select(dim, before), high.index_select(dim, after)
        high = torch.maximum(torch.maximum(high, beside[0]), beside[1])
    return low != high, low, high


def _of_metal(scene: Scene, mask: Tensor) -> Tensor:
    """Pixels of metal objects: their reflections have edges too."""
    metal = torch.nn.functional.pad(scene.material == METAL, (1, 0))
    return metal.gather(1, mask.flatten(1).long()).view(mask.shape)


def _resolve(
    frames: Frames, at: Tensor, candidates: list[Tensor], u: Tensor, v: Tensor, n: int
) -> tuple[Tensor, Tensor]:
    """Which of the candidates (1 + the object's index, 0 for none) the rays hit, and where."""
    which = torch.zeros(u.shape, dtype=torch.uint8, device=u.device)
    best = torch.full(u.shape, torch.inf, dtype=torch.float64, device=u.device)
    rows = []
    for i, candidate in enumerate(candidates):
        new = candidate > 0
        for other in candidates[:i]:
            new &= candidate != other
        rows.append(new.nonzero().squeeze(1))
    row = torch.cat(rows)
    chosen = torch.cat([c[r] for c, r in zip(candidates, rows, strict=True)])
    met = cast(frames, at[row] * n + chosen.long() - 1, u[row], v[row])
    lengths = [len(r) for r in rows]
    for row, t, candidate in zip(rows, met.split(lengths), chosen.split(lengths), strict=True):
        nearer = t < best[row]
        best[row] = torch.where(nearer, t, best[row])
        which[row] = torch.where(nearer, candidate[:, None], which[row])
    return which, best


def _to_bytes(linear: Tensor) -> Tensor:
    """Linear light to sRGB in whole numbers from 0 to 255."""
    x = linear.clamp(0, 1)
    curved = torch.where(x <= 0.0031308, 12.92 * x, 1.055 * x.clamp(min=1e-4) ** (1 / 2.4) - 0.055)
    return (curved * 255).round().to(torch.uint8)
