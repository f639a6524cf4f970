"""The training of a run in a dozen lines, without Lightning, checkpoints or logs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from slotmesh.training.stream import Order
from slotmesh.training.tasks.experiment import Experiment


def train_plainly(
    made: Experiment,
    on_step: Callable[[int, dict[str, Tensor]], None] = lambda done, losses: None,
    *,
    model: nn.Module | None = None,
) -> nn.Module:
    """Train on the CPU in single precision; the weights are those of ``slotmesh train`` there.

    It is what ``slotmesh train`` is held against, and enough for a run of a minute. Of the
    settings, ``hardware`` is not looked at.

    Args:
        made: What to learn.
        on_step: Told after every step how many are done, and its losses.
        model: To train in place, for who wants to look at it in between; the run's first weights
            by default.

    Returns:
        The trained model.

    Raises:
        ValueError: If a loss or a gradient is not finite. The weights are those before it. Or if
            the settings ask for an average of the weights.

    Example:
        >>> from dataclasses import replace
        >>> from slotmesh.training.loop import train_plainly
        >>> from slotmesh.training.tasks import experiment, preset
        >>> made = experiment(replace(preset("random-objects", "SA"), steps=2))
        >>> model = train_plainly(made, lambda done, losses: print(done, *losses))
        1 loss
        2 loss
    """
    settings = made.settings
    optim, size = settings.optim, settings.data.batch_size
    if optim.ema is not None:
        raise ValueError(f"--optim.ema is {optim.ema}, expected none: no average is kept here.")
    model = made.fresh_model() if model is None else model
    source, n = made.source("train", torch.device("cpu"))
    order = Order(n, batch_size=size, seed=settings.seed)
    adam = torch.optim.Adam(model.parameters(), lr=optim.lr)
    rate = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: optim.factor(step, settings.steps))
    for step in range(settings.steps):
        sample = source.sample(order.batch(step))
        losses = made.losses(model, sample, made.noise("train", step, total=size))
        adam.zero_grad()
        losses["loss"].backward()
        limit = float("inf") if optim.clip is None else optim.clip
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        if not (losses["loss"].isfinite() & norm.isfinite()):
            raise ValueError(
                f"The loss or the gradient of step {step} is not finite. Lower --optim.lr, or set "
                "--optim.clip."
            )
        adam.step()
        rate.step()
        on_step(step + 1, {name: value.detach() for name, value in losses.items()})
    return model
