"""Which experiments can be trained together."""

from collections.abc import Sequence

from slotmesh.training.runs import _leaves
from slotmesh.training.settings import Settings, flag, plain
from slotmesh.training.tasks.experiment import Experiment
from slotmesh.training.tasks.random_objects import RandomObjects

# What each replica may have for itself. Folders are not looked at.
OWN = ("seed", "data.seed", "data.sigma", "out", "overwrite")


def check_group(experiments: Sequence[Experiment]) -> list[RandomObjects]:
    """The experiments, if they can be trained together.

    Raises:
        ValueError: If there are none, or they differ in more than their seeds and sigma, or cannot
            be stacked.
    """
    found: list[RandomObjects] = []
    for made in experiments:
        if not isinstance(made, RandomObjects):
            raise ValueError(
                f"An experiment of {made.settings.task} came, expected random-objects: only its "
                "model can be stacked."
            )
        found.append(made)
    if not found:
        raise ValueError("No experiments came, expected at least one.")
    first = found[0].settings
    for i, made in enumerate(found):
        differ = difference(first, made.settings, OWN)
        if differ is not None:
            name, expected, came = differ
            raise ValueError(
                f"{flag(name)} is {came} in experiment {i} and {expected} in the first, expected "
                "the same. Replicas may differ in --seed, --data.seed and --data.sigma only."
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


def difference(
    one: Settings, other: Settings, free: tuple[str, ...]
) -> tuple[str, object, object] | None:
    """The first setting in which two differ, with both values; None if there is no such.

    Args:
        one: Settings.
        other: Settings.
        free: Names of settings and groups that are not looked at.
    """
    ours, theirs = _leaves(plain(one)), _leaves(plain(other))
    for name in ours | theirs:
        looked_at = name not in free and name.split(".")[0] not in free
        if looked_at and ours.get(name) != theirs.get(name):
            return name, ours.get(name), theirs.get(name)
    return None
