"""Lists of rays in blocks of one scene each, so that a scene is read once per block."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 32
"""Rays per block; consecutive rays should lie close together."""


class Blocks(NamedTuple):
    """How a list of rays, sorted by scene, is cut into blocks; the last ray pads a scene."""

    source: Tensor
    """int64 ``(m, BLOCK)``: which ray of the list."""
    scene: Tensor
    """int64 ``(m)``: which scene."""
    place: Tensor
    """int64 ``(n)``: where each ray of the list went in the flattened blocks."""


def blocks_of(scene: Tensor, n_scenes: int) -> Blocks:
    """Cut a list of rays, given the scene of each, int64 ``(n)`` in ascending order."""
    count = torch.bincount(scene, minlength=n_scenes)
    start = count.cumsum(0) - count
    filled = (count + BLOCK - 1) // BLOCK
    owner = torch.repeat_interleave(torch.arange(n_scenes, device=scene.device), filled)
    first = filled.cumsum(0) - filled
    block = torch.arange(len(owner), device=scene.device) - first[owner]
    rank = block[:, None] * BLOCK + torch.arange(BLOCK, device=scene.device)
    source = start[owner][:, None] + torch.minimum(rank, (count[owner] - 1)[:, None])
    rank = torch.arange(len(scene), device=scene.device) - start[scene]
    return Blocks(source, owner, first[scene] * BLOCK + rank)


def groups(k: Tensor, n: int) -> Iterator[tuple[int, slice]]:
    """The rows of each of ``n`` objects in a list sorted by object; ``k`` has that of each row."""
    first = 0
    for i, count in enumerate(torch.bincount(k, minlength=n).tolist()):
        yield i, slice(first, first + count)
        first += count
