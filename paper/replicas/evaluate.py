"""The error of replicas on held-out sets."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paper.replicas.check import check_replicas
from paper.replicas.data import Sets
from paper.replicas.stacked import StackedGenerator
from paper.replicas.trainer import exact_arithmetic
from slotmesh.training.settings import at_least
from slotmesh.training.tasks.experiment import Experiment, Split, mix

# Batches evaluated at once.
_AT_ONCE = {"cuda": 16}


def evaluate_replicas(
    model: nn.Module,
    experiments: Sequence[Experiment],
    split: Split = "test",
    *,
    n: int | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Return the normalised RMSE of each replica, as ``slotmesh evaluate`` computes it for one run.

    Args:
        model: The stacked model, ``ReplicaTrainer.model``.
        experiments: The experiments of the replicas.
        split: ``"test"``, or ``"val"`` for the sets that a run is validated on.
        n: Number of sets; that of the settings by default.
        batch_size: Sets per draw of noise; that of training by default.

    Returns:
        float64 ``(R)`` on the CPU; not finite where a prediction is not finite.

    Example:
        >>> from paper.replicas import ReplicaTrainer, evaluate_replicas
        >>> from slotmesh.training.tasks import experiment, preset
        >>> runs = ReplicaTrainer([experiment(preset("random-objects", "SA"))])
        >>> evaluate_replicas(runs.model, runs.experiments, "val", n=8).shape
        torch.Size([1])
    """
    from slotmesh.metrics import matched_squared_error

    made = check_replicas(experiments)
    _, known = made[0].source(split, torch.device("cpu"))
    n = known if n is None else n
    if n is None:
        raise ValueError(f"The {split} sets are endless. Pass the number of sets to evaluate as n.")
    size = made[0].settings.data.batch_size if batch_size is None else batch_size
    at_least("n", n, 1)
    at_least("batch_size", size, 1)
    device = next(model.parameters()).device
    sets = Sets(made, split, device)
    whole = sets.targets(0, n)[sets.which.squeeze(1)]
    total = torch.zeros(len(made), dtype=torch.float64, device=device)
    with exact_arithmetic(), torch.inference_mode():
        for first, last, batches in _parts(n, size, _AT_ONCE.get(device.type, 1)):
            seeds = [mix(one.settings.seed, split, i) for one in made for i in batches]
            noise = StackedGenerator(device, seeds, (len(made), len(batches)))
            targets = whole[:, first:last].unflatten(1, (len(batches), -1))
            slots = model(sets.inputs(targets), generator=noise).slots
            total += matched_squared_error(slots, targets).sum((1, 2))
    sigmas = [one.settings.data.sigma for one in made]
    return (total.cpu() / n).sqrt() / torch.tensor(sigmas, dtype=torch.float64)


def _parts(n: int, size: int, most: int) -> list[tuple[int, int, range]]:
    """Split n sets into parts (first, last, batches): full batches, then the rest."""
    full = n // size
    found = [range(i, min(i + most, full)) for i in range(0, full, most)]
    parts = [(size * part.start, size * part.stop, part) for part in found]
    return parts if n % size == 0 else [*parts, (size * full, n, range(full, full + 1))]
