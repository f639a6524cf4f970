"""Intersections of rays with the four shapes, in the object's frame, where they fit into [-1, 1]^3.

Visibility is decided with these functions in float64, identically on every device: they use only
correctly rounded operations (+ - * / sqrt and comparisons).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from slotmesh.worlds._exact import sqrt
from slotmesh.worlds.render.vec import Vec

ROUNDING = 0.14
"""Radius of the cube's edges over its half-extent."""
BEVEL = 0.04
"""Radius of the cylinder's rims over its radius."""
RING, TUBE = 0.64, 0.36
"""Radii of the torus: of the circle inside its tube, and of the tube."""
_NEWTON = 5
_MARCH = 40


def hit_sphere(o: Tensor, d: Tensor) -> Tensor:
    """Distance along ``o + t d`` to the unit sphere, in units of d; infinity for a miss.

    Args:
        o: ``(3, ...)``: where the rays start.
        d: ``(3, ...)``: where they go.
    """
    a, b = _dot(d, d), _dot(o, d)
    inside = b * b - a * (_dot(o, o) - 1)
    t = (-b - sqrt(inside.clamp(min=0))) / a
    return _kept(t, (inside >= 0) & (t > 0))


def hit_cube(o: Tensor, d: Tensor) -> Tensor:
    """Intersect rays with the cube with rounded edges; as ``hit_sphere``."""
    enters, leaves = _slab(o, d)
    near = torch.maximum(torch.maximum(enters[0], enters[1]), enters[2])
    far = torch.minimum(torch.minimum(leaves[0], leaves[1]), leaves[2])
    back = -d
    t, ok = near, (near <= far) & (near > 0)
    # A convex function of t: Newton's method from outside never overshoots the first root.
    for _ in range(_NEWTON):
        p = _along(o, d, t)
        over = (p.abs() - (1 - ROUNDING)).clamp_(min=0)
        slope = _total(torch.where(p < 0, back, d).mul_(over))
        t, ok = _newton(t, ok, _dot(over, over), slope, ROUNDING)
    return _kept(t, ok)


def hit_cylinder(o: Tensor, d: Tensor) -> Tensor:
    """Intersect rays with the upright cylinder with rounded rims; as ``hit_sphere``."""
    a = _nonzero(_dot(d[:2], d[:2]))
    b = _dot(o[:2], d[:2])
    inside = b * b - a * (_dot(o[:2], o[:2]) - 1)
    root = sqrt(inside.clamp(min=0))
    bottom, top = _slab(o[2], d[2])
    near = torch.maximum((-b - root) / a, bottom)
    far = torch.minimum((root - b) / a, top)
    core, back = 1 - BEVEL, -d[2]
    t, ok = near, (inside >= 0) & (near <= far) & (near > 0)
    for _ in range(_NEWTON):
        p = _along(o, d, t)
        radius = sqrt(_dot(p[:2], p[:2]))
        side, cap = (radius - core).clamp_(min=0), (p[2].abs() - core).clamp_(min=0)
        outward = _dot(p[:2], d[:2]) / radius.clamp(min=1e-6)
        slope = side * outward + cap * torch.where(p[2] < 0, back, d[2])
        t, ok = _newton(t, ok, side * side + cap * cap, slope, BEVEL)
    return _kept(t, ok)


def hit_torus(o: Tensor, d: Tensor) -> Tensor:
    """Intersect rays with the torus around the y axis; as ``hit_sphere``."""
    a, b = _dot(d, d), _dot(o, d)
    inside = b * b - a * (_dot(o, o) - 1)
    root = sqrt(inside.clamp(min=0))
    t, last = ((-b - root) / a).clamp(min=0), (root - b) / a
    pace = 1 / sqrt(a)
    distance = t
    for _ in range(_MARCH):
        p = _along(o, d, t)
        p *= p
        ring = sqrt(p[0] + p[2]) - RING
        ring *= ring
        distance = sqrt(ring + p[1]) - TUBE
        t = torch.minimum(t + distance * pace, last)
    return _kept(t, (inside >= 0) & (distance < 2e-3) & (t < last) & (t > 0))


HITS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    hit_cube,
    hit_sphere,
    hit_cylinder,
    hit_torus,
)
"""In the order of ``SHAPES``."""


def normal(p: Vec, shape: Tensor) -> Vec:
    """The outward normal (of any length) at points on the surfaces, in the object's frame."""
    x, y, z = p
    over = 1 - ROUNDING
    radius = sqrt(x * x + y * y).clamp(min=1e-6)
    side = (radius - (1 - BEVEL)).clamp(min=0) / radius
    ring = RING / sqrt(x * x + z * z).clamp(min=1e-6)
    cube, cylinder, torus = shape == 0, shape == 2, shape == 3

    def pick(sphere: Tensor, box: Tensor, tube: Tensor, turned: Tensor) -> Tensor:
        there = torch.where(cube, box, sphere)
        return torch.where(torus, turned, torch.where(cylinder, tube, there))

    return (
        pick(x, _beyond(x, over), x * side, x - x * ring),
        pick(y, _beyond(y, over), y * side, y),
        pick(z, _beyond(z, over), _beyond(z, 1 - BEVEL), z - z * ring),
    )


def _beyond(x: Tensor, core: float) -> Tensor:
    """How far x is outside [-core, core], with its sign."""
    return x - x.clamp(-core, core)


def _along(o: Tensor, d: Tensor, t: Tensor) -> Tensor:
    return (t * d).add_(o)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum of products over the first dimension, from first to last."""
    return _total(a * b)


def _total(a: Tensor) -> Tensor:
    first, second, *rest = a.unbind()
    return sum(rest, first + second)


def _slab(o: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Where a ray enters and leaves the slab [-1, 1] of one coordinate."""
    inverse = 1 / _nonzero(d)
    middle, half = -o * inverse, inverse.abs()
    return middle - half, middle + half


def _nonzero(x: Tensor) -> Tensor:
    """Replace zeros by a small number, so that a ray along a face stays finite."""
    return torch.where(x == 0, 1e-12, x)


def _newton(
    t: Tensor, ok: Tensor, value: Tensor, slope: Tensor, radius: float
) -> tuple[Tensor, Tensor]:
    """One Newton step on (squared distance to the core) - radius^2, whose rate is 2 slope."""
    above = value - radius * radius
    # Outside and not getting closer: a convex function has no root ahead.
    ok = ok & ((above < 1e-9) | (slope < 0))
    step = above.clamp(min=0) / (-2 * slope).clamp(min=1e-9)
    return torch.where(ok, t + step, t), ok


def _kept(t: Tensor, ok: Tensor) -> Tensor:
    return torch.where(ok, t, torch.inf)
