"""The sprites of dSprites, from outlines measured on its published pictures.

A pixel belongs to a sprite if its centre lies inside the outline: one or a few runs per row of
pixels. Scale, orientation and position take few values, so the ends of the runs fit into a table
that is made once; drawing is then a look-up, and rows of pixels are words of bits.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SHAPES = ("square", "ellipse", "heart")
SCALES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
N_ORIENTATIONS = 40
"""Orientation k is an angle of 2 pi k / 39: the first and the last give the same picture."""
N_POSITIONS = 32
"""Position k puts the centre at 1/4 + 1/2 k / 31 of the picture's width."""
WORD = 32
"""Pixels per word of bits; half of an int64 stays free, so that no shift reaches the sign."""

# At scale 1, in pixels of a picture 64 wide: half the square's side, and the ellipse's half-axes.
_SQUARE = 9.6
_ELLIPSE = (12.8, 7.2)
# The right half of the heart, y downwards; the left half is its mirror image. Fitted to all frames
# of dsprites.gif with a heart: in 174 frames it gets 88 pixels wrong in total.
_HEART = (
    (0.0, -5.17),
    (0.78, -7.16),
    (2.35, -8.66),
    (3.98, -9.37),
    (5.76, -9.26),
    (6.93, -8.77),
    (7.93, -8.03),
    (8.95, -6.83),
    (9.58, -4.88),
    (9.61, -3.54),
    (9.29, -2.27),
    (8.84, -1.06),
    (7.68, 0.61),
    (6.58, 1.88),
    (6.42, 2.03),
    (4.84, 3.57),
    (4.01, 4.32),
    (3.81, 4.52),
    (2.19, 6.12),
    (1.25, 7.26),
    (0.0, 9.18),
)
# At scale 1 no outline reaches further from its centre than the corners of the square.
_REACH = 13.6


def turn(orientation: int) -> tuple[float, float]:
    """Cosine and sine of an orientation, rounded so that they do not depend on the machine."""
    angle = 2 * math.pi * orientation / (N_ORIENTATIONS - 1)
    return round(math.cos(angle), 12), round(math.sin(angle), 12)


