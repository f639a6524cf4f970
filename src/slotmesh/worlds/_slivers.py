"""Objects with too few visible pixels to be labelled, cut off by the image's edge or hidden."""

import torch
import torch.nn.functional as F
from torch import Tensor


def min_pixels(size: int) -> int:
    """Visible pixels that make an object present, for images of this size: 4 at 64 x 64.

    >>> [min_pixels(size) for size in (16, 64, 128)]
    [1, 4, 16]
    """
    return max(1, round(4 * (size / 64) ** 2))


def visible_pixels(mask: Tensor, n: int) -> Tensor:
    """Count the pixels of each of n objects in masks ``(..., H, W)``: int64 ``(..., n)``."""
    flat = mask.flatten(-2).flatten(0, -2)
    which = torch.arange(len(flat), device=mask.device)[:, None] * (n + 1) + flat
    counts = torch.bincount(which.flatten(), minlength=len(flat) * (n + 1))
    return counts.view(*mask.shape[:-2], n + 1)[..., 1:]


def drop_slivers(mask: Tensor, n: int, least: int) -> tuple[Tensor, Tensor, Tensor]:
    """Turn objects with fewer than ``least`` visible pixels into background.

    Args:
        mask: uint8 ``(..., H, W)``: 1 + the object's index, 0 for none.
        n: Number of objects.
        least: Visible pixels that an object must have, at least 1.

    Returns:
        The mask without them, which objects remain, bool ``(..., n)``, and their pixels, int64
        ``(..., n)``.
    """
    pixels = visible_pixels(mask, n)
    present = pixels >= least
    number = torch.arange(1, n + 1, device=mask.device, dtype=mask.dtype)
    kept = F.pad(number * present, (1, 0))
    mask = kept.gather(-1, mask.flatten(-2).to(torch.int64)).reshape(mask.shape)
    return mask, present, pixels * present
