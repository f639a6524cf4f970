"""Where CLEVR's objects stand: rejection by distance, direction, overlap and visible pixels.

What an object is (count, size, shape, colour, material) is drawn once a sample; where things
stand is drawn anew until a whole scene fits. So the former stay exactly uniform, whatever the
rejection prefers. All arithmetic is float64 with correctly rounded operations, and each attempt has
its own random numbers: the same sample comes out the same on every device and in every batch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from slotmesh.worlds._random import uniform
from slotmesh.worlds.render.threads import spread

T = TypeVar("T")

_TRIES = 50
"""Places tried for an object before the scene starts again."""
_ATTEMPTS = 1 << 16
"""Scenes tried for a sample at most; ten large objects need some tens."""
_CHUNK = 64
_SIDE = 3.0
_DISTANCE = 0.25
_MARGIN = 0.4
# CLEVR's directions "right" and "front" on the ground, as its scene files give them.
_RIGHT = (0.6563112735748291, 0.7544902563095093)
_FRONT = (0.754490315914154, -0.6563112735748291)


class Layout(NamedTuple):
    """Where the objects of a batch of scenes stand, and the camera."""

    xy: Tensor
    """float64 ``(batch, n, 2)``."""
    turn: Tensor
    """float64 ``(batch, n)``: rotation about the vertical, in turns, in [0, 1)."""
    camera: Tensor
    """float64 ``(batch, 3)``: jitter of the camera, in [-0.5, 0.5)."""

    def __getitem__(self, which: Tensor) -> "Layout":  # type: ignore[override]
        return Layout(self.xy[which], self.turn[which], self.camera[which])


@dataclass(frozen=True)
class Footprints:
    """What placement needs to know of the objects; all ``(batch, n)``."""

    radius: Tensor
    """float64: the size in the rule of distances."""
    square: Tensor
    """float64: half the side of a cube's footprint, 0 for round objects."""
    present: Tensor
    """bool."""

    def __getitem__(self, which: Tensor) -> "Footprints":
        return Footprints(self.radius[which], self.square[which], self.present[which])


