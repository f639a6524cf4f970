"""The materials of ClevrTex: a table of colours and parameters for a few patterns."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.worlds.render.fuse import Fuse, plain
from slotmesh.worlds.render.noise import Noise, Point, smooth
from slotmesh.worlds.render.patterns import PATTERNS, SOLID
from slotmesh.worlds.render.vec import Vec, add, dot, scale, sub, unit

_STEP = 0.04
"""Step of the finite differences for slopes, in units of the pattern."""
_CHUNK = {"cpu": 2048, "cuda": 1 << 22}
"""Points of one pattern evaluated at once."""


class Texture(NamedTuple):
    """A material: colours as hexadecimal sRGB, numbers as the pattern's docstring lists them."""

    name: str
    pattern: str
    colours: str
    """Three, separated by spaces."""
    scale: float
    """Units of the pattern per unit of the world, on objects; half of that on the ground."""
    numbers: tuple[float, float, float, float]
    bump: float
    """How much the slope of the height tilts the normal."""
    gloss: float = 0.0
    """Strength of the highlight."""


# fmt: off
TEXTURES = (
    Texture("red bricks", "bricks", "a4553f 7f3a2c c8beb0", 4.5, (2.2, 0.10, 0.5, 1.0), 0.45),
    Texture("yellow bricks", "bricks", "c9a866 a8864a e0d8c8", 4.0, (2.0, 0.10, 0.5, 1.0), 0.45),
    Texture("white bricks", "bricks", "dcd8d0 b9b4aa 8d8880", 3.5, (2.4, 0.08, 0.5, 0.7), 0.4),
    Texture("dark bricks", "bricks", "4a3b38 2e2624 8a8078", 4.0, (2.4, 0.09, 0.5, 1.2), 0.5),
    Texture("sandstone blocks", "bricks", "cfae7e b48d5c 8a6c48", 2.2, (1.5, 0.06, 0.5, 1.4), 0.5),
    Texture("grey blocks", "bricks", "8e9093 6c6e72 4a4b4e", 2.4, (1.8, 0.05, 0.5, 0.8), 0.35),
    Texture("blue tiles", "bricks", "2f6ea8 1d4a7c d8e2e8", 4.0, (1.0, 0.08, 0.0, 0.2), 0.35, 0.5),
    Texture("teal tiles", "bricks", "3f9b92 277068 e8efe9", 3.2, (1.0, 0.07, 0.0, 0.2), 0.35, 0.5),
    Texture("mosaic", "bricks", "c94f3d e9c46a 2a3d45", 6.0, (1.0, 0.12, 0.0, 0.2), 0.4, 0.3),
    Texture("cobbles", "cells", "7c7a76 a19c93 3a3632", 4.0, (0.16, 0.7, 1.0, 0.8), 0.6),
    Texture("river stones", "cells", "b7a892 6f675c 2e2a26", 3.2, (0.14, 0.9, 1.1, 0.9), 0.6, 0.2),
    Texture("dry mud", "cells", "a98e6b 8e7352 4a3a28", 3.0, (0.09, 0.3, 0.2, 0.95), 0.6),
    Texture("giraffe", "cells", "a5682a 8a5220 ead9ae", 3.2, (0.16, 0.4, 0.0, 0.9), 0.15),
    Texture("stained glass", "cells", "c22f4a 2f5fc2 16161a", 3.4, (0.10, 1.0, 0.2, 0.9), 0.3, 0.6),
    Texture("cracked ice", "cells", "cfe6f2 9cc7dd 5f93b5", 2.6, (0.06, 0.5, 0.1, 0.95), 0.4, 0.5),
    Texture("lava", "cells", "2a1d1a 3d2a25 ff6a14", 2.8, (0.12, 0.4, 0.6, 0.9), 0.5),
    Texture("turquoise", "cells", "3fb5ae 5cc9bd 4a3423", 3.0, (0.05, 0.5, 0.0, 0.95), 0.15, 0.4),
    Texture("oak", "wood", "c89a62 8e5f32 a4743f", 3.2, (2.4, 1.6, 0.4, 0.8), 0.2),
    Texture("pine", "wood", "e3bf83 bd8747 cfa268", 2.6, (2.6, 1.2, 0.3, 0.5), 0.15),
    Texture("walnut", "wood", "6b4429 3c2415 54341f", 3.4, (2.6, 2.0, 0.5, 1.0), 0.25, 0.2),
    Texture("mahogany", "wood", "8b3a22 5b2214 75301c", 3.2, (2.2, 1.4, 0.4, 0.8), 0.15, 0.4),
    Texture("ebony", "wood", "3a322e 1a1614 2a2420", 3.2, (2.2, 1.8, 0.4, 0.8), 0.2, 0.4),
    Texture("parquet", "planks", "c08a52 95622f 4a2f18", 4.5, (4.0, 0.06, 0.6, 0.6), 0.3, 0.2),
    Texture("grey boards", "planks", "9a958c 6e6a63 35322e", 3.4, (5.0, 0.08, 0.5, 1.2), 0.45),
    Texture("red planks", "planks", "a3402e 7a2a1e 3a1610", 3.4, (5.0, 0.07, 0.4, 0.8), 0.35),
    Texture("white planks", "planks", "e4e0d6 c4beb2 7a756c", 3.0, (5.0, 0.07, 0.4, 0.8), 0.35),
    Texture("white marble", "marble", "e9e6e1 7d7f86 c9c6c2", 1.8, (3.0, 5.0, 0.5, 0.1), 0.05, 0.5),
    Texture("black marble", "marble", "1c1d20 d8d2c4 35353a", 1.8, (3.2, 7.0, 0.6, 0.1), 0.05, 0.6),
    Texture("green marble", "marble", "1f5a41 a9cdb4 2f7a58", 2.0, (3.4, 5.0, 0.7, 0.1), 0.05, 0.5),
    Texture("rose marble", "marble", "d9a79b f2dfd6 a8655c", 1.8, (3.0, 4.0, 0.6, 0.1), 0.05, 0.5),
    Texture("agate", "marble", "7a3b1e f0c98a c26a2c", 2.6, (2.4, 1.2, 0.5, 0.1), 0.05, 0.6),
    Texture("dunes", "marble", "dcb778 b88d4e e9cf9a", 3.2, (1.0, 1.2, 0.3, 0.8), 0.5),
    Texture("water", "marble", "1f5f8a 7fb9d6 134a72", 3.0, (2.4, 2.0, 0.5, 0.9), 0.5, 0.8),
    Texture("concrete", "clouds", "a3a29e 84837f 6c6b68", 2.0, (1.6, 0.66, 1.0, 0.35), 0.3),
    Texture("plaster", "clouds", "dfd6c4 cabfa8 b8ab92", 2.4, (1.4, 0.70, 1.0, 0.5), 0.45),
    Texture("granite", "clouds", "b9aca4 5d5552 e9e2da", 7.0, (3.0, 0.56, 1.0, 0.5), 0.2, 0.3),
    Texture("rust", "clouds", "8c4a22 b8672c 4c2a1a", 2.6, (2.6, 0.52, 1.0, 0.4), 0.5),
    Texture("rusted paint", "clouds", "3f7f86 4a929a 8c4520", 2.2, (1.6, 0.54, 1.0, 0.25), 0.5),
    Texture("verdigris", "clouds", "5fa48c 3d7f6b 8a5a34", 2.6, (2.4, 0.56, 1.0, 0.3), 0.4, 0.2),
    Texture("moss", "clouds", "4f7a2a 2f4f18 86a040", 4.0, (2.4, 0.54, 1.0, 0.7), 0.8),
    Texture("grass", "clouds", "5f9a34 2f6a1c 98b850", 6.0, (3.0, 0.58, 0.3, 0.7), 0.8),
    Texture("earth", "clouds", "6a4a30 3f2a1a 8e6c48", 3.4, (2.4, 0.58, 1.0, 0.7), 0.8),
    Texture("snow", "clouds", "f2f5f8 d6e0ea ffffff", 2.4, (1.4, 0.60, 1.0, 0.3), 0.4),
    Texture("coral", "clouds", "e8745a c04a3c f6b8a0", 4.5, (3.0, 0.54, 1.0, 0.4), 0.9),
    Texture("bark", "clouds", "5a4636 2f241b 7f6a54", 5.0, (2.6, 0.60, 0.2, 0.5), 0.9),
    Texture("fur", "clouds", "a07a4c 5f4428 d0ae7c", 7.0, (2.4, 0.62, 0.2, 0.6), 0.6),
    Texture("camouflage", "clouds", "5a6a3a 2f3a24 a08c60", 2.4, (8.0, 0.54, 1.0, 0.0), 0.0),
    Texture("cow", "clouds", "f0ece6 1c1a19 f0ece6", 1.6, (12.0, 0.95, 1.0, 0.0), 0.0),
    Texture("steel", "clouds", "b4b8bc 7f8488 d0d4d8", 8.0, (2.0, 0.80, 0.1, 0.3), 0.2, 0.9),
    Texture("chessboard", "checks", "e8e2d4 26221f 26221f", 3.0, (0.0, 0.2, 0.0, 0.0), 0.0, 0.4),
    Texture("red checks", "checks", "e9e4dc b3262c b3262c", 4.0, (0.0, 0.3, 0.0, 0.0), 0.0),
    Texture("bathroom", "checks", "d6ecec 5aa0a8 f4f6f4", 4.0, (0.07, 0.1, 0.1, 0.0), 0.35, 0.5),
    Texture("candy", "stripes", "f4efe8 d02c3c ffffff", 2.6, (0.5, 0.08, 0.6, 0.0), 0.1, 0.3),
    Texture("zebra", "stripes", "f0ece4 1b1a1a ffffff", 2.4, (0.5, 0.12, 0.2, 1.6), 0.0),
    Texture("tiger", "stripes", "dc8a2c 231a14 ffffff", 2.6, (0.36, 0.14, 0.1, 1.8), 0.1),
    Texture("corduroy", "stripes", "7a5a3c 4a3422 ffffff", 6.0, (0.5, 0.45, 0.0, 0.1), 0.6),
    Texture("iron sheet", "stripes", "9aa4aa 6f797f ffffff", 3.6, (0.5, 0.5, 0.0, 0.0), 0.9, 0.6),
    Texture("awning", "stripes", "2c6e49 f2ead8 ffffff", 1.8, (0.5, 0.03, 0.0, 0.0), 0.0),
    Texture("polka dots", "dots", "2b4c9b f6f1e6 f6f1e6", 3.2, (0.30, 0.0, 0.0, 1.0), 0.1),
    Texture("ladybird", "dots", "c4241f 1a1717 1a1717", 2.6, (0.30, 0.4, 0.0, 0.8), 0.1, 0.6),
    Texture("leopard", "dots", "d6a45c 3a2616 a8702f", 4.4, (0.40, 0.4, 0.62, 0.95), 0.1),
    Texture("studs", "dots", "8d9499 c6ccd0 c6ccd0", 3.6, (0.28, 0.0, 0.0, 1.0), 0.9, 0.8),
    Texture("bubbles", "dots", "e06aa0 f6b6d2 fbe3ee", 3.6, (0.40, 0.3, 0.5, 0.9), 0.5, 0.4),
    Texture("linen", "weave", "d8c8a6 c2ae86 8a7856", 7.0, (0.46, 0.6, 0.5, 0.0), 0.5),
    Texture("denim", "weave", "3a5a8c 25406a 182c4c", 7.0, (0.46, 0.6, 0.8, 0.0), 0.5),
    Texture("basket", "weave", "c09458 a2743a 4a3218", 3.6, (0.46, 0.4, 0.5, 0.0), 0.8),
    Texture("carbon", "weave", "3c3f44 1c1d20 0c0c0e", 5.0, (0.50, 0.1, 1.0, 0.0), 0.4, 0.8),
    Texture("terrazzo", "chips", "e6dfd4 c4694a 3f4a52", 3.0, (0.85, 0.34, 0.0, 0.0), 0.1, 0.4),
    Texture("dark chips", "chips", "2c3036 d9d2c4 c98f3a", 3.2, (0.85, 0.34, 0.0, 0.0), 0.1, 0.4),
    Texture("confetti", "chips", "f4f2ee e0457b 2f9bd0", 4.2, (0.80, 0.36, 0.0, 0.0), 0.1),
    Texture("fish scales", "scales", "4f9aa8 8fd0cc 1f4a56", 3.2, (0.25, 0.3, 0.8, 0.0), 0.5, 0.6),
    Texture("dragon", "scales", "3f7a3a 7fae4a 16301a", 2.8, (0.25, 0.4, 0.9, 0.0), 0.6, 0.4),
    Texture("roof shingles", "scales", "9a4a34 b8684a 3c1c14", 3.2, (0.18, 0.7, 0.6, 0.0), 0.6),
    Texture("zigzag", "zigzag", "f2c14e 34424e ffffff", 2.4, (0.5, 0.0, 0.12, 0.0), 0.1),
    Texture("herringbone", "zigzag", "8c8478 5c564e ffffff", 5.0, (0.7, 0.0, 0.2, 0.0), 0.4),
    Texture("hexagons", "hexagons", "e8e4da c2bcae 5c574e", 3.2, (0.08, 0.7, 0.2, 0.0), 0.4, 0.4),
    Texture("honeycomb", "hexagons", "e8a923 c47f12 7a4a0a", 3.6, (0.16, 0.4, 0.9, 0.0), 0.7, 0.5),
    Texture("tartan", "plaid", "9c1f28 1f3a2a e6c24a", 2.2, (0.5, 0.10, 0.5, 0.0), 0.1),
    Texture("blue plaid", "plaid", "e8ecf0 2f5aa0 16284a", 2.4, (0.5, 0.12, 0.4, 0.0), 0.1),
)
# fmt: on
"""Procedural materials in place of ClevrTex's photographs; ``Scene.material`` is 2 + the index."""


