"""The colour of rays whose first surface is known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.worlds.render.camera import Camera
from slotmesh.worlds.render.charts import chart
from slotmesh.worlds.render.fuse import Fuse
from slotmesh.worlds.render.lighting import Light, Lit, illuminate, lit
from slotmesh.worlds.render.look import Colour, Look
from slotmesh.worlds.render.rays import blocks_of
from slotmesh.worlds.render.reflection import nearest
from slotmesh.worlds.render.scene import METAL, Lens, Scene
from slotmesh.worlds.render.shapes import normal as surface_normal
from slotmesh.worlds.render.textures import Place, apply
from slotmesh.worlds.render.vec import Vec, add, dot, rotate, rotate_back, scale, sub, unit, vec


class Rays(NamedTuple):
    """A list of rays, sorted by scene."""

    scene: Tensor
    """int64 ``(n)``."""
    u: Tensor
    """``(n)``: position in the image from -1 (left) to 1."""
    v: Tensor
    """``(n)``: position in the image from -1 (top) to 1."""
    which: Tensor
    """``(n)``: 1 + the index of the object it hits; 0 for none."""
    depth: Tensor
    """``(n)``: distance along the camera's axis; used where it hits an object."""


@dataclass(frozen=True)
class PreparedScene:
    """A batch of scenes in float32, ready to be shaded."""

    lit: Lit
    eye: Tensor
    axes: tuple[Tensor, Tensor, Tensor]
    """Forward, right and down, the latter two scaled by the lens; each ``(batch, 3)``."""
    colour: Tensor
    material: Tensor
    ground: Tensor | None
    look: Look


class Surface(NamedTuple):
    """Points of surfaces, in blocks ``(m, b)``."""

    point: Vec
    normal: Vec
    own: Tensor
    """Index of the object, -1 for the ground."""
    colour: Vec
    shine: Tensor
    """Strength of the highlight."""
    metal: Tensor


def prepare(scene: Scene, camera: Camera, lens: Lens, look: Look) -> PreparedScene:
    """Prepare a batch of scenes for `shade`."""
    eye, right, down, forward = (torch.stack(a, dim=-1).float() for a in camera)
    axes = (forward, right * lens.tan_x, down * lens.tan_y)
    return PreparedScene(
        lit(scene, look), eye, axes, scene.colour.float(), scene.material, scene.ground, look
    )


def shade(world: PreparedScene, rays: Rays, fuse: Fuse) -> Tensor:
    """Linear light of rays: ``(n, 3)``."""
    blocks = blocks_of(rays.scene, len(world.eye))
    scene = blocks.scene
    u, v, depth = (x.float()[blocks.source] for x in (rays.u, rays.v, rays.depth))
    own = rays.which.long()[blocks.source] - 1
    axes = [a[scene] for a in world.axes]
    point, view = fuse(_cast)(u, v, depth, own, world.eye[scene], *axes)
    surface = _surface(world, scene, point, own, fuse)
    light = illuminate(
        world.lit, scene, surface.point, surface.normal, own, view, shadows=True, fuse=fuse
    )
    colour = torch.stack(fuse(_matte)(surface, light, view, world.look), dim=-1)
    metal = surface.metal.nonzero()
    if len(metal):
        row, column = metal.unbind(1)
        colour[row, column] = _mirror(world, scene[row], surface, view, light, row, column, fuse)
    return colour.flatten(0, 1)[blocks.place]


def _cast(
    u: Tensor,
    v: Tensor,
    depth: Tensor,
    own: Tensor,
    eye: Tensor,
    forward: Tensor,
    right: Tensor,
    down: Tensor,
) -> tuple[Vec, Vec]:
    """Where rays end, and their directions, of length one."""
    across, along = scale(vec(right[:, None]), u), scale(vec(down[:, None]), v)
    ray = add(vec(forward[:, None]), add(across, along))
    start = vec(eye[:, None])
    t = torch.where(own >= 0, depth, _to_ground(start[2], ray[2]))
    return add(start, scale(ray, t)), unit(ray)


