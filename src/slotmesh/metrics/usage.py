"""How a model uses its slots: the numbers to look at when slots do not bind to objects."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.metrics._contingency import Masks, as_tensor, contingency
from slotmesh.ops import checks

_NEAR = 0.05
# Rounding of masks in half precision, or after resizing.
_ROUNDING = 0.01


class SlotUsage(NamedTuple):
    """How a model uses its slots, per image."""

    n_used: Tensor
    """int64 ``(...)``: slots that win at least ``least`` of the pixels."""
    mass: Tensor
    """float64 ``(..., m)``: mean mask of each slot, its share of the image."""
    evenness: Tensor
    """float64 ``(...)``: entropy of the masses divided by that of equal masses: 0 if one slot has
    everything, 1 if all have the same. With a single slot, it is 0."""
    duplicates: Tensor
    """bool ``(..., m, m)``: True where two slots are nearly the same."""
    attention_entropy: Tensor | None
    """float64 ``(..., n_iters)``: how undecided inputs are between slots after each iteration, from
    0 (each input belongs to one slot) to 1 (equally to all). None without a trace."""
    n_background: Tensor | None
    """int64 ``(...)``: slots that win at least ``least`` of the background. None without truth."""

    def means(self) -> dict[str, float]:
        """The mean of each number over all images, by name, as reports show them.

        ``used`` and ``background`` count slots, ``duplicates`` counts pairs, ``evenness`` is from 0
        to 1, and ``entropy_1``, ``entropy_2``, ... are those of the attention after each iteration.

        Example:
            >>> import torch
            >>> from slotmesh.metrics import slot_usage
            >>> masks = torch.zeros(3, 4, 4)
            >>> masks[0, :2], masks[1, 2:] = 1.0, 1.0
            >>> slot_usage(masks).means()["used"]
            2.0
        """
        found = {
            "used": self.n_used,
            "evenness": self.evenness,
            "duplicates": self.duplicates.sum((-2, -1)) / 2,
        }
        if self.n_background is not None:
            found["background"] = self.n_background
        if self.attention_entropy is not None:
            each = self.attention_entropy.unbind(-1)
            found |= {f"entropy_{i + 1}": value for i, value in enumerate(each)}
        return {name: float(value.detach().double().mean()) for name, value in found.items()}


def slot_usage(
    masks: Masks,
    *,
    slots: Masks | None = None,
    trace: Masks | None = None,
    truth: Masks | None = None,
    least: float = 0.01,
) -> SlotUsage:
    """Measure how many slots are used, how evenly, how clearly they divide inputs, and duplicates.

    Args:
        masks: ``(..., m, H, W)``, the share of each slot in each pixel, from 0 to 1; they sum to 1
            over slots.
        slots: ``(..., m, d)``. Two slots count as duplicates if their distance is below 5 % of
            their mean norm; without ``slots``, the same holds for their masks.
        trace: ``(..., n_iters, m, n)``, the attention of every iteration (``trace=True`` of a
            model).
        truth: Integers ``(..., H, W)``, 0 the background, for ``n_background``.
        least: Minimum share of the pixels for a slot to count as used.

    Raises:
        ValueError: If shapes do not match, or masks are not between 0 and 1.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import slot_usage
        >>> masks = torch.zeros(3, 4, 4)
        >>> masks[0, :2], masks[1, 2:] = 1.0, 1.0  # the third slot has nothing
        >>> found = slot_usage(masks)
        >>> found.n_used.item(), found.mass.tolist(), round(found.evenness.item(), 3)
        (2, [0.5, 0.5, 0.0], 0.631)
    """
    masks, slots = as_tensor(masks), as_tensor(slots)
    trace, truth = as_tensor(trace), as_tensor(truth)
    _check(masks, slots, trace, truth, least)
    m = masks.shape[-3]
    winner = masks.argmax(-3)
    share = _share(winner, m)
    mass = masks.double().mean((-2, -1))
    weights = mass / mass.sum(-1, keepdim=True).clamp_min(1e-300)
    return SlotUsage(
        n_used=(share >= least).sum(-1),
        mass=mass,
        evenness=_entropy(weights, -1, m),
        duplicates=_duplicates(masks.flatten(-2) if slots is None else slots),
        attention_entropy=None if trace is None else _undecided(trace),
        n_background=None if truth is None else _background(winner, truth, m, least),
    )


def _share(winner: Tensor, m: int) -> Tensor:
    """Part of the pixels that each slot wins, float64 ``(..., m)``."""
    flat = winner.flatten(-2)
    counts = flat.new_zeros(*flat.shape[:-1], m).scatter_add(-1, flat, torch.ones_like(flat))
    return counts.double() / flat.shape[-1]


def _entropy(p: Tensor, dim: int, m: int) -> Tensor:
    return torch.special.entr(p).sum(dim) / math.log(m) if m > 1 else p.sum(dim) * 0.0


def _undecided(trace: Tensor) -> Tensor:
    """Mean over inputs, weighted by what they give, of the entropy over slots."""
    given = trace.double().clamp_min(0)
    total = given.sum(-2)
    p = given / total.unsqueeze(-2).clamp_min(1e-300)
    mean = (_entropy(p, -2, trace.shape[-2]) * total).sum(-1) / total.sum(-1).clamp_min(1e-300)
    # Rounding can leave it a little above.
    return mean.clamp_max(1.0)


def _duplicates(vectors: Tensor) -> Tensor:
    x = vectors.double()
    norm = x.norm(dim=-1)
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    near = distance <= _NEAR * 0.5 * (norm.unsqueeze(-1) + norm.unsqueeze(-2))
    return near & ~torch.eye(x.shape[-2], dtype=torch.bool, device=x.device)


def _background(winner: Tensor, truth: Tensor, m: int, least: float) -> Tensor:
    behind = (truth != 0).long()
    table = contingency("slot_usage", winner, behind, n_slots=m, n_objects=1)[..., 0].double()
    share = table / table.sum(-1, keepdim=True).clamp_min(1)
    return (share >= least).sum(-1)


def _check(
    masks: Tensor, slots: Tensor | None, trace: Tensor | None, truth: Tensor | None, least: float
) -> None:
    for name, value in (("masks", masks), ("slots", slots), ("trace", trace), ("truth", truth)):
        if not isinstance(value, Tensor) and (value is not None or name == "masks"):
            raise ValueError(
                f"slot_usage: {name} is a {type(value).__name__}, expected a tensor or array. "
                "Convert it with torch.as_tensor."
            )
    if masks.ndim < 3 or not masks.is_floating_point() or 0 in masks.shape[-3:]:
        raise ValueError(
            f"slot_usage: masks has shape {tuple(masks.shape)} and dtype {masks.dtype}, expected "
            "floating point (..., m, H, W), none of the three 0. Pass the masks of a model's "
            "output."
        )
    if checks.can_read_values(masks) and masks.numel():
        low, high = (float(x) for x in masks.detach().aminmax())
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise ValueError(
                f"slot_usage: masks has values from {low:.4g} to {high:.4g}, expected 0 to 1. Pass "
                "logits through softmax(-3), or look for a NaN upstream."
            )
    if not isinstance(checks.plain(least), int | float) or not 0 < least < 1:
        raise ValueError(f"slot_usage: least is {least!r}, expected a share between 0 and 1.")
    batch, m = tuple(masks.shape[:-3]), masks.shape[-3]
    for name, value, shape in (
        ("slots", slots, (*batch, m, "d")),
        ("trace", trace, (*batch, "n_iters", m, "n")),
        ("truth", truth, (*batch, *masks.shape[-2:])),
    ):
        if value is None:
            continue
        fits = value.ndim == len(shape) and all(
            isinstance(want, str) or got == want
            for got, want in zip(value.shape, shape, strict=True)
        )
        if not fits:
            expected = f"({', '.join(map(str, shape))})"
            raise ValueError(
                f"slot_usage: {name} has shape {tuple(value.shape)}, expected {expected} to go "
                f"with masks of shape {tuple(masks.shape)}."
            )
