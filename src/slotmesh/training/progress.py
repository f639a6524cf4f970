"""The progress bar of a run."""

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slotmesh.training.journal import Journal
from slotmesh.training.tasks.experiment import Goal


class Bar(Callback):
    """Step, loss, metric and the time left; a line a validation where no terminal is.

    Args:
        console: To write to.
        journal: Where the numbers are read, so that the bar never waits for the device.
        goal: The metric to show.
    """

    def __init__(self, console: Console, journal: Journal, goal: Goal) -> None:
        self._console = console
        self._journal = journal
        self._goal = goal
        self._progress: Progress | None = None
        self._drawn = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show it."""
        if not trainer.is_global_zero:
            return
        columns = (
            TextColumn("training"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, expand=True)
        self._progress.add_task(
            "training", total=trainer.max_steps, completed=trainer.global_step, numbers=""
        )
        if self._console.is_terminal:
            self._progress.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Move on, a few times a second."""
        now = time.monotonic()
        if self._progress is not None and now - self._drawn > 0.1:
            self._drawn = now
            self._update(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the metric; without a terminal, a line."""
        if self._progress is None or trainer.sanity_checking:
            return
        self._update(trainer)
        if not self._console.is_terminal:
            left = f"{trainer.global_step}/{trainer.max_steps}"
            self._console.print(f"step {left}  {self._numbers()}", highlight=False)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the last state standing."""
        if self._progress is not None:
            self._update(trainer)
            if self._console.is_terminal:
                self._progress.stop()
            self._progress = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back: Lightning tears nothing down after an error."""
        self.teardown(trainer, pl_module, "fit")

    def _update(self, trainer: Trainer) -> None:
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=trainer.global_step, numbers=self._numbers())

    def _numbers(self) -> str:
        last, metric = self._journal.last, self._goal.metric
        shown = {"loss": last.get("train/loss"), metric: last.get(f"val/{metric}")}
        return "  ".join(f"{k} {v:.4g}" for k, v in shown.items() if v is not None)
