"""Trained weights for a new run to start from, in place of random ones."""

from pathlib import Path
from typing import Any

from torch import Tensor

from slotmesh.training.runs import open_run
from slotmesh.training.tasks.experiment import Experiment
from slotmesh.training.weights import locate

_FLAGS = ("channels", "slot_dim", "mlp_dim")


def first_weights(made: Experiment) -> dict[str, Tensor] | None:
    """Load the weights of ``--model.start``; None if a run starts from scratch.

    Raises:
        ValueError: If they do not exist, or belong to another network.
    """
    model: Any = getattr(made.settings, "model", None)
    name: str | None = getattr(model, "start", None)
    if name is None:
        return None
    try:
        run = open_run(locate(name))
        found = run.load_model()
    except ValueError as error:
        raise ValueError(f"--model.start: {error}") from error
    other: Any = getattr(run.settings, "model", None)
    sizes = {f: getattr(other, f, None) for f in _FLAGS}
    wrong = {f: n for f, n in sizes.items() if n is not None and n != getattr(model, f)}
    if wrong:
        ours = ", ".join(str(getattr(model, f)) for f in wrong)
        flags = " ".join(f"--model.{f.replace('_', '-')} {n}" for f, n in wrong.items())
        raise ValueError(
            f"--model.start is {name}, a network with {flags}, but got {ours}. Pass {flags}, or "
            "--model.start None to start from scratch."
        )
    weights = found.state_dict()
    try:
        made.fresh_model().load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"--model.start is {name}, a model of {run.settings.task} ({run.settings.variant}), "
            f"whose weights do not fit {made.settings.task} ({made.settings.variant}). Pass "
            "weights of the same kind of model, or --model.start None to start from scratch."
        ) from error
    return weights


def check_start(made: Experiment) -> None:
    """Raise a ValueError for wrong weights before anything is written, unless the run resumes."""
    folder: Path = made.settings.folder
    if made.settings.overwrite or not (folder / "checkpoints").is_dir():
        first_weights(made)
