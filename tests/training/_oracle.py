"""Training in a dozen lines of torch, which ``slotmesh train`` and replicas are held against."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from slotmesh.training.stream import Order
from slotmesh.training.tasks.experiment import Experiment


def train_plainly(
    made: Experiment, on_step: Callable[[int, Any], None] = lambda done, found: None
) -> nn.Module:
    """The trained model, on the CPU; ``on_step`` gets the steps done and what is logged of one."""
    before = torch.get_num_threads()
    # Another number of threads rounds sums in another way.
    torch.set_num_threads(made.settings.hardware.threads or before)
    try:
        return _train(made, on_step)
    finally:
        torch.set_num_threads(before)


def _train(made: Experiment, on_step: Callable[[int, Any], None]) -> nn.Module:
    settings, model = made.settings, made.fresh_model()
    source, n = made.source("train", torch.device("cpu"))
    order = Order(n, batch_size=settings.data.batch_size, seed=settings.seed)
    adam = torch.optim.Adam(model.parameters())
    for step in range(settings.steps):
        adam.param_groups[0]["lr"] = settings.optim.lr * settings.optim.factor(step, settings.steps)
        noise = made.noise("train", step, total=settings.data.batch_size)
        losses = made.losses(model, source.sample(order.batch(step)), noise)
        adam.zero_grad()
        losses["loss"].backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings.optim.clip or float("inf"))
        adam.step()
        on_step(step + 1, {"model": model, "norm": norm, "loss": losses["loss"].detach()})
    return model
