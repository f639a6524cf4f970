"""Multi-dSprites: overlapping coloured sprites on grey."""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from slotmesh.ops import checks
from slotmesh.worlds import _sprites as sprite
from slotmesh.worlds._random import distinct, integers, uniform
from slotmesh.worlds.render.threads import spread
from slotmesh.worlds.sample import Sample
from slotmesh.worlds.world import World

# Random placements tried per scene before its sprites are placed apart. With the default minimum,
# one placement in five of a scene of five sprites fails, so about one scene in 10^11 gets there.
_ROUNDS = 16
# Positions (x, y) that never hide a sprite: the corners, and the middle.
_APART = ((0, 0), (31, 31), (31, 0), (0, 31), (15, 16))
# The easy world: sprites per scene, the indices of their scales, and their hues (cyan, magenta and
# yellow). Any two of these colours share a channel, so that a model can learn where sprites are
# before it knows their colours.
_EASY_OBJECTS, _EASY_SCALES, _EASY_HUES = 3, (3, 4), (1 / 2, 5 / 6, 1 / 6)
# Least distance of their centres in steps of the position, which are 1/62 of the picture wide, and
# how often a scene is placed before its sprites are put into corners: about one in a thousand.
_EASY_GAP, _EASY_TRIES = 17, 64


class MultiDSprites(World):
    """Two to five coloured sprites of dSprites that overlap on a grey background.

    The number of sprites is uniform, and so are the shape, scale (6 values), orientation (40) and
    position (32 x 32) of each, over the values of dSprites. Hue, saturation and value are uniform
    too (the latter two from 0.5 to 1, so that no sprite is grey), and so is the grey level of the
    background. Later sprites hide earlier ones, and the mask of a sprite contains its visible
    pixels.

    The original has no rule about hidden sprites. Here, if fewer than ``min_visible`` pixels of a
    sprite would be visible, all positions of that scene are drawn again. All other factors stay as
    drawn, so they are exactly uniform, and positions are nearly so.

    Columns of the table: ``shape`` (index into :attr:`SHAPES`), ``scale`` (0.5 to 1),
    ``orientation`` (0 to 2 pi), ``x`` and ``y`` (0 to 1; centres are at ``size (1/4 + x/2)`` pixels
    from the left edge, and likewise from the top), ``color`` (RGB, 0 to 1), ``visible`` (pixels).

    Args:
        seed: Each seed is a different dataset.
        device: Where samples are computed.
        size: Height and width of the images in pixels; sprites scale with it.
        min_visible: Minimum number of visible pixels per sprite, up to ``size**2 / 100``; default
            16 at 64x64, scaled with the area. In the easy world, up to ``size**2 / 64``, which is
            the default there.
        easy: Three sprites (``max_objects`` is 3) of scale 0.8 or 0.9 on black: one cyan, one
            magenta, one yellow. Their centres are at least 27% of the picture's width apart, so
            that they hardly overlap. Meant for short runs of small models.

    Example:
        >>> from slotmesh.worlds import MultiDSprites
        >>> sample = MultiDSprites(seed=0).sample(range(4))
        >>> sample.image.shape, sample.mask.shape
        (torch.Size([4, 3, 64, 64]), torch.Size([4, 64, 64]))
        >>> sample.present.sum(1)
        tensor([3, 2, 5, 5])
        >>> [MultiDSprites.SHAPES[i] for i in sample.objects["shape"][0, :3]]
        ['heart', 'heart', 'ellipse']
    """

    name = "multi-dsprites"
    max_objects = 5
    SHAPES = sprite.SHAPES
    """Names of the column ``shape``, in order."""
    classes: ClassVar = {"shape": SHAPES}

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        size: int = 64,
        min_visible: int | None = None,
        easy: bool = False,
    ) -> None:
        super().__init__(seed=seed, device=device)
        size = checks.plain(size)
        if not isinstance(size, int) or not 16 <= size <= 1024:  # pyright: ignore
            raise ValueError(f"MultiDSprites: size is {size!r}, expected 16 to 1024 pixels.")
        part, default = (64, 64) if easy else (100, 256)
        min_visible = size * size // default if min_visible is None else min_visible
        most = size * size // part
        if not 1 <= min_visible <= most:
            raise ValueError(
                f"MultiDSprites: min_visible is {min_visible}, expected 1 to {most} (1/{part} of "
                f"the image) at size {size}, so that every scene can be made."
            )
        self.easy = easy
        if easy:
            self.max_objects = _EASY_OBJECTS
        self.size = size
        self.min_visible = min_visible
        table = sprite.sprites(size)
        self._sprites = replace(table, runs=table.runs.to(self.device))
        self._scales = torch.tensor(sprite.SCALES, device=self.device)

    def make(self, index: Tensor) -> Sample:
        """Make the samples of these indices, int64 ``(batch)`` on the world's device."""
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        return Sample.join(spread(self._make, index.chunk(threads), self.device))

    def _make(self, index: Tensor) -> Sample:
        factors = self._factors(index)
        x, y, seen = self._place(index, factors)
        present = factors["present"]
        colour = self._colours(index)
        levels = 1 if self.easy else 256
        grey = integers(self.seed, index, "grey", levels).to(torch.uint8)
        mask = self._mask(seen)
        palette = torch.cat((grey[:, None, None].expand(-1, 1, 3), colour), dim=1)
        columns = {
            "shape": factors["shape"],
            "scale": self._scales[factors["scale"]],
            "orientation": _fraction(factors["orientation"], sprite.N_ORIENTATIONS, 2 * math.pi),
            "x": _fraction(x, sprite.N_POSITIONS, 1.0),
            "y": _fraction(y, sprite.N_POSITIONS, 1.0),
            "color": (colour.to(torch.float64) / 255).to(torch.float32),
            "visible": _count(seen),
        }
        for name, column in columns.items():
            there = present if column.ndim == 2 else present[..., None]
            columns[name] = torch.where(there, column, torch.zeros_like(column))
        return Sample(
            image=_paint(mask, palette), mask=mask, objects=columns, present=present, index=index
        )

    def _factors(self, index: Tensor) -> dict[str, Tensor]:
        """All factors of the sprites except positions and colours, as indices."""
        n, table = len(index), (self.max_objects,)
        fewest = _EASY_OBJECTS if self.easy else 2
        count = fewest + integers(self.seed, index, "count", self.max_objects - fewest + 1)
        scales = _EASY_SCALES if self.easy else range(len(sprite.SCALES))
        scale = integers(self.seed, index, "scale", len(scales), table)
        number = torch.arange(self.max_objects, device=index.device).expand(n, -1)
        return {
            "present": number < count[:, None],
            "shape": integers(self.seed, index, "shape", len(sprite.SHAPES), table),
            "scale": scales[0] + scale,
            "orientation": integers(self.seed, index, "orientation", sprite.N_ORIENTATIONS, table),
        }

    def _colours(self, index: Tensor) -> Tensor:
        """RGB of the sprites: uint8 ``(batch, objects, 3)``."""
        if not self.easy:
            return _rgb(uniform(self.seed, index, "hsv", (self.max_objects, 3)))
        hues = torch.tensor(_EASY_HUES, dtype=torch.float64, device=index.device)
        hue = hues[distinct(self.seed, index, "hue", len(_EASY_HUES))][..., None]
        return _rgb(nn.functional.pad(hue, (0, 2), value=1.0))

    def _place(self, index: Tensor, factors: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Positions x and y, and the visible pixels ``(batch, objects, size, words)``.

        Scenes with a hidden sprite are placed again, each with its own random numbers: a scene
        does not depend on the others in the batch, and few are left after the first round.
        """
        x, y = self._draw_places(index, 0)
        seen = self._see(factors, x, y)
        for step in range(1, _ROUNDS + 1):
            hidden = ((_count(seen) < self.min_visible) & factors["present"]).any(1)
            left = hidden.nonzero().squeeze(1)
            if len(left) == 0:
                break
            places = self._draw_places(index[left], step)
            x[left], y[left] = places
            seen[left] = self._see({k: v[left] for k, v in factors.items()}, *places)
        return x, y, seen

    def _draw_places(self, index: Tensor, step: int) -> tuple[Tensor, Tensor]:
        apart = torch.tensor(_APART[: self.max_objects], device=index.device)
        apart = apart.expand(len(index), -1, -1)
        if step == _ROUNDS:
            return apart[..., 0].clone(), apart[..., 1].clone()
        shape = (self.max_objects, 2)
        place = integers(self.seed, index, f"place {step}", sprite.N_POSITIONS, shape)
        if self.easy:
            left = _crowded(place)
            for attempt in range(_EASY_TRIES):
                if len(left) == 0:
                    break
                name = f"place {step} {attempt}"
                again = integers(self.seed, index[left], name, sprite.N_POSITIONS, shape)
                place[left] = again
                left = left[_crowded(again)]
            place[left] = apart[left]
        return place[..., 0].clone(), place[..., 1].clone()

    def _see(self, factors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The visible pixels of each sprite: its own, less those of all later ones."""
        bits = self._sprites.draw(factors["shape"], factors["scale"], factors["orientation"], x, y)
        bits = torch.where(factors["present"][..., None, None], bits, 0)
        covered = torch.zeros_like(bits[:, 0])
        for i in reversed(range(self.max_objects)):
            whole = bits[:, i].clone()
            bits[:, i] &= ~covered
            covered |= whole
        return bits

    def _mask(self, seen: Tensor) -> Tensor:
        """Turn rows of bits into indices of sprites, uint8 ``(batch, size, size)``."""
        # Visible pixels do not overlap, so the three bits of the index can be set separately.
        rows = seen.unbind(1)
        none = torch.zeros_like(rows[0])
        first, second, third, fourth, fifth = (*rows, *[none] * (5 - len(rows)))
        digits = (first | third | fifth, second | third, fourth | fifth)
        one, two, four = (sprite.unpack(digit, self.size) for digit in digits)
        return one | (two << 1) | (four << 2)


def _count(seen: Tensor) -> Tensor:
    """Pixels of each sprite, int64 ``(batch, objects)``."""
    return sprite.popcount(seen).sum((-2, -1))


def _crowded(place: Tensor) -> Tensor:
    """Scenes of the easy world in which two of the places ``(batch, objects, 2)`` are too near."""
    first, second = torch.combinations(torch.arange(place.shape[1], device=place.device)).T
    away = place[:, first] - place[:, second]
    return ((away * away).sum(-1) < _EASY_GAP * _EASY_GAP).any(1).nonzero().squeeze(1)


def _fraction(number: Tensor, n: int, most: float) -> Tensor:
    """The k-th of n values evenly spaced from 0 to ``most``, as float32."""
    return (number.to(torch.float64) * (most / (n - 1))).to(torch.float32)


def _rgb(numbers: Tensor) -> Tensor:
    """Turn random numbers ``(..., 3)`` into uint8 RGB: any hue, saturation and value above 0.5."""
    hue, saturation, value = numbers[..., :1], *(0.5 + 0.5 * numbers[..., 1:]).split(1, -1)
    # 5, 3 and 1, made on the device: a copy would wait for it.
    offset = torch.arange(5, 0, -2, dtype=numbers.dtype, device=numbers.device)
    k = offset + 6 * hue
    k = torch.where(k >= 6, k - 6, k)
    rgb = value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1)
    return (255 * rgb + 0.5).floor().to(torch.uint8)


def _paint(mask: Tensor, palette: Tensor) -> Tensor:
    """Paint colours ``(batch, 1 + objects, 3)`` by the mask: uint8 ``(batch, 3, size, size)``."""
    batch, size = mask.shape[0], mask.shape[-1]
    where = mask.to(torch.int64).flatten(1)[:, None].expand(-1, 3, -1)
    return palette.mT.gather(2, where).reshape(batch, 3, size, size)
