"""Where CLEVR's objects stand: rejection by distance, direction, overlap and visible pixels.

The objects themselves (count, size, shape, colour, material) are drawn once per sample; their
places are drawn again until a whole scene fits. The former therefore stay exactly uniform, whatever
the rejection prefers. All arithmetic is float64 with correctly rounded operations, and each attempt
has its own random numbers: a sample is the same on every device and in every batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.worlds._random import uniform
from slotmesh.worlds.record import TensorRecord
from slotmesh.worlds.render.threads import spread

_TRIES = 50
"""Places tried per object before the scene starts again."""
_ATTEMPTS = 1 << 16
"""Most scenes tried per sample; one in a thousand of ClevrTex needs some thousands."""
_CHUNK = 32
_AT_ONCE = 1 << 14
"""Attempts made at once on a GPU."""
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
    turned: Tensor
    """float64 ``(batch, n, 2)``: its cosine and sine."""
    camera: Tensor
    """float64 ``(batch, 3)``: jitter of the camera, in [-0.5, 0.5)."""

    def __getitem__(self, which: Tensor) -> "Layout":  # type: ignore[override]
        return Layout(*(x[which] for x in self))


@dataclass(frozen=True)
class Footprints(TensorRecord):
    """What placement needs to know about the objects; all ``(batch, n)``."""

    radius: Tensor
    """float64: radius used for distances."""
    square: Tensor
    """float64: half the side of a cube's footprint, 0 for round objects."""
    present: Tensor
    """bool."""


def place(
    seed: int,
    index: Tensor,
    prints: Footprints,
    accept: Callable[[Layout, Tensor], tuple[Tensor, Sequence[Tensor]]],
) -> tuple[Layout, list[Tensor]]:
    """Find the first layout of each sample that keeps the rules.

    Args:
        seed: The world's seed.
        index: int64 ``(batch)``: the samples.
        prints: Their objects.
        accept: Given layouts and their rows of the batch, returns in which of them every object is
            visible enough (bool), and tensors computed on the way, with one row per layout.

    Returns:
        The layouts, and what `accept` computed for them.
    """
    n_scenes, n = prints.present.shape
    device = index.device
    sizes = ((n, 2), (n,), (n, 2), (3,))
    layout = Layout(
        *(torch.zeros(n_scenes, *size, dtype=torch.float64, device=device) for size in sizes)
    )
    result: list[Tensor] = []
    open_rows, begun = torch.arange(n_scenes, device=device), 0
    while n_open := len(open_rows):
        if begun == _ATTEMPTS:
            raise RuntimeError(f"no layout fits sample {int(index[open_rows[0]])}")
        # As samples finish, more attempts at the others run in parallel; the first that fits is
        # used, so the result does not depend on their number.
        ahead = min(_ahead(n_scenes, n_open, device), _ATTEMPTS - begun)
        order = torch.arange(ahead, device=device)
        rows = open_rows.repeat_interleave(ahead)
        streams = index[rows] * _ATTEMPTS + (begun + order).repeat(n_open)
        tried, fits = _arrange_all(seed, streams, prints[rows])
        begun += ahead
        left, n_left = fits.view(n_open, ahead), n_open
        is_open = torch.ones_like(open_rows, dtype=torch.bool)
        # Rendering costs more than arranging: look at the first few that fit, then at the next.
        while n_left:
            shown = left & (left.cumsum(1) <= _looks(n_scenes, n_left, device))
            which = shown.flatten().nonzero().squeeze(1)
            if len(which) == 0:
                break
            good, made = accept(tried[which], rows[which])
            passed = torch.zeros_like(shown).flatten()
            passed[which] = good
            first = torch.where(passed.view(n_open, ahead), order, ahead).amin(1)
            done = (first < ahead).nonzero().squeeze(1)
            chosen, rows_done = done * ahead + first[done], open_rows[done]
            for a, b in zip(layout, tried, strict=True):
                a[rows_done] = b[chosen]
            among = torch.full_like(rows, -1)
            among[which] = torch.arange(len(which), device=device)
            result = result or [x.new_empty(n_scenes, *x.shape[1:]) for x in made]
            for a, b in zip(result, made, strict=True):
                a[rows_done] = b[among[chosen]]
            is_open &= first == ahead
            left = left & ~shown & is_open[:, None]
            n_left -= len(done)
        open_rows = open_rows[is_open.nonzero().squeeze(1)]
    return layout, result


