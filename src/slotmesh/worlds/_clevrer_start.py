"""The first frame of a CLEVRER video: which objects there are, where, and how they move.

Some objects rest in view; the others, the movers, start at speed, mostly outside the view. The
first mover starts close and heads for a resting object; later ones come from far away, as in the
real annotations. Probabilities that the annotations do not determine are chosen so that the number
of visible objects rises between frames as often as the paper reports.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from slotmesh.worlds import _random
from slotmesh.worlds._clevrer_scene import in_view
from slotmesh.worlds._dynamics import SHAPES, Bodies, dot
from slotmesh.worlds._exact import sqrt

MAX_BODIES = 6
N_COLOURS, N_MATERIALS = 8, 2
# Measured on 12 annotations: 4 to 6 objects, 4.9 on average.
N_BODIES = ((4, 0.25), (5, 0.55), (6, 0.20))
N_MOVERS = ((1, 0.06), (2, 0.16), (3, 0.78))
SPEED = (2.72, 3.00)
REST_X, REST_Y = (-2.3, 0.8), (-1.5, 1.5)
NEAR, FAR = (3.1, 4.0), (5.5, 10.5)
# Share of later movers that also start near.
SECOND_NEAR = 0.03
# Share of movers that head for a resting object rather than for any point among them.
AIMED = 0.95
# How far off the line of a mover may pass the object it heads for.
MISS = 0.3
# A far mover is kept if it would be in view after this distance, at about frame 90.
WAY = 5.2
# The easy world: three or four objects, mostly at rest, in different colours.
EASY_BODIES = ((3, 0.5), (4, 0.5))
EASY_MOVERS = ((1, 1.0),)
EASY_COLOURS = (1, 2, 3, 7)
"""Red, blue, green and yellow."""
# Least distance between centres at the start.
_APART = 0.7
_TRIES = 24
_DIRECTIONS = 4096


@dataclass(frozen=True)
class Start:
    """The first frame of a batch of videos, ``(batch, MAX_BODIES)``."""

    bodies: Bodies
    shape: Tensor
    material: Tensor
    colour: Tensor
    real: Tensor


def draw_start(seed: int, index: Tensor, *, easy: bool = False) -> Start:
    """The first frame of the videos ``index``, int64 ``(batch)``."""
    shape, material, colour = (_easy_kinds if easy else _kinds)(seed, index)
    count = _choose(seed, index, "clevrer/count", EASY_BODIES if easy else N_BODIES)
    movers = _choose(seed, index, "clevrer/movers", EASY_MOVERS if easy else N_MOVERS)
    movers = torch.minimum(movers, count - 1)
    place = torch.arange(MAX_BODIES, device=index.device)
    wanted = place < count[:, None]
    # Resting objects take the first rows, so that movers know where to head.
    mover = place - (count - movers)[:, None]

    position, velocity, real = _place(seed, index, wanted, mover)
    # A quarter turn maps a cube to itself, and the other shapes do not show any turn.
    turn = _random.integers(seed, index, "clevrer/yaw", _DIRECTIONS // 4, (MAX_BODIES,))
    facing = _directions(index.device)[turn]
    yaw = turn.to(torch.float64) * (2 * math.pi / _DIRECTIONS)
    bodies = Bodies(position, velocity, facing, yaw, torch.zeros_like(yaw))
    return Start(bodies, shape, material, colour, real)


def _kinds(seed: int, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes, materials and colours, no two objects alike."""
    kinds = _distinct(seed, index, len(SHAPES) * N_MATERIALS * N_COLOURS)
    shape = kinds % len(SHAPES)
    material = kinds // len(SHAPES) % N_MATERIALS
    return shape, material, kinds // (len(SHAPES) * N_MATERIALS)


