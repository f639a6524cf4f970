"""The error of replicas on sets that they have never seen."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from slotmesh.experiments.experiment import Experiment, Split, mix
from slotmesh.experiments.replicas.data import Sets
from slotmesh.experiments.replicas.group import check_group
from slotmesh.experiments.replicas.together import undisturbed
from slotmesh.experiments.settings import at_least
from slotmesh.nn.noise import StackedGenerator

# Batches that are judged at once.
_AT_ONCE = {"cuda": 16}


def judge_together(
    model: nn.Module,
    experiments: Sequence[Experiment],
    split: Split = "test",
    *,
    n: int | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Normalised RMSE of each replica, as ``slotmesh evaluate`` computes it for one.

    Args:
        model: Stacked, as ``Together.model``.
        experiments: Those of the replicas.
        split: ``"test"``, or ``"val"`` for what a run sees in its validations.
        n: Sets; those of the settings by default.
        batch_size: Of the noise, which is drawn a batch; that of training by default.

    Returns:
        float64 ``(R)`` on the CPU; not finite where a prediction is not.

    Example:
        >>> from slotmesh.experiments.replicas import Together, judge_together
        >>> from slotmesh.experiments.tasks import experiment, preset
        >>> runs = Together([experiment(preset("random-objects", "SA"))])
        >>> judge_together(runs.model, runs.experiments, "val", n=8).shape
        torch.Size([1])
    """
    from slotmesh.metrics import matched_squared_error

    made = check_group(experiments)
    _, known = made[0].source(split, torch.device("cpu"))
    n = known if n is None else n
    if n is None:
        raise ValueError(f"There is no end to the {split} sets. Pass how many to judge as n.")
    size = made[0].settings.data.batch_size if batch_size is None else batch_size
    at_least("n", n, 1)
    at_least("batch_size", size, 1)
    device = next(model.parameters()).device
    sets = Sets(made, split, device)
    whole = sets.targets(0, n)[sets.which.squeeze(1)]
    total = torch.zeros(len(made), dtype=torch.float64, device=device)
    with undisturbed(), torch.inference_mode():
        for first, last, batches in _parts(n, size, _AT_ONCE.get(device.type, 1)):
            seeds = [mix(one.settings.seed, split, i) for one in made for i in batches]
            noise = StackedGenerator(device, seeds, (len(made), len(batches)))
            targets = whole[:, first:last].unflatten(1, (len(batches), -1))
            slots = model(sets.inputs(targets), generator=noise).slots
            total += matched_squared_error(slots, targets).sum((1, 2))
    sigmas = [one.settings.data.sigma for one in made]
    return (total.cpu() / n).sqrt() / torch.tensor(sigmas, dtype=torch.float64)


def _parts(n: int, size: int, most: int) -> list[tuple[int, int, range]]:
    """First and last set, and batches, of what is judged at once: whole batches, then the rest."""
    full = n // size
    found = [range(i, min(i + most, full)) for i in range(0, full, most)]
    parts = [(size * part.start, size * part.stop, part) for part in found]
    return parts if n % size == 0 else [*parts, (size * full, n, range(full, full + 1))]
