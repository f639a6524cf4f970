"""The folder of a run: settings, versions, metrics, checkpoints, pictures.

::

    RUN/
      settings.json      all settings
      environment.json   command, versions, machine
      metrics.csv        one row a logged step: train/loss, train/lr, val/...
      tensorboard/       the same for TensorBoard
      checkpoints/       last.ckpt (to go on from) and best.ckpt (by the validation loss)
      pictures/          step-000500.png, ...
      evaluation.json    what `slotmesh evaluate` found, with evaluation.csv by sample
"""

import json
import pickle
import platform
import shlex
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import slotmesh
from slotmesh.experiments.experiment import Experiment
from slotmesh.experiments.settings import Settings, flag, plain
from slotmesh.experiments.tasks import experiment, from_plain
from slotmesh.report.page import write_whole

# What may change between two parts of one run without changing what it computes.
_FREE = ("out", "overwrite", "hardware", "save_every", "log_every", "data.workers")
# Of a group above, what may not.
_FIXED = ("hardware.precision",)


@dataclass(frozen=True)
class Run:
    """A run on disk, or a checkpoint of one."""

    experiment: Experiment
    folder: Path
    """Where results about it go."""
    checkpoint: Path
    """The weights that stand for it."""

    @property
    def settings(self) -> Settings:
        """Of the run."""
        return self.experiment.settings

    @property
    def name(self) -> str:
        """Short, for tables."""
        return f"{self.settings.task} {self.settings.variant} seed {self.settings.seed}"

    def load_model(self, device: torch.device | str = "cpu") -> nn.Module:
        """The trained model, in evaluation mode."""
        model = self.experiment.fresh_model()
        if self.checkpoint.suffix == ".safetensors":
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                weights: dict[str, Any] = load_file(self.checkpoint)
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{self.checkpoint} cannot be read: {error}") from error
        else:
            state = load_checkpoint(self.checkpoint)["state_dict"]
            # An average of the weights stands for the run where there is one.
            room = "average." if any(k.startswith("average.") for k in state) else "model."
            weights = {k.removeprefix(room): v for k, v in state.items() if k.startswith(room)}
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{self.checkpoint} does not fit its settings: {error}") from error
        return model.to(device).eval()


def open_run(path: Path) -> Run:
    """A run's folder, one of its checkpoints, or a folder that ``slotmesh export`` wrote.

    Raises:
        ValueError: If it is none of these, or not whole.
    """
    if path.is_dir() and (path / "settings.json").is_file():
        settings = from_plain(_read_json(path / "settings.json"), str(path / "settings.json"))
        files = ("checkpoints/best.ckpt", "checkpoints/last.ckpt", "model.safetensors")
        for name in files:
            if (path / name).is_file():
                return Run(experiment(settings, moved=True), path, path / name)
        raise ValueError(
            f"{path} has no checkpoint yet, expected {' or '.join(files)}. Start its "
            "training again: it goes on."
        )
    if path.is_file() and path.suffix == ".ckpt":
        values = load_checkpoint(path).get("settings")
        if not isinstance(values, str):
            raise ValueError(f"{path} is not a checkpoint of slotmesh: it holds no settings.")
        settings = from_plain(_parse_json(values, path), str(path))
        folder = path.parent.parent if path.parent.name == "checkpoints" else path.parent
        return Run(experiment(settings, moved=True), folder, path)
    raise ValueError(
        f"{path} is not a run: expected the folder that `slotmesh train` made, one of its .ckpt "
        "files, or the folder of an export."
    )


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint as plain data; a file that would run code when loaded is refused.

    Raises:
        ValueError: If it is damaged, or holds more than plain data.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice about files that are not torch's
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is refused: it is damaged, or holds more than tensors and plain data and "
            f"could run code when it is loaded. ({str(error).splitlines()[0]})"
        ) from error
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(f"{path} cannot be read as a checkpoint: {error!r}") from error
    if not isinstance(found, dict) or not isinstance(found.get("state_dict"), dict):
        raise ValueError(f"{path} is not a checkpoint: it holds no state_dict.")
    return found


def steps_done(checkpoint: Path) -> int:
    """Training steps up to a checkpoint.

    Raises:
        ValueError: If training cannot go on from it.
    """
    step = load_checkpoint(checkpoint).get("global_step")
    if not isinstance(step, int):
        raise ValueError(f"{checkpoint} is not a checkpoint to go on from: it holds no step.")
    return step


def prepare(settings: Settings) -> Path | None:
    """Make the folder of a run; the checkpoint to go on from, if there is one.

    Raises:
        ValueError: If the folder holds another run, or cannot be written.
    """
    folder = settings.folder
    last = folder / "checkpoints" / "last.ckpt"
    kept = folder / "settings.json"
    if (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder} holds an export of a run. Choose another folder with --out.")
    if kept.is_file():
        if settings.overwrite:
            _clear(folder)
        elif any((folder / "checkpoints").glob("*.ckpt")):
            _check_same(settings, from_plain(_read_json(kept), str(kept)), folder)
    elif not settings.overwrite and _holds_others(folder):
        raise ValueError(
            f"{folder} holds other files, expected an empty folder or a run. Choose another with "
            "--out, or pass --overwrite."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The place of a run is where it is, not where it was made.
        values = plain(replace(settings, out=None, overwrite=False))
        write_whole(kept, json.dumps(values, indent=2) + "\n")
        write_whole(folder / "environment.json", json.dumps(environment(), indent=2) + "\n")
        for name in ("checkpoints", "pictures"):
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The run's folder {folder} cannot be written: {error.strerror}. Make room, or choose "
            "another with --out."
        ) from error
    return last if last.is_file() else None


def environment() -> dict[str, Any]:
    """Command, versions and machine."""
    import lightning
    import numpy as np

    found: dict[str, Any] = {
        "command": shlex.join(["slotmesh", *sys.argv[1:]]),
        "slotmesh": slotmesh.__version__,
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found


def _check_same(new: Settings, old: Settings, folder: Path) -> None:
    before, after = _leaves(plain(old)), _leaves(plain(new))
    for name in before | after:
        free = name not in _FIXED and (name in _FREE or name.split(".")[0] in _FREE)
        if free or before.get(name) == after.get(name):
            continue
        raise ValueError(
            f"{folder} holds a run with {flag(name)} {before.get(name)}, but "
            f"{after.get(name)} came. Choose another folder with --out, or pass --overwrite."
        )


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _leaves(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = list(value) if isinstance(value, tuple) else value
    return found


def _holds_others(folder: Path) -> bool:
    """Whether a folder is there and not empty, but for what a start leaves that failed."""
    return folder.is_dir() and any(p.name != ".settings.json.part" for p in folder.iterdir())


def _clear(folder: Path) -> None:
    """Remove what a run wrote, and nothing else."""
    import shutil

    for name in ("checkpoints", "pictures", "tensorboard", "failure"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("settings.json", "environment.json", "metrics.csv"):
        (folder / name).unlink(missing_ok=True)
    for name in ("evaluation.json", "evaluation.csv", "report.html"):
        (folder / name).unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _parse_json(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _parse_json(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {type(found).__name__}, expected settings by name.")
    return found