def _easy_kinds(seed: int, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Any shape, all of rubber, no two of one colour among the rows that are ever objects."""
    shape = _random.integers(seed, index, "clevrer/shape", len(SHAPES), (MAX_BODIES,))
    order = _random.distinct(seed, index, "clevrer/colour", len(EASY_COLOURS))
    colour = torch.tensor(EASY_COLOURS, device=index.device)[order]
    spare = (0, MAX_BODIES - len(EASY_COLOURS))
    return shape, torch.zeros_like(shape), torch.nn.functional.pad(colour, spare)


def _place(
    seed: int, index: Tensor, wanted: Tensor, mover: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, velocities and which were placed, each at the first of ``_TRIES`` that fits."""
    batch, n = wanted.shape
    tries = (n, _TRIES)
    u = _random.uniform(seed, index, "clevrer/place", (*tries, 6)).unbind(-1)
    directions = _directions(index.device)
    azimuth = directions[_random.integers(seed, index, "clevrer/azimuth", _DIRECTIONS, tries)]
    speed = _between(_random.uniform(seed, index, "clevrer/speed", (n,)), SPEED)
    near = _random.uniform(seed, index, "clevrer/near", (n,)) < SECOND_NEAR
    aimed = _random.uniform(seed, index, "clevrer/aimed", (n,)) < AIMED
    partner = _random.uniform(seed, index, "clevrer/partner", (n,))

    rest = torch.stack((_between(u[0], REST_X), _between(u[1], REST_Y)), dim=-1)
    close = (mover == 0) | near
    radius = torch.where(close[..., None], _between(u[2], NEAR), _between(u[3], FAR))
    away = azimuth * radius[..., None]
    # Any point among the resting objects, for movers that head for none of them.
    point = torch.stack((_between(u[4], REST_X), _between(u[5], REST_Y)), dim=-1)
    miss = _between(u[4], (-MISS, MISS))

    position = index.new_zeros((batch, n, 2), dtype=torch.float64)
    velocity = torch.zeros_like(position)
    real = torch.zeros_like(wanted)
    resting = (wanted & (mover < 0)).sum(-1)
    for k in range(n):
        moves = mover[:, k] >= 0
        # The target: resting objects hold the first rows.
        target = (partner[:, k] * resting).to(torch.int64)
        whom = position.gather(1, target[:, None, None].expand(-1, 1, 2))
        line = _unit(whom - away[:, k])
        beside = torch.stack((-line[..., 1], line[..., 0]), dim=-1) * miss[:, k, :, None]
        goal = torch.where(aimed[:, k, None, None], whom + beside, point[:, k])
        heading = _unit(goal - away[:, k])
        arrives = away[:, k] + heading * WAY
        fits = in_view(arrives[..., 0], arrives[..., 1]) | close[:, k, None]
        where = torch.where(moves[:, None, None], away[:, k], rest[:, k])
        fits = (fits | ~moves[:, None]) & wanted[:, k, None]
        for other in range(k):
            gap = where - position[:, other, None]
            fits = fits & ((dot(gap, gap) >= _APART * _APART) | ~real[:, other, None])
        chosen = _first(fits)
        pick = chosen[:, None, None].expand(-1, 1, 2)
        real[:, k] = fits.any(-1)
        placed = real[:, k, None]
        position[:, k] = torch.where(placed, where.gather(1, pick).squeeze(1), 0.0)
        go = heading.gather(1, pick).squeeze(1) * speed[:, k, None]
        velocity[:, k] = torch.where(placed & moves[:, None], go, 0.0)
    return position, velocity, real


def _distinct(seed: int, index: Tensor, n: int) -> Tensor:
    """Distinct whole numbers below n, int64 ``(batch, MAX_BODIES)``, every order equally likely."""
    free = torch.ones(len(index), n, dtype=torch.bool, device=index.device)
    chosen: list[Tensor] = []
    for k in range(MAX_BODIES):
        rank = _random.integers(seed, index, f"clevrer/kind{k}", n - k)
        # The rank-th number that is still free.
        this = _first(free & (free.cumsum(-1) == rank[:, None] + 1))
        free = free.scatter(1, this[:, None], False)
        chosen.append(this)
    return torch.stack(chosen, dim=-1)


def _choose(seed: int, index: Tensor, name: str, shares: tuple[tuple[int, float], ...]) -> Tensor:
    """Draw one of the values by their shares: int64 ``(batch)``."""
    u = _random.uniform(seed, index, name)
    value, bound = torch.full_like(index, shares[-1][0]), 1.0
    for choice, share in reversed(shares):
        value = torch.where(u < bound, choice, value)
        bound -= share
    return value


def _between(u: Tensor, bounds: tuple[float, float]) -> Tensor:
    return u * (bounds[1] - bounds[0]) + bounds[0]


def _unit(vector: Tensor) -> Tensor:
    return vector / sqrt(dot(vector, vector))[..., None]


def _first(where: Tensor) -> Tensor:
    """Index of the first True of the last dimension, 0 where there is none."""
    n = where.shape[-1]
    number = torch.arange(n, device=where.device).expand_as(where)
    return torch.where(where, number, n).amin(-1) % n


def _directions(device: torch.device) -> Tensor:
    """``_DIRECTIONS`` unit vectors around the circle: float64 ``(_DIRECTIONS, 2)``."""
    return torch.tensor(_circle(), dtype=torch.float64, device=device)


@functools.cache
def _circle() -> list[tuple[float, float]]:
    # Rounded, so that the last bit of a platform's sine does not matter.
    angles = [2 * math.pi * k / _DIRECTIONS for k in range(_DIRECTIONS)]
    return [(round(math.cos(a), 14), round(math.sin(a), 14)) for a in angles]
