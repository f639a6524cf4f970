"""Patterns of the textures: elementwise functions of a point.

Each takes points (two coordinates on a surface, or three in space), four parameters, which its
docstring lists, and a source of noise. It returns two amounts of colour and a height: the colour
goes from the first to the second by the first amount, then to the third by the second amount.
Amounts and heights are in [0, 1].
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.worlds.render.noise import Noise, Point, lattice, layers


class Pattern(NamedTuple):
    """Two amounts of colour and a height."""

    first: Tensor
    second: Tensor
    height: Tensor


Numbers = tuple[Tensor, Tensor, Tensor, Tensor]


def clouds(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Noise. Contrast, level of the third colour, stretch along z, strength of fine grain."""
    stretched = (p[0], p[1], p[2] * q[2])
    base = layers(stretched, noise)
    grain = noise(_times(p, 9.0))
    first = _step(0.5 - 0.5 / q[0], 0.5 + 0.5 / q[0], base)
    second = _step(q[1], q[1] + 0.12, layers((p[1] * 1.7 + 5, p[2] * 1.7, p[0] * 1.7), noise, 2))
    return Pattern(_mixed(first, grain, q[3]), second, _mixed(base, grain, q[3]) - 0.3 * second)


def marble(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Veins along a warped wave. Warp, sharpness, amount of the third colour, height of veins."""
    wave = torch.sin(math.pi * (p[0] + 0.6 * p[2] + q[0] * (layers(p, noise) - 0.5)))
    vein = (1 - wave.abs()) ** q[1]
    fog = layers((p[0] * 0.7, p[1] * 0.7 + 9, p[2] * 0.7), noise, 2)
    return Pattern(vein, q[2] * fog, q[3] * vein)


def wood(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Year rings. Rings per unit, waviness, strength of the grain along the trunk, knots."""
    bent = noise((p[0] * 0.8, p[1] * 0.8, p[2] * 0.3))
    radius = ((p[0] + q[3] * bent) ** 2 + (p[1] + 0.4) ** 2).sqrt()
    ring = radius * q[0] + q[1] * bent
    ring = ring - ring.floor()
    first = ring * ring * (1.6 - 0.6 * ring)
    grain = noise((p[0] * 14, p[1] * 14, p[2] * 1.2))
    return Pattern(first, q[2] * grain, 0.5 * first + 0.5 * grain)


def checks(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """A chessboard. Width of the joints, wear, height of the fields, unused."""
    x, y = p[0].floor(), p[1].floor()
    odd = (x + y) - 2 * ((x + y) / 2).floor()
    joint = _joint(p[0] - x, p[1] - y, q[0])
    worn = q[1] * layers(_times(p, 3.0), noise, 2)
    return Pattern(_mixed(odd, 1 - odd, 0.4 * worn), joint, (1 - joint) * (1 - q[2] * odd))


def stripes(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Stripes. Share of the second colour, softness, slant, wobble."""
    along = p[0] + q[2] * p[1] + q[3] * (noise(_times(p, 1.5)) - 0.5)
    wave = 0.5 + 0.5 * torch.sin(2 * math.pi * along)
    first = _step(1 - q[0] - q[1], 1 - q[0] + q[1], wave)
    return Pattern(first, torch.zeros_like(first), first)


def dots(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Dots. Radius, jitter, radius of the ring inside over the dot's, share of dots that exist."""
    y = p[1].floor()
    x = (p[0] + 0.5 * y).floor()
    jitter_x, jitter_y, chance = lattice(x, y, 1, 2, 3)
    dx = p[0] + 0.5 * y - x - 0.5 - q[1] * (jitter_x - 0.5)
    dy = p[1] - y - 0.5 - q[1] * (jitter_y - 0.5)
    far = (dx * dx + dy * dy).sqrt() / q[0]
    there = (chance < q[3]).float()
    dot = (1 - _step(0.85, 1.0, far)) * there
    core = (1 - _step(q[2] - 0.12, q[2] + 1e-3, far)) * there
    return Pattern(dot, core, dot * (1 - 0.6 * far * far).clamp(min=0))


def bricks(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Bricks or tiles. Length over height, joint, shift of every other row, unevenness."""
    y = p[1].floor()
    along = p[0] / q[0] + q[2] * (y - 2 * (y / 2).floor())
    x = along.floor()
    joint = _joint((along - x), p[1] - y, q[1], q[0])
    own = lattice(x, y, 4)[0]
    rough = layers(_times(p, 4.0), noise, 2)
    first = _mixed(own, rough, 0.35)
    height = (1 - joint) * (0.75 + q[3] * 0.5 * (rough - 0.5) + 0.15 * own)
    return Pattern(first, joint, height)


def planks(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Boards with grain. Length over width, joint, contrast between boards, grain."""
    y = p[1].floor()
    along = p[0] / q[0] + lattice(y, y, 5)[0]
    x = along.floor()
    joint = _joint(along - x, p[1] - y, q[1], q[0])
    own = lattice(x, y, 6)[0]
    grain = layers((p[0] * 0.8 + 20 * own, p[1] * 9), noise, 2)
    return Pattern(_mixed(grain, own, q[2]), joint, (1 - joint) * (0.8 + q[3] * (grain - 0.5)))


def weave(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Cloth. Thickness of threads, fuzz, contrast of the two directions, unused."""
    x, y = p[0].floor(), p[1].floor()
    over = (x + y) - 2 * ((x + y) / 2).floor()
    fx, fy = p[0] - x - 0.5, p[1] - y - 0.5
    across = torch.where(over > 0, fx, fy)
    length = torch.where(over > 0, fy, fx)
    bulge = (1 - (across / q[0]) ** 2).clamp(min=0) * (1 - 2 * length * length)
    gap = 1 - _step(0.0, 0.25, bulge)
    fuzz = q[1] * (noise(_times(p, 5.0)) - 0.5)
    return Pattern((q[2] * over + fuzz).clamp(0, 1), gap, bulge + 0.3 * fuzz)


def cells(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Voronoi cells with cracks. Width of cracks, contrast of cells, dome, jitter."""
    x, y = (torch.stack((a - 1, a, a + 1)) for a in (p[0].floor(), p[1].floor()))
    x, y = x[:, None], y[None]
    jitter_x, jitter_y, chance = lattice(x, y, 7, 8, 9)
    dx = x + 0.5 + q[3] * (jitter_x - 0.5) - p[0]
    dy = y + 0.5 + q[3] * (jitter_y - 0.5) - p[1]
    squares = (dx * dx + dy * dy).flatten(0, 1)
    nearest, own = squares[0], chance[0, 0]
    second = torch.full_like(nearest, 9.0)
    for far, its in zip(squares[1:], chance.flatten(0, 1)[1:], strict=True):
        closer = far < nearest
        second = torch.where(closer, nearest, torch.minimum(second, far))
        own = torch.where(closer, its, own)
        nearest = torch.where(closer, far, nearest)
    near, other = nearest.sqrt(), second.sqrt()
    crack = 1 - _step(0.5 * q[0], q[0] + 1e-3, other - near)
    first = _mixed(layers(_times(p, 2.0), noise, 2), own, q[1])
    return Pattern(first, crack, (1 - crack) * (1 - q[2] * near))


def chips(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Terrazzo: chips of two colours in a ground. Share of chips, size, unused, unused."""
    first = torch.zeros_like(p[0])
    second = torch.zeros_like(p[0])
    for layer in (0, 1):
        px, py = p[0] * (1 + 0.7 * layer) + 31 * layer, p[1] * (1 + 0.7 * layer)
        x, y = px.floor(), py.floor()
        turn, shift_x, shift_y, width, chance, colour = lattice(
            x, y, *range(10 + layer, 22 + layer, 2)
        )
        angle = 2 * math.pi * turn
        dx = px - x - 0.5 - 0.3 * (shift_x - 0.5)
        dy = py - y - 0.5 - 0.3 * (shift_y - 0.5)
        c, s = torch.cos(angle), torch.sin(angle)
        u, v = (dx * c + dy * s).abs(), (dy * c - dx * s).abs()
        # A kite with random sides.
        wide = q[1] * (0.6 + 0.8 * width)
        edge = torch.maximum(u + 0.4 * v, 1.6 * v + 0.3 * u) / wide
        there = (chance < q[0]).float() * (1 - _step(0.9, 1.0, edge))
        light = (colour < 0.5).float()
        first = torch.maximum(first, there * light)
        second = torch.maximum(second, there * (1 - light))
    return Pattern(first, second, 0.3 * torch.maximum(first, second))


def scales(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Overlapping round scales or shingles. Rim, variation, dome, unused."""
    best = torch.full_like(p[0], -1.0)
    own, rim = torch.zeros_like(best), torch.zeros_like(best)
    for row in (0, 1, 2):
        y = (p[1] * 2).floor() + row - 1
        shift = 0.5 * (y - 2 * (y / 2).floor())
        x = (p[0] + shift).floor()
        dx, dy = p[0] + shift - x - 0.5, p[1] - 0.5 * y - 0.5
        far = (dx * dx + dy * dy).sqrt() / 0.56
        # Lower rows lie on top of those above them.
        covers = (far < 1) & (best < 0)
        best = torch.where(covers, 1 - far, best)
        own = torch.where(covers, lattice(x, y, 22)[0], own)
        rim = torch.where(covers, _step(1 - q[0], 1.0, far), rim)
    return Pattern(_mixed(1 - best.clamp(0, 1), own, q[1]), rim, (1 - rim) * (1 - q[2] * best))


def zigzag(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Chevrons. Steepness, share of the second colour, softness, unused."""
    saw = ((p[0] - (p[0] + 0.5).floor()).abs() * 2) * q[0]
    along = p[1] + saw
    wave = along - along.floor()
    first = _step(0.5 - q[2], 0.5 + q[2], (wave - 0.5).abs() * 2 + q[1])
    return Pattern(first, torch.zeros_like(first), first)


def hexagons(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Hexagonal tiles. Joint, contrast of tiles, dome, unused."""
    high = math.sqrt(3.0)
    distance, own = torch.full_like(p[0], -1.0), torch.zeros_like(p[0])
    # Two lattices of rectangles, shifted by half; each point belongs to the closer centre.
    for shift in (0.0, 0.5):
        x, y = (p[0] + shift).floor(), (p[1] / high + shift).floor()
        dx = (p[0] + shift - x - 0.5).abs()
        dy = (p[1] / high + shift - y - 0.5).abs() * high
        inside = 0.5 - torch.maximum(dx, 0.5 * dx + 0.5 * high * dy)
        own = torch.where(inside > distance, lattice(x, y, 24 + int(2 * shift))[0], own)
        distance = torch.maximum(inside, distance)
    joint = 1 - _step(0.5 * q[0], q[0], distance)
    first = _mixed(layers(_times(p, 2.0), noise, 2), own, q[1])
    return Pattern(first, joint, (1 - joint) * (1 - q[2] + q[2] * 2 * distance))


def plaid(p: Point, q: Numbers, noise: Noise) -> Pattern:
    """Tartan. Share of broad bands, share of thin lines, strength of the twill, unused."""
    band_x, band_y = (_band(x, q[0]) for x in p[:2])
    line_x, line_y = (_band(x + 0.5, q[1]) for x in p[:2])
    twill = (p[0] + p[1]) * 8
    twill = q[2] * (twill - twill.floor())
    first = 0.5 * (band_x + band_y)
    return Pattern(_mixed(first, twill, 0.25), 0.7 * torch.maximum(line_x, line_y), twill)


PATTERNS: dict[str, Callable[[Point, Numbers, Noise], Pattern]] = {
    f.__name__: f
    for f in (
        clouds,
        marble,
        wood,
        checks,
        stripes,
        dots,
        bricks,
        planks,
        weave,
        cells,
        chips,
        scales,
        zigzag,
        hexagons,
        plaid,
    )
}
SOLID = ("clouds", "marble", "wood")
"""Patterns in space, which come first; the others are laid on the surface."""


def _times(p: Point, by: float) -> Point:
    return tuple(x * by for x in p)


def _step(low: Tensor | float, high: Tensor | float, x: Tensor) -> Tensor:
    t = ((x - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def _mixed(a: Tensor, b: Tensor, t: Tensor | float) -> Tensor:
    return a + (b - a) * t


def _joint(x: Tensor, y: Tensor, width: Tensor, length: Tensor | float = 1.0) -> Tensor:
    """1 in the joints around a field whose x and y run from 0 to 1."""
    edge = torch.minimum(torch.minimum(x, 1 - x) * length, torch.minimum(y, 1 - y))
    return 1 - _step(0.5 * width, width + 1e-4, edge)


def _band(x: Tensor, share: Tensor) -> Tensor:
    near = (x - (x + 0.5).floor()).abs() * 2
    return 1 - _step(share - 0.05, share + 0.05, near)
