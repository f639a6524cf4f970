"""Being asked to stop: save, and leave with a code of its own."""

import signal
import threading
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from slotmesh.training.keeper import Keeper, before_validation

# Steps between two looks at the other processes: it costs a message.
_EVERY = 10


class Stopped(BaseException):
    """Training was asked to stop, and its state is saved."""

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(f"signal {signum} at step {step}")
        self.signum = signum
        self.step = step

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as shells count: 143 for SIGTERM, 130 for Ctrl-C."""
        return 128 + self.signum


class Signals(Callback):
    """Ends training after the step at hand when SIGTERM or Ctrl-C came; a second ends it at once.

    Args:
        keeper: Saves the state.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._came = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Listen; Lightning puts back all handlers when it ends.

        Anew at every step: what ran in between may have put others in their place.
        """
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, self._note)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Stop here, where nothing is half done."""
        if before_validation(trainer) or (trainer.world_size > 1 and trainer.global_step % _EVERY):
            return
        if came := self._anywhere(trainer, pl_module):
            self._keeper.save(trainer, pl_module)
            raise Stopped(came, trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop here, where the state was just saved."""
        if came := self._anywhere(trainer, pl_module):
            raise Stopped(came, trainer.global_step)

    def _anywhere(self, trainer: Trainer, pl_module: LightningModule) -> int:
        """The signal that came, to this process or to another; 0 for none."""
        if trainer.world_size == 1:
            return self._came
        shared = torch.tensor(self._came, device=pl_module.device)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        return int(shared)

    def _note(self, signum: int, frame: Any) -> None:
        if self._came and signum == signal.SIGINT:
            # Lightning would turn a KeyboardInterrupt into exit code 1.
            raise SystemExit(128 + signum)
        self._came = signum
