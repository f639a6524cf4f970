"""The progress of a command: a bar on a terminal, and elsewhere a line every few seconds."""

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

SECONDS = 9.0
"""Seconds between two lines of progress in a file, which come at least every 10 seconds."""
# Below this a terminal has room for the numbers, but not for a bar.
_NARROW = 60


def draws_bars(console: Console) -> bool:
    """Whether the console can show a bar: a terminal that is not dumb (``TERM=dumb``)."""
    return console.is_terminal and not console.is_dumb_terminal


class Count:
    """Counts something up to a total, between ``with`` and the end of the block.

    On a terminal, it is a bar. Elsewhere, such as in a log file, a line reports the progress and
    the time left at least every 10 seconds, even while a single item takes longer; commands that
    take less time print nothing.

    Args:
        console: Where to show it; None shows nothing.
        what: A word or two.
        total: How many there are; None if that is not known yet.
        done: How many are done already.
        transient: Whether the bar goes when it is full.
        every: Seconds between two lines, :data:`SECONDS` by default.

    Example:
        >>> from rich.console import Console
        >>> from slotmesh.progress import Count
        >>> with Count(Console(), "reading", 3) as count:
        ...     for _ in range(3):
        ...         count.advance()
        >>> count.line()
        'reading 3/3'
    """

    def __init__(
        self,
        console: Console | None,
        what: str,
        total: int | None = None,
        *,
        done: int = 0,
        transient: bool = True,
        every: float | None = None,
    ) -> None:
        self._console = console
        self._what = what
        self._total = total
        self._done = self._first = done
        self._note = ""
        self._every = SECONDS if every is None else every
        self._said = self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._bar: Progress | None = None
        if console is not None and draws_bars(console):
            wide = console.width >= _NARROW
            note = Column(no_wrap=True, overflow="ellipsis")
            columns: list[ProgressColumn] = [
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", table_column=note),
                TimeRemainingColumn(),
            ]
            if wide:
                columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), *columns]
            self._bar = Progress(*columns, console=console, transient=transient, expand=wide)
            self._bar.add_task(what, total=total, completed=done, note="")

    def __enter__(self) -> Self:
        self._said = self._began = time.monotonic()
        if self._bar is not None:
            self._bar.start()
        elif self._console is not None:
            self._thread = threading.Thread(target=self._speak, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def advance(self, n: int = 1) -> None:
        """``n`` more are done."""
        self.update(self._done + n)

    def update(self, done: int, *, total: int | None = None, note: str | None = None) -> None:
        """Set how many are done, and a note to show."""
        self._done = done
        self._total = self._total if total is None else total
        self._note = self._note if note is None else note
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=done, total=self._total, note=self._note
            )

    def say(self) -> None:
        """Print the line at once; on a terminal there is the bar."""
        if self._console is not None and self._bar is None:
            self._said = time.monotonic()
            self._console.print(self.line(), markup=False, highlight=False, soft_wrap=True)

    def line(self) -> str:
        """The progress, and the time left if it can be estimated."""
        number = f"{self._done}/{self._total}" if self._total else str(self._done or "")
        parts = [f"{self._what} {number}".strip(), self._note, self._time()]
        return "  ".join(part for part in parts if part)

    def _time(self) -> str:
        new, so_far = self._done - self._first, time.monotonic() - self._began
        if self._total is not None and self._done >= self._total:
            return ""
        if self._total is None or new <= 0:
            return f"{duration(so_far)} so far"
        return f"{duration(so_far * (self._total - self._done) / new)} left"

    def _speak(self) -> None:
        """Print a line if there was none for long; runs in a thread, as an item may take long."""
        while not self._stop.wait(max(0.001, self._said + self._every - time.monotonic())):
            if time.monotonic() - self._said >= self._every:
                # A closed file is no reason to stop the work.
                with suppress(OSError, ValueError):
                    self.say()


def duration(seconds: float) -> str:
    """Format a duration for people.

    Example:
        >>> from slotmesh.progress import duration
        >>> duration(8), duration(75), duration(4000)
        ('8 s', '1:15 min', '1:06 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