class Textured(NamedTuple):
    """The surface that a texture produces."""

    colour: Vec
    normal: Vec
    """Unit normals."""
    gloss: Tensor


class Place(NamedTuple):
    """A list ``(n)`` of points on textured surfaces; lengths in units of the world."""

    solid: Vec
    """In space."""
    flat: tuple[Tensor, Tensor]
    """On the surface."""
    normal: Vec
    """Unit normals; like the unit directions, in the object's frame."""
    along_u: Vec
    along_v: Vec


def apply(texture: Tensor, place: Place, fuse: Fuse) -> Textured:
    """Colour, normal and gloss of points with mixed textures, int64 ``(n)`` in ``TEXTURES``."""
    tables = _tables(texture.device)
    kind = tables.pattern[texture]
    places = torch.stack((*place.solid, *place.flat))
    found = torch.empty(5, len(texture), device=texture.device)
    noise = _noise(fuse)
    for i, name in enumerate(PATTERNS):
        chosen = (kind == i).nonzero().squeeze(1)
        # In chunks that fit a CPU's cache, or a GPU's memory.
        for some in chosen.split(_CHUNK.get(texture.device.type, 2048)) if len(chosen) else ():
            numbers = tables.numbers[:, texture[some]]
            found[:, some] = _evaluate(name, places[:, some], numbers, noise)
    solid = kind < len(SOLID)
    first, second, *slopes = found
    bump, gloss, *colours = tables.looks[:, texture]
    mixed = []
    for low, high, top in zip(colours[:3], colours[3:6], colours[6:], strict=True):
        base = low + (high - low) * first
        mixed.append(base + (top - base) * second)
    normal = _bumped(place, solid, (slopes[0], slopes[1], slopes[2]), bump)
    return Textured((mixed[0], mixed[1], mixed[2]), normal, gloss)


