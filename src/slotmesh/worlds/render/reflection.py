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
    best = torch.full_like(point[0], torch.inf).flatten()
    which = torch.full_like(own, -1).flatten()
    centre = world.position[scene].transpose(0, 1)[:, :, None]
    away = sub(vec(centre), point)
    along = dot(away, out)
    ball = world.reach[scene].T[:, :, None]
    near = (along > 0) & (dot(away, away) - along * along < ball * ball)
    objects = torch.arange(n, device=own.device)[:, None, None]
    near &= world.present[scene].T[:, :, None] & (own != objects)
    k, ray = near.flatten(1).nonzero().unbind(1)
    at = scene[ray // point[0].shape[1]]
    kind = world.shape[at, k]
    t = torch.empty(len(k), device=own.device)
    for shape, hit in enumerate(HITS):
        chosen = (kind == shape).nonzero().squeeze(1)
        if len(chosen):
            here, rays, whose = at[chosen], ray[chosen], k[chosen]
            start, way = (
                (x.flatten()[rays], y.flatten()[rays], z.flatten()[rays])
                for x, y, z in (point, out)
            )
            rotation = world.rotation[here, whose]
            inverse = 1 / world.size[here, whose]
            o = rotate_back(rotation, sub(start, vec(world.position[here, whose])))
            d = rotate_back(rotation, way)
            t[chosen] = hit(torch.stack(o) * inverse, torch.stack(d) * inverse)
    for i, rows in groups(k, n):
        here, now = ray[rows], t[rows]
        nearer = now < best[here]
        which[here] = torch.where(nearer, i, which[here])
        best[here] = torch.where(nearer, now, best[here])
    return best.view_as(own), which.view_as(own)
