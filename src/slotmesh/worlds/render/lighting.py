"""Light that arrives at points: four lamps with soft shadows, and ambient light."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.worlds.render.fuse import Fuse, plain
from slotmesh.worlds.render.look import LAMPS, Look
from slotmesh.worlds.render.rays import groups
from slotmesh.worlds.render.scene import SHAPES, Scene
from slotmesh.worlds.render.shadows import REACH, lamp_share, openness
from slotmesh.worlds.render.vec import Vec, dot, rotate_back, scale, sub, vec

_BROAD = 5
"""Sharpness of highlights: the cosine to the power of 2 to this."""


@dataclass(frozen=True)
class Lit:
    """A batch of scenes in float32, with what lighting needs about objects and lamps."""

    position: Tensor
    rotation: Tensor
    size: Tensor
    shape: Tensor
    present: Tensor
    lamps: Tensor
    """``(batch, 4, 3)``."""
    lamps_seen: Tensor
    """``(batch, n, 4, 3)``: the lamps in the objects' frames."""
    aim: Tensor
    """``(4, 3)``: directions that the lamps face."""
    strength: Tensor
    """``(4, 3)``: red, green, blue."""
    radius: Tensor
    """``(4)``."""
    reach: Tensor
    """``(batch, n)``: radius of a bounding ball of each object."""
    ball: Tensor
    """``(batch, n)``: radius of the ball that replaces the object in `openness`."""


class Light(NamedTuple):
    """Light that arrives at points; all ``(m, b)``."""

    lamps: Vec
    """Light of the lamps: red, green, blue."""
    shine: Tensor
    """Light of the lamps in a broad highlight."""
    opened: Tensor
    """The share of the ambient light that the objects let through, in [0, 1]."""


def lit(scene: Scene, look: Look) -> Lit:
    """Prepare a batch of scenes for lighting."""

    def constant(x: object) -> Tensor:
        return torch.tensor(x, dtype=torch.float32, device=scene.position.device)

    position, rotation = scene.position.float(), scene.rotation.float()
    size, lamps = scene.size.float(), scene.lamps.float()
    there = sub(vec(lamps[:, None]), vec(position[:, :, None]))
    seen = scale(rotate_back(rotation[:, :, None], there), 1 / size[:, :, None])
    aim = torch.nn.functional.normalize(constant(look.aim) - constant(LAMPS), dim=-1)
    return Lit(
        position,
        rotation,
        size,
        scene.shape,
        scene.present,
        lamps,
        torch.stack(seen, dim=-1),
        aim,
        constant(look.strength),
        constant(look.radius),
        constant(REACH)[scene.shape] * size,
        look.ball * size,
    )


def illuminate(
    world: Lit,
    scene: Tensor,
    point: Vec,
    normal: Vec,
    own: Tensor,
    view: Vec,
    shadows: bool,
    fuse: Fuse,
) -> Light:
    """Compute the light at points, in blocks.

    Args:
        world: The scenes.
        scene: int64 ``(m)``: the scene of each block.
        point: Vector of ``(m, b)``.
        normal: Vector of ``(m, b)``, of length one.
        own: ``(m, b)``: index of the object that the point lies on, -1 for the ground.
        view: Vector of ``(m, b)``: from the eye, of length one.
        shadows: Whether the objects cast shadows.
        fuse: Wraps elementwise functions.
    """
    low = [x.amin(1) for x in point]
    high = [x.amax(1) for x in point]
    middle = (0.5 * (low[0] + high[0]), 0.5 * (low[1] + high[1]), 0.5 * (low[2] + high[2]))
    half = sub((high[0], high[1], high[2]), middle)
    spread = dot(half, half).sqrt()
    if shadows:
        share = _lamp_shares(world, scene, point, own, middle, spread, fuse)
    else:
        share = point[0].new_ones(len(scene), world.lamps.shape[1], own.shape[1])
    opened = _openness(world, scene, point, normal, own, middle, spread, fuse)
    lamps = (world.lamps[scene], world.aim, world.strength)
    colours, shine = fuse(_lamps)(point, normal, view, *lamps, share)
    return Light(colours, shine, opened)


def _lamps(
    point: Vec,
    normal: Vec,
    view: Vec,
    lamps: Tensor,
    aim: Tensor,
    strength: Tensor,
    share: Tensor,
) -> tuple[Vec, Tensor]:
    red = green = blue = shine = torch.zeros_like(point[0])
    for i in range(lamps.shape[1]):
        to = sub((lamps[:, i, 0:1], lamps[:, i, 1:2], lamps[:, i, 2:3]), point)
        square = dot(to, to)
        turned = -(to[0] * aim[i, 0] + to[1] * aim[i, 1] + to[2] * aim[i, 2])
        # Two cosines over the squared distance.
        value = dot(to, normal).clamp(min=0) * turned.clamp(min=0) / (square * square)
        value = value * share[:, i]
        red = red + value * strength[i, 0]
        green = green + value * strength[i, 1]
        blue = blue + value * strength[i, 2]
        half = sub(scale(to, torch.rsqrt(square)), view)
        peak = dot(half, normal).clamp(min=0) * torch.rsqrt(dot(half, half).clamp(min=1e-6))
        for _ in range(_BROAD):
            peak = peak * peak
        shine = shine + value * strength[i, 1] * peak
    return (red, green, blue), shine