def _to_ground(height: Tensor, falling: Tensor) -> Tensor:
    """Distance to the ground; far away for rays that do not point down."""
    return (height / (-falling).clamp(min=1e-3)).clamp(max=200.0)


def _surface(world: PreparedScene, scene: Tensor, point: Vec, own: Tensor, fuse: Fuse) -> Surface:
    """The surface at points of the objects (or of the ground, where own is -1)."""
    n = world.material.shape[1]
    ground = own < 0
    row = (scene[:, None] * n + own).clamp(min=0)
    rotation = world.lit.rotation.flatten(0, 1)[row]
    size = world.lit.size.flatten()[row]
    centre = vec(world.lit.position.flatten(0, 1)[row])
    shape = torch.where(ground, -1, world.lit.shape.flatten()[row])
    local, normal = fuse(_local)(point, centre, rotation, size, shape)
    material = world.material.flatten()[row]
    colour = _choose(ground, world.look.ground, vec(world.colour.flatten(0, 1)[row]))
    shine = torch.where(ground, 0.0, world.look.rubber_shine)
    if world.ground is not None:
        material = torch.where(ground, world.ground[scene][:, None], material)
        # The ground's textures are twice as large, and laid on the plane itself.
        at = _choose(ground, scale(point, 0.5), local)
        length = torch.where(ground, 1.0, size)
        colour, normal, shine = _textured(
            material, shape, at, length, centre, normal, colour, shine, fuse
        )
    normal = fuse(_turned)(normal, rotation, ground)
    return Surface(point, normal, own, colour, shine, ~ground & (material == METAL))


def _local(
    point: Vec, centre: Vec, rotation: Tensor, size: Tensor, shape: Tensor
) -> tuple[Vec, Vec]:
    """Points and normals in the frames of their objects; on the ground, where shape is -1, up."""
    local = scale(rotate_back(rotation, sub(point, centre)), 1 / size)
    return local, unit(_choose(shape < 0, (0.0, 0.0, 1.0), surface_normal(local, shape)))


def _turned(normal: Vec, rotation: Tensor, ground: Tensor) -> Vec:
    """Normals in the world."""
    return _choose(ground, normal, rotate(rotation, normal))


def _textured(
    material: Tensor,
    shape: Tensor,
    at: Vec,
    length: Tensor,
    centre: Vec,
    normal: Vec,
    colour: Vec,
    shine: Tensor,
    fuse: Fuse,
) -> tuple[Vec, Vec, Tensor]:
    """Colour, normal and highlight where the material is a texture."""
    chosen = (material >= 2).flatten().nonzero().squeeze(1)
    if not len(chosen):
        return colour, normal, shine

    def take(a: Vec) -> Vec:
        return _map(lambda x: x.flatten()[chosen], a)

    kind, size, normals = shape.flatten()[chosen], length.flatten()[chosen], take(normal)
    local = take(at)
    laid = chart(local, normals, kind)
    # Shifted by the object's position: no two objects show the same part of a texture.
    solid, moved = scale(local, size), take(centre)
    solid = _choose(kind < 0, solid, add(solid, moved))
    flat = tuple(
        x * size + torch.where(kind < 0, 0.0, shift)
        for x, shift in zip((laid.u, laid.v), moved, strict=False)
    )
    place = Place(solid, (flat[0], flat[1]), normals, laid.along_u, laid.along_v)
    found = apply(material.flatten()[chosen] - 2, place, fuse)

    def put(x: Tensor, new: Tensor) -> Tensor:
        changed = x.flatten().clone()
        changed[chosen] = new
        return changed.view_as(x)

    r, g, b, x, y, z = (
        put(old.expand_as(shine), new)
        for old, new in zip((*colour, *normal), (*found.colour, *found.normal), strict=True)
    )
    return (r, g, b), (x, y, z), put(shine, found.gloss)


