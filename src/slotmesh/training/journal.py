"""Metrics of a run, as CSV and for TensorBoard."""

import csv
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from slotmesh.training.board import Board
from slotmesh.training.keeper import replace_file
from slotmesh.training.learner import Learner


class Journal(Callback):
    """Writes one row a logged step to metrics.csv, and the same numbers for TensorBoard.

    A resumed run goes on in the same file: rows of steps that are about to be done again go.

    Args:
        folder: Of the run.
        every: Steps between two rows of training.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self.path = folder / "metrics.csv"
        self.every = every
        self.last: dict[str, float] = {}
        """The newest value of each number."""
        self._folder = folder
        self._board: Board | None = None
        self._columns: list[str] = []
        self._seconds = 0.0
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """Of training so far, over all parts of the run."""
        return self._seconds + (time.perf_counter() - self._began)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the files; the CSV up to the step that training goes on from."""
        self._began = time.perf_counter()
        if not trainer.is_global_zero:
            return
        step = trainer.global_step
        self._cut(step)
        with self._said("tensorboard"):
            self._board = Board(self._folder / "tensorboard", step + 1 if step else None)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """One row of training."""
        if trainer.global_step % self.every and trainer.global_step != trainer.max_steps:
            return
        assert isinstance(pl_module, Learner)
        pl_module.check_finite()
        found = {f"train/{k}": float(_shared(trainer, v)) for k, v in pl_module.latest.items()}
        self._write(trainer, found)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One row of validation; all processes take part in the metrics."""
        if trainer.sanity_checking:
            return
        assert isinstance(pl_module, Learner)
        if trainer.state.fn == TrainerFn.FITTING:
            pl_module.check_finite()
        results = pl_module.results()
        self._write(trainer, {f"val/{k}": float(v) for k, v in results.items()})

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close TensorBoard's file."""
        if self._board is not None:
            with suppress(OSError):  # What it could not write was said before.
                self._board.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close it after an error too."""
        self.teardown(trainer, pl_module, "fit")

    def state_dict(self) -> dict[str, Any]:
        """Seconds of training, to go on counting."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self._seconds = state_dict["seconds"]

    def _write(self, trainer: Trainer, numbers: dict[str, float]) -> None:
        self.last |= numbers
        if not trainer.is_global_zero:
            return
        step = trainer.global_step
        row = {"step": step, "seconds": f"{self.seconds:.2f}"}
        row |= {k: f"{v:.9g}" for k, v in numbers.items()}
        new = [name for name in row if name not in self._columns]
        if new:
            self._widen(new)
        with (
            self._said(self.path.name),
            self.path.open("a", newline="", encoding="utf-8") as file,
        ):
            csv.DictWriter(file, self._columns).writerow(row)
        assert self._board is not None
        with self._said("tensorboard"):
            self._board.add(numbers, step)

    @contextmanager
    def _said(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"{self._folder / name} could not be written: {error.strerror}. Make room and "
                "start the same command again: it resumes."
            ) from error

    def _widen(self, new: list[str]) -> None:
        """More columns, which a CSV file cannot get without being written again."""
        rows = self._rows()
        self._columns += new
        _write_csv(self.path, self._columns, rows)

    def _cut(self, step: int) -> None:
        """Keep the rows up to a step."""
        rows = [row for row in self._rows() if int(row["step"]) <= step]
        if rows:
            self._columns = list(rows[0])
        _write_csv(self.path, self._columns, rows)

    def _rows(self) -> list[dict[str, str]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            # A row that a kill cut short has no value for its last columns.
            rows = [r for r in csv.DictReader(file) if None not in r and None not in r.values()]
        return [row for row in rows if row.get("step", "").isdigit()]


def _shared(trainer: Trainer, value: Any) -> Any:
    """The mean over processes, which have equal parts of each batch."""
    if trainer.world_size == 1 or not isinstance(value, torch.Tensor):
        return value
    return trainer.strategy.reduce(value.clone(), reduce_op="mean")


def _write_csv(path: Path, columns: list[str], rows: list[dict[str, str]]) -> None:
    import io

    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    if columns:
        writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue())
