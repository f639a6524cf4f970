"""Copying random objects (the paper's section 5.1), small enough to train while you watch.

A set holds k random vectors and h zeros; the k slots have to come out as the k vectors.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slotmesh.nn import FixedGaussian, SlotAttention
from slotmesh.nn.transports import SlotTransport
from slotmesh.ops import assign, pairwise_cost
from slotmesh.worlds import RandomObjects


@dataclass(frozen=True)
class Copying:
    """Settings of one run."""

    steps: int = 500
    """Training steps."""
    batch_size: int = 64
    lr: float = 3e-3
    """Adam's learning rate at the start; it falls to 0 along half a cosine."""
    n_objects: int = 5
    n_background: int = 100
    dim: int = 32
    sigma: float = 1.0
    """Standard deviation of the objects."""
    eval_sets: int = 1024
    """Fresh sets that the error at the end is measured on."""
    eval_every: int = 25
    """Steps between two points of the learning curve."""
    seed: int = 0


@dataclass
class CopyingRun:
    """What came of a run."""

    model: SlotAttention
    curve: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """(step, normalised RMSE on fresh sets)."""
    error: float = float("nan")
    """Normalised RMSE at the end; 1 is what predicting zeros gives."""


def world(settings: Copying, seed: int) -> RandomObjects:
    """The sets of a run; another seed has others."""
    return RandomObjects(
        seed=seed,
        sigma=settings.sigma,
        n_objects=settings.n_objects,
        n_background=settings.n_background,
        dim=settings.dim,
    )


def matched_error(slots: Tensor, objects: Tensor) -> Tensor:
    """Mean squared error of the best one-to-one match, ``(...)``, with its gradient.

    Args:
        slots: ``(..., k, dim)``.
        objects: ``(..., k, dim)``.
    """
    partner = assign(pairwise_cost(slots.detach(), objects, "sqeuclidean"))
    matched = objects.gather(-2, partner.unsqueeze(-1).expand_as(slots))
    return (slots - matched).square().mean((-2, -1))


def evaluate(model: SlotAttention, settings: Copying, n_sets: int, seed: int) -> float:
    """Root of the mean squared error over sets that were never trained on, divided by sigma."""
    sets = world(settings, seed).sample(range(n_sets))
    noise = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        error = matched_error(model(sets.inputs, generator=noise).slots, sets.targets)
    return error.mean().sqrt().item() / settings.sigma


def train(
    transport: SlotTransport,
    settings: Copying,
    on_step: Callable[[int, float], None] = lambda step, error: None,
) -> CopyingRun:
    """Train slot attention with this transport to copy; ``on_step`` hears of every step.

    Runs with the same settings start from the same weights and see the same sets.
    """
    state = torch.get_rng_state()
    torch.manual_seed(settings.seed)
    model = SlotAttention(
        settings.dim,
        settings.dim,
        settings.n_objects,
        transport=transport,
        init=FixedGaussian(),
        implicit=True,
    )
    torch.set_rng_state(state)
    batches = world(settings, settings.seed + 1).batches(settings.batch_size)
    noise = torch.Generator().manual_seed(settings.seed + 2)
    adam = torch.optim.Adam(model.parameters(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, settings.steps)
    run = CopyingRun(model, [(0, evaluate(model, settings, 256, settings.seed + 3))])
    for step, sets in zip(range(1, settings.steps + 1), batches, strict=False):
        slots = model(sets.inputs, generator=noise).slots
        loss = matched_error(slots, sets.targets).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
        if step % settings.eval_every == 0 or step == settings.steps:
            run.curve.append((step, evaluate(model, settings, 256, settings.seed + 3)))
        on_step(step, run.curve[-1][1])
    run.error = evaluate(model, settings, settings.eval_sets, settings.seed + 4)
    return run