def _evaluate(name: str, places: Tensor, numbers: Tensor, noise: Noise) -> Tensor:
    """Amounts of colour, and slopes along the coordinates: ``(5, n)``, of one pattern."""
    zoom, *q = numbers
    # On the surface, away from 0, where the cells of the lattice would mirror each other.
    p = places[:3] * zoom if name in SOLID else places[3:] * zoom + 100
    # The point itself, and a step along each coordinate.
    moved = tuple(
        torch.stack([x + _STEP if k == i else x for k in range(-1, len(p))])
        for i, x in enumerate(p)
    )
    found = PATTERNS[name](moved, (q[0], q[1], q[2], q[3]), noise)
    slopes = (found.height[1:] - found.height[0]) / _STEP
    # A flat pattern has no third coordinate.
    return torch.stack((found.first[0], found.second[0], *slopes, *slopes[: 3 - len(p)]))


def _bumped(place: Place, solid: Tensor, slopes: Vec, bump: Tensor) -> Vec:
    """The normal, tilted by slopes in space or on the surface."""
    inside = sub(slopes, scale(place.normal, dot(slopes, place.normal)))
    laid = add(scale(place.along_u, slopes[0]), scale(place.along_v, slopes[1]))
    x, y, z = (torch.where(solid, a, b) for a, b in zip(inside, laid, strict=True))
    slope = (x, y, z)
    # Steep joints tilt the normal far, but never behind the surface.
    steep = torch.sqrt(1 + dot(slope, slope) * bump * bump * 0.25)
    return unit(sub(place.normal, scale(slope, bump / steep)))