def place(
    seed: int,
    index: Tensor,
    prints: Footprints,
    accept: Callable[[Layout, Tensor], tuple[Tensor, T]],
    keep: Callable[[T, Tensor, T | None, Tensor], T],
) -> tuple[Layout, T]:
    """The first layout of each sample that keeps the rules.

    Args:
        seed: The world's seed.
        index: int64 ``(batch)``: the samples.
        prints: Their objects.
        accept: Given layouts and the rows of the batch that they are for, says which of them show
            every object well enough (bool), and anything made on the way.
        keep: ``keep(made, chosen, result, rows)`` puts chosen rows of that into rows of the result.

    Returns:
        The layouts, and what `accept` made for them.
    """
    n_scenes, n = prints.present.shape
    device = index.device
    layout = Layout(
        torch.zeros(n_scenes, n, 2, dtype=torch.float64, device=device),
        torch.zeros(n_scenes, n, dtype=torch.float64, device=device),
        torch.zeros(n_scenes, 3, dtype=torch.float64, device=device),
    )
    result: T | None = None
    open_rows, attempt = torch.arange(n_scenes, device=device), 0
    while len(open_rows):
        if attempt >= _ATTEMPTS:
            raise RuntimeError(f"no layout fits sample {int(index[open_rows[0]])}")
        # As samples are done, more attempts of the others run side by side; the first that fits
        # is taken, so the result does not depend on how many there were.
        ahead = min(max(n_scenes // len(open_rows), 1), 32, _ATTEMPTS - attempt)
        rows = open_rows.repeat_interleave(ahead)
        numbers = torch.arange(attempt, attempt + ahead, device=device).repeat(len(open_rows))
        tried, fits = _arrange_all(seed, index[rows] * _ATTEMPTS + numbers, prints[rows])
        which = fits.nonzero().squeeze(1)
        good, made = accept(tried[which], rows[which])
        passed = torch.zeros_like(fits)
        passed[which] = good
        # The first that passed, of each sample's attempts.
        order = torch.arange(ahead, device=device)
        first = torch.where(passed.view(-1, ahead), order, ahead).amin(1)
        done = first < ahead
        chosen = (torch.arange(len(open_rows), device=device) * ahead + first)[done]
        rows_done = open_rows[done]
        for a, b in zip(layout, tried, strict=True):
            a[rows_done] = b[chosen]
        among = torch.full_like(rows, -1)
        among[which] = torch.arange(len(which), device=device)
        result = keep(made, among[chosen], result, rows_done)
        open_rows, attempt = open_rows[~done], attempt + ahead
    assert result is not None
    return layout, result


def _arrange_all(seed: int, stream: Tensor, prints: Footprints) -> tuple[Layout, Tensor]:
    """`_arrange` of a few at a time, where the processor's cache is small."""
    step = _CHUNK if stream.device.type == "cpu" else len(stream)
    chunks = torch.arange(len(stream), device=stream.device).split(step)
    parts = spread(lambda rows: _arrange(seed, stream[rows], prints[rows]), chunks, stream.device)
    layouts, fits = zip(*parts, strict=True)
    return Layout(*(torch.cat(x) for x in zip(*layouts, strict=True))), torch.cat(fits)


def _arrange(seed: int, stream: Tensor, prints: Footprints) -> tuple[Layout, Tensor]:
    """One attempt each: a layout, and whether a place was found for every object."""
    n = prints.present.shape[1]
    spots = uniform(seed, stream, "place", (n, _TRIES, 2)) * (2 * _SIDE) - _SIDE
    turn = uniform(seed, stream, "turn", (n,))
    camera = uniform(seed, stream, "camera", (3,)) - 0.5
    cos, sin = cos_sin(turn)
    xy = torch.zeros(len(stream), n, 2, dtype=torch.float64, device=stream.device)
    fits = torch.ones(len(stream), dtype=torch.bool, device=stream.device)
    order = torch.arange(_TRIES, device=stream.device)
    for k in range(n):
        x, y = spots[:, k, :, 0], spots[:, k, :, 1]
        free = torch.ones_like(x, dtype=torch.bool)
        if k:
            dx, dy = x[:, :, None] - xy[:, None, :k, 0], y[:, :, None] - xy[:, None, :k, 1]
            apart = _apart(dx, dy, prints, cos, sin, k)
            free = (apart | ~prints.present[:, None, :k]).all(2)
        first = torch.where(free, order, _TRIES).amin(1)
        fits &= (first < _TRIES) | ~prints.present[:, k]
        xy[:, k] = spots[torch.arange(len(xy), device=xy.device), k, first.clamp(max=_TRIES - 1)]
    return Layout(xy, turn, camera), fits


def _apart(dx: Tensor, dy: Tensor, prints: Footprints, cos: Tensor, sin: Tensor, k: int) -> Tensor:
    """Whether candidates for object k keep clear of the objects before: ``(batch, tries, k)``."""
    need = prints.radius[:, None, k, None] + prints.radius[:, None, :k] + _DISTANCE
    good = dx * dx + dy * dy >= need * need
    for x, y in (_RIGHT, _FRONT):
        good &= (dx * x + dy * y).abs() >= _MARGIN
    # Corners of cubes reach beyond their radius: their footprints are compared as squares.
    own, other = prints.square[:, None, k, None], prints.square[:, None, :k]
    c, s = cos[:, None, k, None], sin[:, None, k, None]
    co, so = cos[:, None, :k], sin[:, None, :k]
    x, y = (dx * c + dy * s).abs(), (dy * c - dx * s).abs()
    xo, yo = (dx * co + dy * so).abs(), (dy * co - dx * so).abs()
    tilt = (c * co + s * so).abs() + (s * co - c * so).abs()
    squares = torch.maximum(x, y) > own + other * tilt
    squares |= torch.maximum(xo, yo) > other + own * tilt
    radius, radius_other = prints.radius[:, None, k, None], prints.radius[:, None, :k]
    return good & torch.where(
        own > 0,
        torch.where(other > 0, squares, _clear(x, y, own, radius_other)),
        torch.where(other > 0, _clear(xo, yo, other, radius), True),
    )


def _clear(x: Tensor, y: Tensor, half: Tensor, radius: Tensor) -> Tensor:
    """Whether a square around the origin and a circle at (x, y) in its first quarter are apart."""
    over_x, over_y = (x - half).clamp(min=0), (y - half).clamp(min=0)
    return over_x * over_x + over_y * over_y > radius * radius


def cos_sin(turn: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of angles in turns, from sums and products only: the same bits everywhere.

    >>> cos_sin(torch.tensor([0.0, 0.25], dtype=torch.float64))[1]
    tensor([0., 1.], dtype=torch.float64)
    """
    quarter = (turn * 4).round()
    x = (turn * 4 - quarter) * (math.pi / 2)
    square = x * x
    cos, sin = torch.ones_like(x), torch.ones_like(x)
    # Taylor's series in Horner's form; the angle is within an eighth of a turn.
    for i in range(8, 0, -1):
        cos = 1 - cos * square * (1 / ((2 * i - 1) * (2 * i)))
        sin = 1 - sin * square * (1 / ((2 * i) * (2 * i + 1)))
    sin = sin * x
    quarter = quarter.to(torch.int64) % 4
    swap, negative = quarter % 2 == 1, quarter >= 2
    cos, sin = torch.where(swap, -sin, cos), torch.where(swap, cos, sin)
    return torch.where(negative, -cos, cos), torch.where(negative, -sin, sin)
