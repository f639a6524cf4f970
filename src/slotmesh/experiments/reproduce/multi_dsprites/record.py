"""What came of a run on Multi-dSprites, as one small file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from slotmesh.experiments.runs import _leaves
from slotmesh.experiments.settings import Settings, plain
from slotmesh.report.page import write_whole

Variant = Literal["SA", "SA-SH", "SA-MESH", "SA-MESH-reuse", "SA-MESH-detach"]
VARIANTS: tuple[Variant, ...] = ("SA", "SA-SH", "SA-MESH", "SA-MESH-reuse", "SA-MESH-detach")
"""The rows of Table 3, and SA-MESH with other gradients."""
GRADIENTS: dict[str, dict[str, str]] = {
    "SA-MESH-reuse": {"grad": "straight_through", "potentials": "reuse"},
    "SA-MESH-detach": {"grad": "straight_through"},
}
"""What these have of their own."""
FOLDER = Path("results/multi-dsprites")
"""Where the results are."""

# What says where a run is and how often it is saved, not what it computes.
_PLACES = ("out", "overwrite", "save_every", "log_every", "data.root", "data.workers")

Curves = dict[str, list[Any]]
"""``step``, and numbers at each; None where one is not defined."""


@dataclass(frozen=True)
class Outcome:
    """What a model reached on test scenes."""

    metrics: dict[str, float]
    """FG-ARI and FG-mIoU, the means over scenes."""
    standard_errors: dict[str, float]
    """Of these means, by the spread of the scenes."""
    undefined: dict[str, int]
    """Scenes that a metric leaves out."""
    loss: float
    blind: dict[str, Any]
    """Loss and metrics of a model that looks at nothing."""
    n: int
    """Scenes."""
    seconds: float
    environment: dict[str, Any]
    """Versions and the name of the device."""


@dataclass(frozen=True)
class Measured:
    """One run, from its first weights to its test."""

    variant: str
    seed: int
    steps: int
    command: str
    """Makes this file."""
    settings: dict[str, Any]
    """All that decides the numbers."""
    parameters: int
    trained_on: list[dict[str, Any]]
    """Of each part of the training: its first step, versions and the name of the device."""
    seconds: float
    """Of training, over all its parts."""
    failed: int | None
    """The step at which loss or gradient was not finite; None for none."""
    best_step: int | None
    """The step of the weights that were tested: those of the lowest validation loss."""
    test: Outcome | None
    """None where training failed."""
    train: Curves
    """The loss on the way."""
    val: Curves
    """Loss and metrics of the validation scenes on the way."""

    @property
    def device(self) -> str:
        """What it was trained on."""
        names = dict.fromkeys(part["device"] for part in self.trained_on)
        return ", then ".join(names)


def deciding(settings: Settings) -> dict[str, Any]:
    """The settings that decide a run's numbers, by their names on the command line."""
    leaves = _leaves(json.loads(json.dumps(plain(settings))))
    return {
        name: value
        for name, value in leaves.items()
        if name not in _PLACES
        and (name == "hardware.precision" or not name.startswith("hardware."))
    }


def write(path: Path, record: Measured) -> None:
    """Write a record, a line for each of its parts."""
    parts = asdict(record).items()
    lines = [f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in parts]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> Measured:
    """A record.

    Raises:
        ValueError: If the file holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        test = None if values["test"] is None else Outcome(**values["test"])
        record = Measured(**values | {"test": test})
        if (record.failed is None) != (test is not None) or not record.trained_on:
            raise KeyError("test")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} holds no result of `slotmesh reproduce multi-dsprites` ({error!r}). Move it "
            "away, or pass --overwrite to the command that makes it."
        ) from error
    return record


def records_in(folder: Path) -> dict[str, Measured]:
    """The rows that are measured, by variant."""
    paths = {variant: folder / f"{variant}.json" for variant in VARIANTS}
    return {variant: read(path) for variant, path in paths.items() if path.is_file()}