def _matte(surface: Surface, light: Light, view: Vec, look: Look) -> list[Tensor]:
    """Diffuse light, a broad highlight, and a sheen of objects at grazing angles."""
    up = 0.5 + 0.5 * surface.normal[2]
    around = light.opened * (look.sky * up + look.bounce * (1 - up))
    ground = surface.own < 0
    # On the ground this light assumes the albedo of CLEVR's.
    lift = torch.where(ground, light.opened * (look.lift / look.ground[1]), 0.0)
    facing = (1 + dot(view, surface.normal)).clamp(0, 1)
    square = facing * facing
    gloss = torch.where(ground, 0.0, look.rubber_gloss * square * square)
    gloss = gloss + surface.shine * light.shine
    return [
        c * (a + around + lift) + gloss for c, a in zip(surface.colour, light.lamps, strict=True)
    ]


def _mirror(
    world: PreparedScene,
    scene: Tensor,
    surface: Surface,
    view: Vec,
    light: Light,
    row: Tensor,
    column: Tensor,
    fuse: Fuse,
) -> Tensor:
    """Metal: ``(n, 3)`` for rays of the blocks; one bounce off ground, objects or sky."""
    blocks = blocks_of(scene, len(world.eye))
    row, column, scene = row[blocks.source], column[blocks.source], blocks.scene

    def take(x: Tensor) -> Tensor:
        return x[row, column]

    point, normal = _map(take, surface.point), _map(take, surface.normal)
    seen, colour = _map(take, view), _map(take, surface.colour)
    out = sub(seen, scale(normal, 2 * dot(seen, normal)))
    t, hit = nearest(world.lit, scene, point, out, take(surface.own))
    t = torch.where(hit >= 0, t, _to_ground(point[2], out[2]))
    there = _surface(world, scene, add(point, scale(out, t)), hit, fuse)
    arrived = illuminate(
        world.lit, scene, there.point, there.normal, hit, out, shadows=False, fuse=fuse
    )
    lamps, sky = world.lit, (hit < 0) & (out[2] > -1e-3)
    spots = fuse(_spots)(
        point, out, lamps.lamps[scene], lamps.aim, lamps.strength, lamps.radius, world.look
    )
    around = fuse(_matte)(there, arrived, out, world.look)
    look = world.look
    parts = [
        c
        * (
            look.metal_mirror * torch.where(sky, look.mirror_sky, env)
            + look.metal_diffuse * take(own)
            + spot
        )
        for c, env, own, spot in zip(colour, around, light.lamps, spots, strict=True)
    ]
    return torch.stack(parts, dim=-1).flatten(0, 1)[blocks.place]


def _spots(
    point: Vec, out: Vec, lamps: Tensor, aim: Tensor, strength: Tensor, radius: Tensor, look: Look
) -> list[Tensor]:
    """Reflections of the lamps in metal, slightly blurred: red, green, blue."""
    total = [torch.zeros_like(point[0])] * 3
    for i in range(lamps.shape[1]):
        to = sub(vec(lamps[:, i][:, None]), point)
        square = dot(to, to)
        inverse = torch.rsqrt(square)
        cosine = dot(to, out) * inverse
        wide = look.metal_rough**2 + 0.25 * radius[i] ** 2 / square
        turned = -dot(to, vec(aim[i])) * inverse
        peak = turned.clamp(min=0) / (square * wide) * look.metal_spot
        # A sharp peak with long tails, as brushed metal has.
        off = 1 + (1 - cosine) / wide
        value = peak / (off * off)
        total = [a + value * strength[i, c] for c, a in enumerate(total)]
    return total


def _choose(mask: Tensor, a: Vec | Colour, b: Vec) -> Vec:
    x, y, z = (torch.where(mask, p, q) for p, q in zip(a, b, strict=True))
    return x, y, z


def _map(change: Callable[[Tensor], Tensor], a: Vec) -> Vec:
    return change(a[0]), change(a[1]), change(a[2])
