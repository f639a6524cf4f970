"""The folder of a run: settings, versions, metrics, checkpoints, pictures.

::

    RUN/
      settings.json      all settings
      environment.json   command, versions, machine
      data.json          a hash of the names and sizes of your images, to notice others
      metrics.csv        one row per logged step: train/loss, train/lr, val/...
      tensorboard/       the same and the pictures for TensorBoard (wandb/ with --logger wandb)
      checkpoints/       last.ckpt (to resume from), previous.ckpt (the one before it) and best.ckpt
                         (by the validation loss)
      pictures/          step-000500.png, ...
      evaluation.json    what `slotmesh evaluate` found, with evaluation.csv per sample
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape
from torch import nn

from slotmesh.environment import command_line, environment
from slotmesh.files import make_room, parts, write_whole
from slotmesh.nn.sealed import check_seal
from slotmesh.readers import photos
from slotmesh.readers.listing import find_files
from slotmesh.readers.videos import CLIPS
from slotmesh.training.checkpoint import DamagedError, last_sound, load_checkpoint
from slotmesh.training.processes import LOCK_NAME, Lock
from slotmesh.training.reading import parse_json, read_json
from slotmesh.training.settings import INCIDENTAL, Settings, flag, is_one_of, leaves, plain
from slotmesh.training.tasks import TASKS, experiment, from_plain
from slotmesh.training.tasks.experiment import Experiment

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# Between two parts of one run, only what is INCIDENTAL may change: if other hardware rounds sums
# differently, only the last bits of the run differ, and it says so (arithmetic.py). These may not.
_FIXED = ("hardware.precision",)


@dataclass(frozen=True)
class Run:
    """A run on disk, or a checkpoint of one."""

    experiment: Experiment
    folder: Path
    """Folder of the run, or of the checkpoint."""
    checkpoint: Path
    """The weights that represent it."""

    @property
    def settings(self) -> Settings:
        """Settings of the run."""
        return self.experiment.settings

    @property
    def name(self) -> str:
        """Short, for tables."""
        return f"{self.settings.task} {self.settings.variant} seed {self.settings.seed}"

    @property
    def home(self) -> Path | None:
        """The folder for its results: the folder of the training run, but not that of an export."""
        made = (self.folder / "settings.json").is_file()
        return self.folder if made and self.checkpoint.suffix != ".safetensors" else None

    @property
    def stopped_at(self) -> int | None:
        """The last step of a run that is not finished; None if it is finished or unknown."""
        last = self.folder / "checkpoints" / "last.ckpt"
        try:
            step = steps_done(last) if last.is_file() else None
        except ValueError:
            return None
        return step if step is not None and step < self.settings.steps else None

    def load_model(self, device: torch.device | str = "cpu") -> nn.Module:
        """The trained model, in evaluation mode."""
        model = self.experiment.fresh_model()
        if self.checkpoint.suffix == ".safetensors":
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            check_seal(self.checkpoint)
            try:
                weights: dict[str, Any] = load_file(self.checkpoint)
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{self.checkpoint} cannot be read: {error}") from error
        else:
            state = self._saved()["state_dict"]
            # If there is an average of the weights, it represents the run.
            room = "average." if any(k.startswith("average.") for k in state) else "model."
            weights = {k.removeprefix(room): v for k, v in state.items() if k.startswith(room)}
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{self.checkpoint} does not fit its settings: {error}") from error
        return model.to(device).eval()

    def _saved(self) -> dict[str, Any]:
        try:
            return load_checkpoint(self.checkpoint)
        except DamagedError as error:
            others = [p.name for p in sorted(self.checkpoint.parent.glob("*.ckpt"))]
            others = [name for name in others if name != self.checkpoint.name]
            if not others:
                raise
            # None of them is used instead: other weights give other results.
            raise DamagedError(f"{error} Beside it there is: {', '.join(others)}.") from error


def open_run(path: Path) -> Run:
    """Open a run's folder, one of its checkpoints, or a folder that ``slotmesh export`` wrote.

    Raises:
        ValueError: If it is none of these, or damaged.
    """
    if path.is_dir() and (path / "settings.json").is_file():
        settings = from_plain(read_json(path / "settings.json"), str(path / "settings.json"))
        saved = (f"checkpoints/{name}.ckpt" for name in ("best", "last", "previous"))
        files = (*saved, "model.safetensors")
        for name in files:
            if (path / name).is_file():
                return Run(experiment(settings, moved=True), path, path / name)
        raise ValueError(
            f"{path} has no checkpoint yet, expected {' or '.join(files)}. Repeat the command that "
            "trains it."
        )
    if path.is_file() and path.suffix == ".ckpt":
        values = load_checkpoint(path).get("settings")
        if not isinstance(values, str):
            raise ValueError(f"{path} is not a checkpoint of slotmesh: it holds no settings.")
        settings = from_plain(parse_json(values, path), str(path))
        folder = path.parent.parent if path.parent.name == "checkpoints" else path.parent
        return Run(experiment(settings, moved=True), folder, path)
    if (path / "model.safetensors").is_file():
        raise ValueError(
            f"{path} has weights but no settings.json, like a folder written by save_pretrained. "
            "Load it in Python with from_pretrained, or pass the folder of its run (out of "
            "slotmesh.fit), or an export of that run by `slotmesh export`."
        )
    raise ValueError(
        f"{path} is not a run: expected the folder that `slotmesh train` made, one of its .ckpt "
        "files, or the folder of an export."
    )


def steps_done(checkpoint: Path) -> int:
    """Training steps up to a checkpoint.

    Raises:
        ValueError: If it cannot be resumed from.
    """
    step = load_checkpoint(checkpoint).get("global_step")
    if not isinstance(step, int):
        raise ValueError(f"{checkpoint} cannot be resumed from: it holds no step.")
    return step


def begin(settings: Settings, lock: Lock, fabric: "Fabric", console: Console) -> Path | None:
    """Lock and prepare the folder of a run; return the checkpoint to resume from, if there is one.

    Raises:
        ValueError: If the folder is in use, holds another run or cannot be written; or if the bits
            would differ although ``--hardware.deterministic`` is on.
    """

    def say(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    folder = settings.folder
    try:
        lock.acquire()
        prepare(settings)
    except OSError as error:
        raise unwritable(folder, error) from error
    # Outside: if writing to the terminal fails, the folder is not to blame.
    console.print(
        f"[bold]{settings.task}[/bold] {settings.variant}, preset {settings.preset}, seed "
        f"{settings.seed}: {settings.steps} steps of {settings.data.batch_size}, in "
        f"{escape(str(folder))}",
        highlight=False,
        soft_wrap=True,
    )
    try:
        resume = last_sound(folder / "checkpoints", say)
        _compare_data(settings, None if resume is None else say)
    except OSError as error:
        raise unwritable(folder, error) from error
    if resume is not None:
        say("Resuming from the last checkpoint.")
        if steps_done(resume) < settings.steps:
            _compare_bits(settings, resume, fabric, say)
    return resume


def _compare_bits(
    settings: Settings, resume: Path, fabric: "Fabric", say: Callable[[str], None]
) -> None:
    """Report if a run is computed differently than before; refuse it if that is not allowed."""
    from slotmesh.training.arithmetic import arithmetic, change

    now = arithmetic(settings, fabric.device, fabric.world_size)
    differs, fix = change(now, load_checkpoint(resume).get("arithmetic"))
    if not differs:
        return
    if settings.hardware.deterministic:
        raise ValueError(
            f"{settings.folder} would resume {differs} and end with different bits, which "
            f"--hardware.deterministic does not allow. For the same bits, {fix}; or leave it out."
        )
    say(f"The run resumes {differs}: results agree up to rounding only. For the same bits, {fix}.")


def prepare(settings: Settings) -> None:
    """Make the folder of a run.

    Raises:
        ValueError: If the folder holds another run, or cannot be written.
    """
    folder = settings.folder
    kept = folder / "settings.json"
    if (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder} holds an export of a run. Choose another folder with --out.")
    if kept.is_file():
        if settings.overwrite:
            _clear(folder)
        elif any((folder / "checkpoints").glob("*.ckpt")):
            _check_same(settings, from_plain(read_json(kept), str(kept)), folder)
    elif not settings.overwrite and _holds_others(folder):
        raise ValueError(
            f"{folder} holds other files, expected an empty folder or a run. Choose another with "
            "--out, or pass --overwrite."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The folder of a run may be moved.
        values = plain(replace(located(settings), out=None, overwrite=False))
        write_whole(kept, json.dumps(values, indent=2) + "\n")
        described = command_line() | environment()
        write_whole(folder / "environment.json", json.dumps(described, indent=2) + "\n")
        for name in ("checkpoints", "pictures"):
            (folder / name).mkdir(exist_ok=True)
        _sweep(folder)
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> ValueError:
    """The error for a run whose folder cannot be written."""
    file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if file is not None:
        return ValueError(
            f"--out is {folder}, but {file} is a file; expected a folder. Choose another name."
        )
    return ValueError(
        f"The run's folder {folder} cannot be written: {error.strerror}. {make_room(error)}, or "
        "choose another folder with --out."
    )


def _check_same(new: Settings, old: Settings, folder: Path) -> None:
    before, after = (leaves(located(one)) for one in (old, new))
    for name in before | after:
        free = name not in _FIXED and is_one_of(name, INCIDENTAL)
        if free or before.get(name) == after.get(name):
            continue
        raise ValueError(
            f"{folder} holds a run with {flag(name)} {before.get(name)}, but "
            f"got {after.get(name)}. Choose another folder with --out, or pass --overwrite."
        )


def located(settings: Settings) -> Settings:
    """Settings with absolute paths of the data."""
    places: dict[str, Path] = {}
    for name in ("root", "masks"):
        path: Path | None = getattr(settings.data, name, None)
        if path is not None:
            places[name] = path.resolve()
    return replace(settings, data=replace(settings.data, **places)) if places else settings


def with_kept_defaults(start: Settings, root: Path, folder: Path) -> Settings:
    """Default settings of a run; if it exists already, those that depended on its data are kept.

    Args:
        start: Settings chosen by the present data.
        root: The folder of the data.
        folder: Folder of the run, which may not exist.
    """
    path = folder / "settings.json"
    if TASKS[start.task].has_world or not path.is_file():
        return start
    try:
        old: Any = from_plain(read_json(path), str(path))
    except ValueError:
        # Reported when the run is opened.
        return start
    same = (old.task, old.variant, old.preset) == (start.task, start.variant, start.preset)
    if not same or old.data.root is None or old.data.root.resolve() != root.resolve():
        return start
    names = ("batch_size", "size", "square", "stride")
    data = {name: getattr(old.data, name) for name in names if hasattr(old.data, name)}
    kept = {n: getattr(old, n) for n in ("steps", "val_every", "save_every", "optim", "transport")}
    return replace(
        start,
        **kept,
        data=replace(start.data, **data),
        model=replace(start.model, n_slots=old.model.n_slots),
    )


def _fingerprint(settings: Settings) -> dict[str, Any] | None:
    """A hash of the names and sizes of the user's own images; None for other data."""
    root: Path | None = getattr(settings.data, "root", None)
    if root is None or TASKS[settings.task].has_world:
        return None
    names = find_files(root, (*photos.ENDINGS, *CLIPS)) if root.is_dir() else [""]
    lines = "".join(f"{name}\0{_size(root / name)}\n" for name in names)
    digest = hashlib.blake2b(lines.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return {"files": len(names), "digest": digest}


def _size(path: Path) -> int | None:
    """The size of a file; None if it cannot be read, such as that of a broken link."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _compare_data(settings: Settings, say: Callable[[str], None] | None) -> None:
    """Save the fingerprint of the data, or report that it has changed when a run resumes."""
    now, path = _fingerprint(settings), settings.folder / "data.json"
    if now is None:
        return
    if say is None or not path.is_file():
        write_whole(path, json.dumps(now) + "\n")
        return
    before = read_json(path)
    if before != now:
        root: Any = settings.data
        say(
            f"The files in {root.root} have changed since the run began: {now['files']} now, "
            f"{before.get('files')} then, or other names or sizes. The run continues with them."
        )


def _holds_others(folder: Path) -> bool:
    """Whether a folder contains more than a failed start leaves behind."""
    ours = {folder / LOCK_NAME, *parts(folder, "settings.json")}
    return folder.is_dir() and any(path not in ours for path in folder.iterdir())


def _sweep(folder: Path) -> None:
    """Remove the temporary files that a killed process left."""
    for name in ("settings.json", "environment.json", "data.json", "metrics.csv"):
        for part in parts(folder, name):
            part.unlink(missing_ok=True)
    for room, name in (("checkpoints", "*.ckpt"), ("pictures", "step-*.png"), ("failure", "*")):
        for part in parts(folder / room, name):
            part.unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """Remove everything that a run wrote, and nothing else."""
    import shutil

    for name in ("checkpoints", "pictures", "tensorboard", "wandb", "failure"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("settings.json", "environment.json", "data.json", "metrics.csv"):
        (folder / name).unlink(missing_ok=True)
    for name in ("evaluation.json", "evaluation.csv", "report.html"):
        (folder / name).unlink(missing_ok=True)
