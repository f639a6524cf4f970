"""Find slots that show the same thing, and merge them."""

import math

import torch
from torch import Tensor


def same_picture(rgb: Tensor, masks: Tensor, tolerance: float) -> Tensor:
    """Group slots whose pictures are the same, as when several share a background.

    Two slots belong together if the picture of each could replace that of the other: the root mean
    square of their difference is at most ``tolerance``, on a scale from 0 to 1, both over the
    pixels of the one and over those of the other. Slots that are connected by a chain of such pairs
    belong together as well. Where they are in the image does not matter: objects of the same colour
    are also grouped.

    Args:
        rgb: Decoded pictures ``(..., m, 3, H, W)``, from -1 to 1.
        masks: ``(..., m, H, W)``, the share of each slot in each pixel.
        tolerance: Above 0, at most 1.

    Returns:
        int64 ``(..., m)``: for each slot the number of its group, from 0, in the order of their
        first slots.

    Raises:
        ValueError: If shapes do not fit, or the tolerance is out of range.

    Example:
        >>> import torch
        >>> from slotmesh.models import same_picture
        >>> rgb = torch.tensor([0.5, -0.9, 0.5])[:, None, None, None].expand(3, 3, 4, 4)
        >>> same_picture(rgb, torch.full((3, 4, 4), 1 / 3), tolerance=0.05)
        tensor([0, 1, 0])
    """
    check_tolerance("same_picture: tolerance", tolerance)
    if masks.ndim < 3 or rgb.shape != (*masks.shape[:-2], 3, *masks.shape[-2:]):
        raise ValueError(
            f"same_picture: rgb has shape {tuple(rgb.shape)} and masks {tuple(masks.shape)}, "
            "expected (..., m, 3, H, W) and (..., m, H, W). Pass both from one model's output."
        )
    m = masks.shape[-3]
    weight = masks.flatten(-2).double()
    weight = weight / weight.sum(-1, keepdim=True).clamp_min(1e-12)
    pictures = rgb.flatten(-2).double() / 2
    near = torch.eye(m, dtype=torch.bool, device=masks.device).expand(*masks.shape[:-2], m).clone()
    for i in range(m):
        difference = (pictures[..., i : i + 1, :, :] - pictures).square().mean(-2)
        there = (difference * weight).sum(-1)
        here = (difference * weight[..., i : i + 1, :]).sum(-1)
        near[..., i, :] |= torch.maximum(here, there) <= tolerance**2
    # Each squaring doubles the length of the chains.
    for _ in range(max(1, math.ceil(math.log2(m)))):
        near = (near.float() @ near.float()) > 0
    first = near.int().argmax(-1)
    leads = first == torch.arange(m, device=masks.device)
    return (leads.cumsum(-1) - 1).gather(-1, first)


def check_tolerance(name: str, value: float) -> None:
    """Raise a ValueError unless it is above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ValueError(
            f"{name} is {value}, expected above 0 and at most 1: by how much pictures may differ. "
            "0.05 is a good start."
        )


def merged(values: Tensor, group: Tensor) -> Tensor:
    """Sum values ``(..., m, h, w)`` over the slots of each group ``(m)``.

    Example:
        >>> import torch
        >>> from slotmesh.models.merging import merged
        >>> merged(torch.ones(3, 1, 1), torch.tensor([0, 1, 0])).flatten()
        tensor([2., 1.])
    """
    shape = (*values.shape[:-3], int(group.max()) + 1, *values.shape[-2:])
    return values.new_zeros(shape).index_add_(-3, group, values)
