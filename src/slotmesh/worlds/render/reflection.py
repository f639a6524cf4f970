"""The first object that reflected rays hit."""

import torch
from torch import Tensor

from slotmesh.worlds.render.lighting import Lit
from slotmesh.worlds.render.rays import groups
from slotmesh.worlds.render.shapes import HITS
from slotmesh.worlds.render.vec import Vec, dot, rotate_back, sub, vec


def nearest(
    world: Lit,
    scene: Tensor,
    point: Vec,
    out: Vec,
    own: Tensor,
) -> tuple[Tensor, Tensor]:
    """Find the first object, other than their own, that rays from objects hit.

    Args:
        world: The scenes.
        scene: int64 ``(m)``: the scene of each block of rays.
        point: Vector of ``(m, b)``: where the rays start.
        out: Vector of ``(m, b)``: where they go, of length one.
        own: int64 ``(m, b)``: the object that they start from.

    Returns:
        Distance ``(m, b)`` and index of the object; infinity and -1 for none.
    """
    n = world.present.shape[1]
    centre = world.position[scene].transpose(0, 1)[:, :, None]
    away = sub(vec(centre), point)
    along = dot(away, out)
    ball = world.reach[scene].T[:, :, None]
    near = (along > 0) & (dot(away, away) - along * along < ball * ball)
    objects = torch.arange(n, device=own.device)[:, None, None]
    near &= world.present[scene].T[:, :, None] & (own != objects)
    k, ray = near.flatten(1).nonzero().unbind(1)
    at = scene[ray // point[0].shape[1]]
    kind = world.shape[at, k].to(torch.uint8)
    # One sort finds the rays of every shape, as in visibility.cast.
    order = kind.argsort(stable=True)
    here, rays, whose = at[order], ray[order], k[order]
    start, way = (
        (x.flatten()[rays], y.flatten()[rays], z.flatten()[rays]) for x, y, z in (point, out)
    )
    rotation = world.rotation[here, whose]
    inverse = 1 / world.size[here, whose]
    away = rotate_back(rotation, sub(start, vec(world.position[here, whose])))
    o, d = torch.stack(away) * inverse, torch.stack(rotate_back(rotation, way)) * inverse
    t = torch.empty(len(k), device=own.device)
    for shape, rows in groups(kind, len(HITS)):
        if rows.stop > rows.start:
            t[order[rows]] = HITS[shape](o[:, rows], d[:, rows])
    best = torch.full_like(point[0], torch.inf).flatten().scatter_reduce(0, ray, t, "amin")
    # The first of several that are equally near.
    number = torch.where((t == best[ray]) & (t < torch.inf), k, n)
    which = torch.full_like(own, n).flatten().scatter_reduce(0, ray, number, "amin")
    return best.view_as(own), torch.where(which < n, which, -1).view_as(own)