def _noise(fuse: Fuse) -> Noise:
    if fuse is plain:
        return smooth
    fused = fuse(smooth)

    def sampled(p: Point) -> Tensor:
        # One kernel for all patterns, on lists of points in space.
        x, y, z = p if len(p) == 3 else (*p, torch.zeros_like(p[0]))
        return fused((x.flatten(), y.flatten(), z.flatten())).view_as(x)

    return sampled


class _Tables(NamedTuple):
    pattern: Tensor
    numbers: Tensor
    """``(5, textures)``: scale and the pattern's parameters."""
    looks: Tensor
    """``(11, textures)``: bump, gloss, and three times red, green, blue."""


@cache
def _tables(device: torch.device) -> _Tables:
    names = list(PATTERNS)

    def table(rows: list[tuple[float, ...]]) -> Tensor:
        return torch.tensor(rows, device=device).T.contiguous()

    def look(t: Texture) -> tuple[float, ...]:
        return t.bump, t.gloss, *(x for c in t.colours.split() for x in _linear(c))

    return _Tables(
        torch.tensor([names.index(t.pattern) for t in TEXTURES], device=device),
        table([(t.scale, *t.numbers) for t in TEXTURES]),
        table([look(t) for t in TEXTURES]),
    )


def _linear(colour: str) -> list[float]:
    """Hexadecimal sRGB to linear light."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
