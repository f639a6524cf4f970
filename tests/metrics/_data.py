"""Random masks and tables that the tests of slotmesh.metrics share."""

from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from slotmesh.metrics import CLEVR_LABELS, encode_objects


def masks(
    seed: int, *batch: int, n_slots: int = 4, n_objects: int = 3, size: int = 9, noise: float = 0.3
) -> tuple[Tensor, Tensor]:
    """Blobs of objects, and slots that follow them apart from some noise: predicted and truth."""
    rng = torch.Generator().manual_seed(seed)
    shape = (*batch, size, size)
    coarse = torch.randint(0, n_objects + 1, (*batch, 3, 3), generator=rng)
    pick = torch.linspace(0, 2.99, size).long()
    truth = coarse[..., pick, :][..., pick]
    home = torch.randint(0, n_slots, (*batch, n_objects + 1), generator=rng)
    predicted = home.gather(-1, truth.flatten(-2)).reshape(shape)
    other = torch.randint(0, n_slots, shape, generator=rng)
    predicted = torch.where(torch.rand(shape, generator=rng) < noise, other, predicted)
    return predicted, truth.to(torch.uint8)


def tables(
    seed: int, n_images: int, *, n_slots: int = 6, n_objects: int = 5, ties: bool = False
) -> tuple[Tensor, Tensor]:
    """Predictions near objects of few kinds, so that kinds repeat: ``(images, rows, 19)`` each."""
    rng = torch.Generator().manual_seed(seed)
    shape = (n_images, n_objects)
    objects = {name: torch.randint(0, 2, shape, generator=rng) for name in ("color", "shape")}
    objects |= {name: torch.zeros(shape, dtype=torch.int64) for name in ("material", "size")}
    assert objects.keys() == CLEVR_LABELS.keys()
    objects["position"] = torch.rand(*shape, 3, generator=rng) * 2 - 1
    present = torch.rand(shape, generator=rng) < 0.8
    target = encode_objects(objects, present)
    source = torch.randint(0, n_objects, (n_images, n_slots, 1), generator=rng).expand(-1, -1, 19)
    noise = torch.randn(n_images, n_slots, 19, generator=rng)
    # From very near to far away.
    noise[..., :3] *= torch.rand(n_images, n_slots, 1, generator=rng) ** 3
    predicted = target.gather(1, source) + 0.25 * noise
    # Other numbers that all differ, or of which there are three.
    order = torch.randperm(n_images * n_slots, generator=rng).reshape(n_images, n_slots)
    predicted[..., -1] = order % 3 if ties else order / order.numel()
    return predicted, target


def overlaps(predicted: np.ndarray, truth: np.ndarray, n_slots: int, n_objects: int) -> np.ndarray:
    """Intersections over unions of one image, (n_objects, n_slots), from boolean masks."""
    iou = np.zeros((n_objects, n_slots))
    for k in range(n_objects):
        for s in range(n_slots):
            a, b = truth == k + 1, predicted == s
            if a.any():
                iou[k, s] = (a & b).sum() / (a | b).sum()
    return iou


def best_matchings(iou: np.ndarray, rows: list[int]) -> list[dict[int, int]]:
    """All one-to-one matchings of these rows with columns whose sum is greatest, by trying all."""
    columns = [*range(iou.shape[1]), *[-1] * len(rows)]
    found: dict[tuple[int, ...], float] = {}
    for choice in set(permutations(columns, len(rows))):
        # Two columns of no use are as good as one another, so overlap 0 is no match here.
        if all(c < 0 or iou[r, c] > 0 for r, c in zip(rows, choice, strict=True)):
            found[choice] = sum(iou[r, c] for r, c in zip(rows, choice, strict=True) if c >= 0)
    top = max(found.values())
    return [
        dict(zip(rows, choice, strict=True))
        for choice, total in found.items()
        if total > top - 1e-9
    ]
