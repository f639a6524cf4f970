"""What a run reports while it trains: metrics.csv, TensorBoard or W&B, and a progress bar."""

import csv
import importlib.util
import io
import os
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from slotmesh.files import make_room
from slotmesh.progress import Count, draws_bars
from slotmesh.training.checkpoint import replace_file
from slotmesh.training.settings import Settings, plain
from slotmesh.training.tasks.experiment import Experiment


def check_logger(settings: Settings) -> None:
    """Raise a ValueError if what ``--logger`` needs is not installed."""
    if settings.logger == "wandb" and importlib.util.find_spec("wandb") is None:
        raise ValueError(
            "--logger is wandb, but the package wandb is not installed. Run `pip install wandb`, "
            "or pass --logger tensorboard or --logger none."
        )


class Log:
    """Writes the numbers of a run and shows them, between ``with`` and the end of the block.

    Args:
        made: The experiment.
        console: Shows a progress bar or, if it is not a terminal, a line at every validation and at
            least every 10 seconds.
        step: The step that training resumes from. Rows of later steps are removed, since these
            steps are repeated.
        seconds: Time that training took so far.
        active: Whether this is the first process; the others only measure the time.
    """

    def __init__(
        self, made: Experiment, console: Console, step: int, seconds: float, *, active: bool
    ) -> None:
        self._settings = made.settings
        self._goal = made.goal.metric
        self._console = console
        self._first = step
        self._seconds = seconds
        self._active = active
        self._path = made.settings.folder / "metrics.csv"
        self._columns: list[str] = []
        self._last: dict[str, float] = {}
        self._logger: Any = None
        self._count = Count(
            console if active else None,
            "training" if draws_bars(console) else "step",
            made.settings.steps,
            done=step,
            transient=False,
        )
        self._drawn = 0.0

    @property
    def seconds(self) -> float:
        """Time of training so far, over all parts of the run."""
        return self._seconds + time.perf_counter() - self._began

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        if self._active:
            rows = [row for row in self._rows() if int(row["step"]) <= self._first]
            self._columns = list(rows[0]) if rows else []
            self._write_csv(rows)
            with self._said(self._settings.logger):
                self._logger = _make_logger(self._settings, self._first)
        self._count.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._count.__exit__(*error)
        if self._active:
            with suppress(OSError):  # errors in writing have been reported
                if self._logger is not None:
                    self._logger.finalize("failed" if error[0] else "success")
                    if self._settings.logger == "wandb":
                        # Otherwise, another run in this process would add to this one.
                        self._logger.experiment.finish()

    def write(self, step: int, split: str, numbers: dict[str, float]) -> None:
        """Write a row of numbers, under names such as ``train/loss``."""
        if not self._active:
            return
        numbers = {f"{split}/{name}": value for name, value in numbers.items()}
        self._last |= numbers
        row = {"step": step, "seconds": f"{self.seconds:.2f}"}
        row |= {name: f"{value:.9g}" for name, value in numbers.items()}
        if new := [name for name in row if name not in self._columns]:
            # To add columns to a CSV file, write it again.
            rows = self._rows()
            self._columns += new
            self._write_csv(rows)
        with (
            self._said(self._path.name),
            self._path.open("a", newline="", encoding="utf-8") as file,
        ):
            csv.DictWriter(file, self._columns).writerow(row)
        if self._logger is not None:
            with self._said(self._settings.logger):
                self._logger.log_metrics(numbers, step)

    def show(self, step: int, *, line: bool) -> None:
        """Move the bar, at most a few times per second; with ``line``, always, or print a line."""
        now = time.monotonic()
        if not self._active or (not line and now - self._drawn < 0.1):
            return
        self._drawn = now
        name = "val loss" if self._goal == "loss" else self._goal
        shown = {
            "loss": self._last.get("train/loss"),
            name: self._last.get(f"val/{self._goal}"),
        }
        numbers = "  ".join(f"{k} {v:.4g}" for k, v in shown.items() if v is not None)
        self._count.update(step, note=numbers)
        if line:
            self._count.say()

    def picture(self, step: int, png: bytes | memoryview) -> None:
        """Show a PNG picture in TensorBoard."""
        if isinstance(self._logger, EventFile):
            with self._said(self._settings.logger):
                self._logger.log_picture("samples", png, step)

    @contextmanager
    def _said(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"{self._path.with_name(name)} could not be written: {error.strerror}. "
                f"{make_room(error)}, and repeat the command to resume."
            ) from error

    def _rows(self) -> list[dict[str, str]]:
        if not self._path.is_file():
            return []
        with self._path.open(newline="", encoding="utf-8") as file:
            # A row that was cut short by a kill has no values in its last columns.
            rows = [r for r in csv.DictReader(file) if None not in r and None not in r.values()]
        return [row for row in rows if row.get("step", "").isdigit()]

    def _write_csv(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        if self._columns:
            writer.writeheader()
        writer.writerows(rows)
        replace_file(self._path, text.getvalue())


def _make_logger(settings: Settings, step: int) -> Any:
    """The logger of a run that resumes from a step, or None."""
    if settings.logger == "tensorboard":
        return EventFile(settings.folder / "tensorboard", step + 1 if step else None)
    if settings.logger == "none":
        return None
    from lightning.pytorch.loggers import WandbLogger

    # A resumed run continues the same W&B run.
    path = settings.folder / "wandb" / "id"
    path.parent.mkdir(exist_ok=True)
    if not step or not path.is_file():
        path.write_text(uuid.uuid4().hex, encoding="utf-8")
    logger = WandbLogger(
        name=f"{settings.task} {settings.variant} seed {settings.seed}",
        project=os.environ.get("WANDB_PROJECT", "slotmesh"),
        save_dir=settings.folder,
        id=path.read_text(encoding="utf-8"),
    )
    logger.log_hyperparams(plain(settings))
    return logger


class EventFile:
    """Writes numbers and pictures for TensorBoard at once, with the interface of Fabric's loggers.

    Fabric's own logger writes in a thread: what it has not written is lost if the process is
    killed, and it ends with a traceback if the disk is full or the folder was removed.

    Args:
        folder: Folder to write to.
        purge: First step of which earlier events, written before the run was resumed, are ignored.
    """

    def __init__(self, folder: Path, purge: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # pyright: ignore
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names: the newest comes last,
        # even if the clock was set back.
        names = [path.name for path in folder.glob("events.out.tfevents.*")]
        before = [int(stamp) for name in names if (stamp := name.split(".")[3]).isdecimal()]
        now = max(int(time.time()), max(before, default=0) + 1)
        name = f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = (folder / name).open("ab")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if purge is not None:
            self._write(step=purge, session_log=SessionLog(status=SessionLog.START))

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Write numbers of a step, by name."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(step=step, summary=Summary(value=values))

    def log_picture(self, name: str, png: bytes | memoryview, step: int) -> None:
        """Write a PNG picture of a step."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore

        # Width and height are at a fixed place in every PNG file.
        width, height = struct.unpack(">II", png[16:24])
        image = Summary.Image(
            width=width, height=height, colorspace=3, encoded_image_string=bytes(png)
        )
        self._write(step=step, summary=Summary(value=[Summary.Value(tag=name, image=image)]))

    def finalize(self, status: str) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore

        self._records.write(Event(wall_time=time.time(), **event).SerializeToString())
        self._records.flush()
