"""Checkpoints that are whole or not there, and plain data only."""

import json
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from slotmesh.files import write_whole
from slotmesh.training.arithmetic import arithmetic
from slotmesh.training.checkpoint import load_checkpoint, packed
from slotmesh.training.learner import Learner
from slotmesh.training.settings import plain


class PlainCheckpoints(CheckpointIO):
    """Writes beside the old file and then takes its place; reads plain data only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; the last two are kept, in case that one gets damaged."""
        path = Path(path)
        old = path.with_name("previous.ckpt") if path.name == "last.ckpt" else None
        replace_file(path, packed(checkpoint), old=old)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> Any:
        """Read a checkpoint; one that would run code is refused."""
        return load_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


def replace_file(path: Path, content: Any, *, old: Path | None = None) -> None:
    """Write a file of a run, as :func:`slotmesh.files.write_whole` does.

    Raises:
        OSError: If it cannot be written, with what to do; the old file is as it was.
    """
    try:
        write_whole(path, content, old=old)
    except OSError as error:
        kept = f" The one before, {path}, is whole." if path.is_file() else ""
        raise OSError(
            f"{path} could not be written: {error.strerror}.{kept} Make room and start the same "
            "command again: it resumes."
        ) from error


def before_validation(trainer: Trainer) -> bool:
    """Whether a validation comes between the step that just ended and the next."""
    step = trainer.global_step
    return step == trainer.max_steps or step % int(trainer.val_check_batch or 1) == 0


class Keeper(Callback):
    """Saves ``last.ckpt`` every so many steps, and ``best.ckpt`` by the validation loss.

    Args:
        folder: Of the checkpoints.
        every: Steps between two.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self.last = folder / "last.ckpt"
        self.best = folder / "best.ckpt"
        self.every = every
        self.best_loss = float("inf")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Save, unless a validation comes first, which saves too."""
        if trainer.global_step % self.every == 0 and not before_validation(trainer):
            self.save(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, and keep it where the validation loss was never lower."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        assert isinstance(pl_module, Learner)
        loss = float(pl_module.results()["loss"])
        better = loss < self.best_loss
        self.best_loss = min(loss, self.best_loss)
        # The best first: a run that dies in between does both again.
        for path in (self.best, self.last) if better else (self.last,):
            self.save(trainer, pl_module, path)

    def save(self, trainer: Trainer, pl_module: LightningModule, path: Path | None = None) -> None:
        """Save now, if the weights are finite; as ``last.ckpt`` by default."""
        assert isinstance(pl_module, Learner)
        pl_module.check_finite()
        trainer.save_checkpoint(self.last if path is None else path)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """With the settings, so that a checkpoint says what it is, and what decides its bits."""
        assert isinstance(pl_module, Learner)
        settings = pl_module.experiment.settings
        checkpoint["settings"] = json.dumps(plain(settings))
        checkpoint["arithmetic"] = arithmetic(settings, pl_module.device, trainer.world_size)

    def state_dict(self) -> dict[str, Any]:
        """The best validation loss so far."""
        return {"best_loss": self.best_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.best_loss = state_dict["best_loss"]