def _lamp_shares(
    world: Lit,
    scene: Tensor,
    point: Vec,
    own: Tensor,
    middle: Vec,
    spread: Tensor,
    fuse: Fuse,
) -> Tensor:
    """The share of each lamp that each point sees: ``(m, 4, b)``."""
    n, n_lamps = world.present.shape[1], world.lamps.shape[1]
    # By object first, so that no pair of block and lamp occurs twice for one object.
    centre = vec(world.position[scene].transpose(0, 1)[:, :, None])
    start = (middle[0][:, None], middle[1][:, None], middle[2][:, None])
    way = sub(vec(world.lamps[scene]), start)
    from_start = sub(centre, start)
    s = (dot(from_start, way) / dot(way, way)).clamp(0, 1)
    gap = sub(from_start, scale(way, s))
    # Moving the point by the block's spread moves the ray by no more, and hardly widens the cone.
    length = dot(way, way).sqrt()
    ball = world.reach[scene].T[:, :, None]
    cone = world.radius * (s + (ball + spread[:, None]) / length)
    near = dot(gap, gap).sqrt() < ball + spread[:, None] + cone
    # Objects are convex: none casts a shadow on itself.
    objects = torch.arange(n, device=own.device)[:, None]
    itself = (own.amin(1) == objects) & (own.amax(1) == objects)
    near &= (world.present[scene].T & ~itself)[:, :, None]
    k, block, lamp = near.nonzero().unbind(1)
    part = _by_shape(world, scene, point, own, k, block, lamp, fuse)
    share = torch.ones(len(scene) * n_lamps, *own.shape[1:], device=own.device)
    row = block * n_lamps + lamp
    for _, rows in groups(k, n):
        here = row[rows]
        share[here] = share[here] * part[rows]
    return share.view(len(scene), n_lamps, -1)


def _by_shape(
    world: Lit,
    scene: Tensor,
    point: Vec,
    own: Tensor,
    k: Tensor,
    block: Tensor,
    lamp: Tensor,
    fuse: Fuse,
) -> Tensor:
    """The share of a lamp that an object does not hide, for pairs of object and block."""
    kind = world.shape[scene[block], k]

    def parts(shape: int | Tensor, which: Tensor, here: Tensor, lamp: Tensor) -> Tensor:
        at = scene[here]
        return fuse(_share)(
            [x[here] for x in point],
            own[here],
            shape,
            which[:, None],
            world.position[at, which],
            world.rotation[at, which],
            world.size[at, which][:, None],
            world.lamps_seen[at, which, lamp],
            world.radius[lamp][:, None],
        )

    if fuse is not plain:
        # One kernel for all shapes, instead of one per shape.
        return parts(kind[:, None], k, block, lamp)
    part = torch.empty(len(k), *own.shape[1:], device=own.device)
    for shape in range(len(SHAPES)):
        chosen = (kind == shape).nonzero().squeeze(1)
        if len(chosen):
            part[chosen] = parts(shape, k[chosen], block[chosen], lamp[chosen])
    return part


def _share(
    point: list[Tensor],
    own: Tensor,
    shape: int | Tensor,
    which: Tensor,
    position: Tensor,
    rotation: Tensor,
    size: Tensor,
    lamp: Tensor,
    radius: Tensor,
) -> Tensor:
    away = sub((point[0], point[1], point[2]), vec(position[:, None]))
    o = scale(rotate_back(rotation[:, None], away), 1 / size)
    share = lamp_share(shape, o, vec(lamp[:, None]), size, radius)
    return torch.where(own == which, 1.0, share)


def _openness(
    world: Lit,
    scene: Tensor,
    point: Vec,
    normal: Vec,
    own: Tensor,
    middle: Vec,
    spread: Tensor,
    fuse: Fuse,
) -> Tensor:
    n = world.present.shape[1]
    gap = sub(vec(world.position[scene].transpose(0, 1)), middle)
    ball = world.ball[scene].T
    near = (dot(gap, gap).sqrt() < 4 * ball + spread) & world.present[scene].T
    k, block = near.nonzero().unbind(1)
    part = fuse(_open)(
        [x[block] for x in point],
        [x[block] for x in normal],
        own[block],
        k[:, None],
        world.position[scene[block], k],
        world.ball[scene[block], k][:, None],
    )
    result = torch.ones_like(point[0])
    for _, rows in groups(k, n):
        here = block[rows]
        result[here] = result[here] * part[rows]
    return result


def _open(
    point: list[Tensor],
    normal: list[Tensor],
    own: Tensor,
    which: Tensor,
    position: Tensor,
    ball: Tensor,
) -> Tensor:
    away = sub(vec(position[:, None]), (point[0], point[1], point[2]))
    share = openness(away, (normal[0], normal[1], normal[2]), ball)
    return torch.where(own == which, 1.0, share)
