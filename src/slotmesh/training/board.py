"""Numbers of a run for TensorBoard."""

import os
import socket
import time
from pathlib import Path
from typing import Any


class Board:
    """Writes scalars to an event file, at once.

    torch's own writer has a thread for it, which ends with a traceback where the disk is full or
    the folder was removed.

    Args:
        folder: To write to.
        purge: Events from this step on, which an earlier part of the run wrote, do not count.
    """

    def __init__(self, folder: Path, purge: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # pyright: ignore
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = (folder / name).open("ab")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if purge is not None:
            self._write(step=purge, session_log=SessionLog(status=SessionLog.START))

    def add(self, numbers: dict[str, float], step: int) -> None:
        """Write numbers of a step, by name."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(step=step, summary=Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore

        self._records.write(Event(wall_time=time.time(), **event).SerializeToString())
        self._records.flush()
