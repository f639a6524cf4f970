"""How much of a lamp a point sees, and how open its surroundings are."""

from collections.abc import Callable

import torch
from torch import Tensor

from slotmesh.worlds.render.shapes import RING, TUBE
from slotmesh.worlds.render.vec import Vec, dot, sub

REACH = (1.74, 1.01, 1.42, 1.01)
"""Radius of a ball around each shape of ``SHAPES``, over its half-extent."""
_STEPS = 6
_LOOKS = 8

# Each takes points and a lamp in the object's frame, and returns how far along the way to the lamp
# (0 to 1) the ray is deepest in the object, or closest to it, and how far outside it is there.


def _past_ball(o: Vec, d: Vec) -> tuple[Tensor, Tensor]:
    s = (-dot(o, d) / dot(d, d)).clamp(0, 1)
    x, y, z = _at(o, d, s)
    return s, (x * x + y * y + z * z).sqrt() - 1


def _past_cube(o: Vec, d: Vec) -> tuple[Tensor, Tensor]:
    s, step = _halfway(o, d)
    # Mirrored so that all coordinates grow along the ray. The largest absolute one is convex, and
    # falls as long as the least coordinate is further from 0 than the greatest: bisection.
    x, y, z = (a.copysign(a * b) for a, b in zip(o, d, strict=True))
    o, d = (x, y, z), (d[0].abs(), d[1].abs(), d[2].abs())
    for _ in range(_STEPS):
        low, high = _ends(_at(o, d, s))
        step = 0.5 * step
        s = s - step.copysign(low + high)
    low, high = _ends(_at(o, d, s))
    return s, torch.maximum(-low, high) - 1


def _past_cylinder(o: Vec, d: Vec) -> tuple[Tensor, Tensor]:
    s, step = _halfway(o, d)
    for _ in range(_STEPS):
        x, y, z = _at(o, d, s)
        slope = torch.where(x * x + y * y > z * z, x * d[0] + y * d[1], z * d[2])
        step = 0.5 * step
        s = s - step.copysign(slope)
    x, y, z = _at(o, d, s)
    return s, torch.maximum((x * x + y * y).sqrt(), z.abs()) - 1


def _past_torus(o: Vec, d: Vec) -> tuple[Tensor, Tensor]:
    low, high = _span(o, d)
    best, deepest = low, torch.full_like(low, torch.inf)
    for i in range(_LOOKS):
        s = low + (high - low) * ((i + 0.5) / _LOOKS)
        x, y, z = _at(o, d, s)
        ring = (x * x + z * z).sqrt() - RING
        outside = (ring * ring + y * y).sqrt() - TUBE
        best = torch.where(outside < deepest, s, best)
        deepest = torch.minimum(outside, deepest)
    return best, deepest


_PAST: tuple[Callable[[Vec, Vec], tuple[Tensor, Tensor]], ...] = (
    _past_cube,
    _past_ball,
    _past_cylinder,
    _past_torus,
)


def lamp_share(shape: int | Tensor, o: Vec, lamp: Vec, size: Tensor, radius: Tensor) -> Tensor:
    """The share of a lamp, a disc, that an object does not hide.

    Args:
        shape: Index in ``SHAPES``, for all points or for each.
        o: Points in the object's frame.
        lamp: The lamp in the object's frame.
        size: The object's half-extent.
        radius: The lamp's radius in the world.

    Returns:
        In [0, 1], of the shape that the arguments broadcast to.
    """
    d = sub(lamp, o)
    if isinstance(shape, int):
        s, outside = _PAST[shape](o, d)
    else:
        s, outside = _PAST[0](o, d)
        for i, past in enumerate(_PAST[1:], start=1):
            there = past(o, d)
            s = torch.where(shape == i, there[0], s)
            outside = torch.where(shape == i, there[1], outside)
    # The cone from the point to the lamp is radius * s wide at s.
    ratio = (outside * size / (radius * s.clamp(min=1e-3))).clamp(-1, 1)
    # Nearly the area of a disc on one side of a straight edge.
    return 0.5 + ratio * (0.75 - 0.25 * ratio * ratio)


def openness(away: Vec, normal: Vec, ball: Tensor) -> Tensor:
    """The share of the ambient light on a surface that a ball lets through.

    Args:
        away: From the points to the ball's centre.
        normal: Normals of the surface, of length one.
        ball: The ball's radius.

    Returns:
        In [0, 1]; 1 beyond four radii.
    """
    square = dot(away, away)
    share = (ball * ball / square).clamp(max=1)
    towards = (dot(away, normal) * torch.rsqrt(square)).clamp(min=0)
    return 1 - towards * (share - 1 / 16).clamp(min=0)


def _at(o: Vec, d: Vec, s: Tensor) -> Vec:
    return torch.addcmul(o[0], s, d[0]), torch.addcmul(o[1], s, d[1]), torch.addcmul(o[2], s, d[2])


def _span(o: Vec, d: Vec) -> tuple[Tensor, Tensor]:
    """The part of the way to the lamp that is close to the object."""
    square = dot(d, d)
    middle, half = -dot(o, d) / square, 1.8 * torch.rsqrt(square)
    return (middle - half).clamp(0, 1), (middle + half).clamp(0, 1)


def _halfway(o: Vec, d: Vec) -> tuple[Tensor, Tensor]:
    """The middle of `_span`, and half its length."""
    low, high = _span(o, d)
    return 0.5 * (low + high), 0.5 * (high - low)


def _ends(a: Vec) -> tuple[Tensor, Tensor]:
    """The least and the greatest coordinate."""
    low = torch.minimum(torch.minimum(a[0], a[1]), a[2])
    return low, torch.maximum(torch.maximum(a[0], a[1]), a[2])