def _ahead(n_scenes: int, n_open: int, device: torch.device) -> int:
    """Attempts per sample made at once."""
    if device.type == "cpu":
        return min(max(n_scenes // n_open, 1), 32)
    # Kernel launches dominate on a GPU: few rounds of many attempts.
    return max(_AT_ONCE // n_open, 1)


def _looks(n_scenes: int, n_open: int, device: torch.device) -> int:
    """Attempts per sample, of those that fit, rendered at once."""
    return 1 if device.type == "cpu" else max(n_scenes // n_open, 1)


def _arrange_all(seed: int, stream: Tensor, prints: Footprints) -> tuple[Layout, Tensor]:
    """`_arrange`, on a CPU in chunks that fit its cache."""
    step = _CHUNK if stream.device.type == "cpu" else len(stream)
    chunks = torch.arange(len(stream), device=stream.device).split(step)
    parts = spread(lambda rows: _arrange(seed, stream[rows], prints[rows]), chunks, stream.device)
    layouts, fits = zip(*parts, strict=True)
    return Layout(*(torch.cat(x) for x in zip(*layouts, strict=True))), torch.cat(fits)


def _arrange(seed: int, stream: Tensor, prints: Footprints) -> tuple[Layout, Tensor]:
    """Make one attempt each: a layout, and whether a place was found for every object."""
    n = prints.present.shape[1]
    spots = uniform(seed, stream, "place", (n, _TRIES, 2)) * (2 * _SIDE) - _SIDE
    turn = uniform(seed, stream, "turn", (n,))
    camera = uniform(seed, stream, "camera", (3,)) - 0.5
    turned = cos_sin(turn)
    pairs = _pairs(prints, *turned)
    xy = torch.zeros(len(stream), n, 2, dtype=torch.float64, device=stream.device)
    fits = torch.ones(len(stream), dtype=torch.bool, device=stream.device)
    order = torch.arange(_TRIES, device=stream.device)
    row = torch.arange(len(stream), device=stream.device)
    absent = ~prints.present
    xy[:, 0] = spots[:, 0, 0]
    for k in range(1, n):
        dx, dy = (spots[:, k, None, :, i] - xy[:, :k, i, None] for i in range(2))
        apart = _apart(dx, dy, pairs, k) | absent[:, :k, None]
        first = torch.where(apart.all(1), order, _TRIES).amin(1)
        fits &= (first < _TRIES) | absent[:, k]
        xy[:, k] = spots[row, k, first.clamp(max=_TRIES - 1)]
    return Layout(xy, turn, torch.stack(turned, dim=-1), camera), fits


class _Pairs(NamedTuple):
    """What the rules need to know about two objects, wherever they stand; ends in (batch, n, n).

    A bound of -1 is always satisfied.
    """

    need: Tensor
    """Least squared distance of their centres."""
    along: Tensor
    """``(6, ...)``: x components of the axes that distances are measured along: those of the first
    object, of the second, and "right" and "front"."""
    across: Tensor
    """``(6, ...)``: y components."""
    reach: Tensor
    """``(2, ...)``: how far two cubes reach, along the axes of the first and of the second."""
    half: Tensor
    """``(2, 1, ...)``: half the side of the first and of the second."""
    round: Tensor
    """``(2, ...)``: the squared radius of the other, if only the first (the second) is a cube."""


def _pairs(prints: Footprints, cos: Tensor, sin: Tensor) -> _Pairs:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (*x.shape, x.shape[1])
        return x[:, :, None].expand(shape), x[:, None].expand(shape)

    (radius, radius_other), (half, half_other) = both(prints.radius), both(prints.square)
    (c, co), (s, so) = both(cos), both(sin)
    need = radius + radius_other + _DISTANCE
    tilt = (c * co + s * so).abs() + (s * co - c * so).abs()
    # Corners of cubes reach beyond their radius, so footprints are compared as squares.
    reach = torch.stack((half + half_other * tilt, half_other + half * tilt))
    fixed = [[torch.full_like(tilt, axis[i]) for axis in (_RIGHT, _FRONT)] for i in range(2)]
    alone = torch.stack(((half_other == 0) & (half > 0), (half == 0) & (half_other > 0)))
    squared = torch.stack((radius_other * radius_other, radius * radius))
    return _Pairs(
        need * need,
        torch.stack((c, -s, co, -so, *fixed[0])),
        torch.stack((s, c, so, co, *fixed[1])),
        torch.where((half > 0) & (half_other > 0), reach, -1.0),
        torch.stack((half, half_other))[:, None],
        torch.where(alone, squared, -1.0),
    )


def _apart(dx: Tensor, dy: Tensor, pairs: _Pairs, k: int) -> Tensor:
    """Whether candidates for object k keep clear of earlier objects: ``(batch, k, tries)``."""
    need, along, across, reach, half, round_ = (x[..., k, :k, None] for x in pairs)
    good = dx * dx + dy * dy >= need
    places = along * dx
    places += across * dy
    places.abs_()
    good &= torch.minimum(places[4], places[5]) >= _MARGIN
    own = places[:4].unflatten(0, (2, 2))
    squares = torch.maximum(own[:, 0], own[:, 1]) > reach
    good &= squares[0] | squares[1]
    # A square around the origin and a circle.
    over = (own - half).clamp_(min=0)
    over *= over
    clear = over[:, 0] + over[:, 1] > round_
    return good & clear[0] & clear[1]


def cos_sin(turn: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of angles in turns, from sums and products only, so the same bits everywhere.

    >>> cos_sin(torch.tensor([0.0, 0.25], dtype=torch.float64))[1]
    tensor([0., 1.], dtype=torch.float64)
    """
    quarter = (turn * 4).round()
    x = (turn * 4 - quarter) * (math.pi / 2)
    square = x * x
    # Taylor's series in Horner's form; the angle is within an eighth of a turn.
    factors = [[1 / ((2 * i - 1) * (2 * i)), 1 / ((2 * i) * (2 * i + 1))] for i in range(8, 0, -1)]
    both = torch.ones(2, *x.shape, dtype=x.dtype, device=x.device)
    for factor in torch.tensor(factors, dtype=x.dtype, device=x.device):
        both = 1 - both * square * factor.view(-1, *([1] * x.ndim))
    cos, sin = both[0], both[1] * x
    quarter = quarter.to(torch.int64) % 4
    swap, negative = quarter % 2 == 1, quarter >= 2
    cos, sin = torch.where(swap, -sin, cos), torch.where(swap, cos, sin)
    return torch.where(negative, -cos, cos), torch.where(negative, -sin, sin)
