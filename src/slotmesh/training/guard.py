"""Training ends where its folder does."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from slotmesh.training.lock import Lock


class Guard(Callback):
    """Ends training when the run's folder was removed, or replaced by that of another run.

    Args:
        lock: On the folder; only the first process has it.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Before anything is written."""
        self._lock.check()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same after a validation."""
        self._lock.check()
