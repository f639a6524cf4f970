"""Check which experiments can be trained together."""

from collections.abc import Sequence

from paper.recorded import by_flag, difference
from slotmesh.training.settings import flag
from slotmesh.training.tasks.experiment import Experiment
from slotmesh.training.tasks.random_objects import RandomObjectsTask

# Settings in which replicas may differ.
OWN = ("seed", "data.seed", "data.sigma", "out", "overwrite")


def check_replicas(experiments: Sequence[Experiment]) -> list[RandomObjectsTask]:
    """Return the experiments if they can be trained together.

    Raises:
        ValueError: If there are none, if they differ in more than their seeds and sigma, or if
            they cannot be stacked.
    """
    found: list[RandomObjectsTask] = []
    for made in experiments:
        if not isinstance(made, RandomObjectsTask):
            raise ValueError(
                f"Got an experiment of {made.settings.task}, expected random-objects: only its "
                "model can be stacked."
            )
        found.append(made)
    if not found:
        raise ValueError("Got no experiments, expected at least one.")
    first = found[0].settings
    for i, made in enumerate(found):
        other = difference(by_flag(first), by_flag(made.settings), ignore=OWN)
        if other is not None:
            name, expected, got = other
            raise ValueError(
                f"{flag(name)} is {got} in experiment {i} and {expected} in the first, expected "
                "the same. Replicas may differ only in --seed, --data.seed and --data.sigma."
            )
    if first.hardware.precision != "32":
        raise ValueError(
            f"--hardware.precision is {first.hardware.precision}, expected 32: replicas are "
            "trained in single precision."
        )
    if first.optim.ema is not None:
        raise ValueError(
            f"--optim.ema is {first.optim.ema}, expected none: replicas keep no average."
        )
    return found
