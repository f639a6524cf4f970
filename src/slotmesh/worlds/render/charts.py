"""Coordinates on the objects' surfaces, for flat patterns."""

from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.worlds.render.shapes import BEVEL, RING, TUBE
from slotmesh.worlds.render.vec import Vec


class SurfaceChart(NamedTuple):
    """Two coordinates of a point on a surface, and the directions in which they grow."""

    u: Tensor
    v: Tensor
    along_u: Vec
    along_v: Vec


def chart(p: Vec, normal: Vec, shape: Tensor) -> SurfaceChart:
    """Two coordinates for points on shapes of size one, with lengths as on the surface.

    Args:
        p: Points in the object's frame.
        normal: Normals of the surface there, of any length.
        shape: Index in ``SHAPES``; -1 is the plane z = 0.
    """
    x, y, z = p
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    ax, ay, az = (n.abs() for n in normal)
    # Faces of the cube, caps of the cylinder and the ground are flat.
    on_x, on_y = (ax >= ay) & (ax >= az), (ay > ax) & (ay >= az)
    u, v = torch.where(on_x, y, x), torch.where(on_x | on_y, z, y)
    side = (on_x | on_y).float()
    u_x = torch.where(on_x, zero, one)
    charts = [u, v, u_x, 1 - u_x, zero, zero, 1 - side, side]

    radius = (x * x + y * y).sqrt().clamp(min=1e-6)
    inverse = 1 / radius
    round_ = [torch.atan2(y, x), z, -y * inverse, x * inverse, zero, zero, zero, one]
    ball = [
        *(round_[0], torch.asin(z.clamp(-1, 1)), *round_[2:5]),
        *(-z * x * inverse, -z * y * inverse, radius),
    ]
    wide = (x * x + z * z).sqrt().clamp(min=1e-6)
    ring, inverse = wide - RING, 1 / wide
    lean = -y * inverse / TUBE
    tube = [
        *(torch.atan2(z, x) * RING, torch.atan2(y, ring) * TUBE),
        *(-z * inverse, zero, x * inverse, lean * x, ring / TUBE, lean * z),
    ]
    is_round = (shape == 2) & (z.abs() < 1 - 0.5 * BEVEL)
    for now, use in ((round_, is_round), (ball, shape == 1), (tube, shape == 3)):
        charts = [torch.where(use, a, b) for a, b in zip(now, charts, strict=True)]
    u, v, *rest = charts
    return SurfaceChart(u, v, (rest[0], rest[1], rest[2]), (rest[3], rest[4], rest[5]))