@dataclass(frozen=True)
class Sprites:
    """The runs of every sprite, for images of one size.

    Example:
        >>> import torch
        >>> from slotmesh.worlds._sprites import sprites, unpack
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> square = sprites(64).draw(zero, zero + 5, zero, zero + 31, zero)
        >>> unpack(square, 64).sum()
        tensor(400)
    """

    size: int
    """Width and height of the image."""
    reach: int
    """Rows above (and below) the centre's row that a sprite can touch."""
    runs: Tensor
    """float32 ``(shapes, scales, orientations, positions y, rows, 2 n)``: where the n runs of a row
    begin, then where they end, relative to the centre. Empty runs end before they begin."""

    def draw(
        self, shape: Tensor, scale: Tensor, orientation: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        """Draw sprites given the indices of their factors, int64 ``(...)`` each.

        Returns:
            int64 ``(..., size, words)``: a row of pixels as bits, the leftmost is the lowest bit of
            the first word.
        """
        table = self.runs.flatten(0, 3)
        which = ((shape * len(SCALES) + scale) * N_ORIENTATIONS + orientation) * N_POSITIONS + y
        row = (
            torch.arange(self.size, device=x.device)
            - first_row(y, self.size, self.reach)[..., None]
        )
        n_rows = table.shape[1]
        inside = (row >= 0) & (row < n_rows)
        ends = table.flatten(0, 1)[which[..., None] * n_rows + row.clamp(0, n_rows - 1)]
        ends = ends.to(torch.float64) + (centre(x, self.size) - 0.5)[..., None, None]
        n_runs = table.shape[-1] // 2
        first = ends[..., :n_runs].ceil().to(torch.int64)
        stop = ends[..., n_runs:].floor().to(torch.int64) + 1
        stop = torch.where(inside[..., None], stop, 0)
        words = -(-self.size // WORD)
        start = WORD * torch.arange(words, device=x.device)
        bits = torch.zeros((*row.shape, words), dtype=torch.int64, device=x.device)
        for run in range(n_runs):
            low = (first[..., run, None] - start).clamp(0, WORD)
            high = torch.maximum((stop[..., run, None] - start).clamp(0, WORD), low)
            bits |= (1 << high) - (1 << low)
        return bits


def centre(position: Tensor, size: int) -> Tensor:
    """The centre of a sprite in pixels from the edge, float64, from the index of its position."""
    return size * (0.25 + 0.5 * (position.to(torch.float64) / (N_POSITIONS - 1)))


def first_row(y: Tensor, size: int, reach: int) -> Tensor:
    """The row of pixels that the first row of the table belongs to."""
    return centre(y, size).floor().to(torch.int64) - reach


def popcount(words: Tensor) -> Tensor:
    """Number of bits set in words of 32, elementwise."""
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return ((words * 0x01010101) >> 24) & 0xFF


def unpack(words: Tensor, size: int) -> Tensor:
    """Words ``(..., words)`` to pixels, uint8 0 or 1 ``(..., size)``."""
    # By bytes first: most of the work is then on one-byte numbers.
    shifts = torch.arange(0, WORD, 8, device=words.device)
    octets = ((words[..., None] >> shifts) & 0xFF).to(torch.uint8)
    bit = torch.arange(8, dtype=torch.uint8, device=words.device)
    return ((octets[..., None] >> bit) & 1).flatten(-3)[..., :size]


@lru_cache(maxsize=4)
def sprites(size: int) -> Sprites:
    """The table for images of this size, on the CPU."""
    unit = size / 64
    reach = math.ceil(_REACH * unit)
    position = torch.arange(N_POSITIONS)
    offset = torch.arange(2 * reach + 1) + first_row(position, size, reach)[:, None]
    # Rows relative to the centre, in units of an image 64 wide: (positions, rows).
    rows = ((offset + 0.5) - centre(position, size)[:, None]).numpy() / unit
    turns = [turn(k) for k in range(N_ORIENTATIONS)]
    runs = np.empty((len(SHAPES), len(SCALES), N_ORIENTATIONS, *rows.shape, 2, _MOST_RUNS))
    for i, crossings in enumerate((_square_runs, _ellipse_runs, _heart_runs)):
        for j, scale in enumerate(SCALES):
            for k, (cosine, sine) in enumerate(turns):
                runs[i, j, k] = crossings(rows / scale, cosine, sine) * (scale * unit)
    # Far enough outside to stay empty anywhere, and small enough for integers.
    runs = np.nan_to_num(runs, posinf=2.0 * size, neginf=-2.0 * size)
    return Sprites(size, reach, torch.from_numpy(runs.astype(np.float32)).flatten(-2))


# A row crosses the heart in at most two runs, its lobes.
_MOST_RUNS = 2


def _square_runs(rows: NDArray[np.float64], cosine: float, sine: float) -> NDArray[np.float64]:
    corner = _SQUARE
    outline = [(-corner, -corner), (corner, -corner), (corner, corner), (-corner, corner)]
    return _polygon_runs(outline, rows, cosine, sine)


def _heart_runs(rows: NDArray[np.float64], cosine: float, sine: float) -> NDArray[np.float64]:
    left = [(-u, v) for u, v in reversed(_HEART[1:-1])]
    return _polygon_runs([*_HEART, *left], rows, cosine, sine)


def _polygon_runs(
    outline: list[tuple[float, float]], rows: NDArray[np.float64], cosine: float, sine: float
) -> NDArray[np.float64]:
    """Where rows cross a turned polygon, in pairs from left to right: ``(..., 2, runs)``."""
    u, v = np.array(outline).T
    x, y = cosine * u + sine * v, cosine * v - sine * u
    x_next, y_next = np.roll(x, -1), np.roll(y, -1)
    row = rows[..., None]
    crossed = (y <= row) != (y_next <= row)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = x + (row - y) * ((x_next - x) / (y_next - y))
    at = np.sort(np.where(crossed, at, np.inf), axis=-1)
    if np.isfinite(at[..., 2 * _MOST_RUNS :]).any():
        raise AssertionError(f"a row crosses an outline in more than {_MOST_RUNS} runs")
    at = np.concatenate((at, np.full((*rows.shape, 2 * _MOST_RUNS), np.inf)), axis=-1)
    begin, end = at[..., 0 : 2 * _MOST_RUNS : 2], at[..., 1 : 2 * _MOST_RUNS : 2]
    return np.stack((begin, np.where(np.isfinite(end), end, -np.inf)), axis=-2)


def _ellipse_runs(rows: NDArray[np.float64], cosine: float, sine: float) -> NDArray[np.float64]:
    """Where rows cross a turned ellipse: the roots of its quadratic; ``(..., 2, runs)``."""
    p, q = _ELLIPSE[0] ** -2, _ELLIPSE[1] ** -2
    a = cosine * cosine * p + sine * sine * q
    b = cosine * sine * (q - p) * rows
    c = rows * rows * (sine * sine * p + cosine * cosine * q) - 1
    under = b * b - a * c
    root = np.sqrt(np.maximum(under, 0))
    runs = np.empty((*rows.shape, 2, _MOST_RUNS))
    runs[..., 0, :], runs[..., 1, :] = np.inf, -np.inf
    runs[..., 0, 0] = np.where(under >= 0, (-b - root) / a, np.inf)
    runs[..., 1, 0] = np.where(under >= 0, (-b + root) / a, -np.inf)
    return runs
