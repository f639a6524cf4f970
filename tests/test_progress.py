"""How far a command is: in a file a line every few seconds, on a terminal a bar that fits."""

import io
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slotmesh import progress
from slotmesh.cli import main
from slotmesh.progress import Count, duration
from slotmesh.training.loop import run_train

from .training._jobs import tiny

PATIENCE = 120.0


class Heard(io.StringIO):
    """A file that tells when a line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = threading.Semaphore(0)

    def write(self, text: str) -> int:
        done = super().write(text)
        for _ in range(text.count("\n")):
            self.lines.release()
        return done


def test_something_is_said_while_one_item_takes_long() -> None:
    heard = Heard()
    with Count(Console(file=heard, width=80), "reading", 10, every=0.01) as count:
        assert heard.lines.acquire(timeout=PATIENCE)
        count.update(4, note="loss 0.5")
        # More lines than one may have been written before the update.
        while "4/10" not in heard.getvalue():
            assert heard.lines.acquire(timeout=PATIENCE)
    lines = heard.getvalue().splitlines()
    assert re.fullmatch(r"reading 0/10  \d+ s so far", lines[0])
    assert re.fullmatch(r"reading 4/10  loss 0\.5  \d+ s left", lines[-1])


def test_what_is_short_says_nothing() -> None:
    heard = Heard()
    with Count(Console(file=heard), "reading", 3, every=1e6) as count:
        count.advance(3)
    assert heard.getvalue() == ""
    with Count(None, "reading", 3, every=0.001) as count:
        count.advance(3)


def test_lines_come_at_least_every_ten_seconds() -> None:
    """With room for a machine that is slow to wake up."""
    assert progress.SECONDS <= 9.5


def test_a_file_that_is_closed_does_not_end_the_work() -> None:
    tried = threading.Event()

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            tried.set()
            raise ValueError("I/O operation on closed file")

    with Count(Console(file=Closed()), "reading", 3, every=0.001):
        assert tried.wait(PATIENCE)


@pytest.mark.parametrize("width", [50, 80])
def test_the_bar_fits(width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width)
    with Count(console, "training", 496_875, done=123_000, transient=False) as count:
        count.update(123_456, note="loss 0.004123  fg_ari 0.9231")
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", said) if line.strip()]
    assert max(map(len, lines)) <= width
    assert re.search(r"123456/496875 +loss 0\.00.*-?:--|\d:\d\d", lines[-1])
    assert ("━" in lines[-1]) == (width == 80)
    assert len(set(map(len, lines))) <= 2, "a line that wraps leaves others behind"


@pytest.mark.parametrize(("seconds", "words"), [(59.4, "59 s"), (61, "1:01 min"), (7260, "2:01 h")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was counted, in order."""
    seen: list[str] = []
    enter: Callable[[Any], Any] = Count.__enter__

    def note(self: Count) -> Any:
        if self._console is not None:
            seen.append(self.line().split()[0])
        return enter(self)

    monkeypatch.setattr(Count, "__enter__", note)
    return seen


def test_long_commands_count(tmp_path: Path, counted: list[str]) -> None:
    run_train(tiny("random-objects", "SA", tmp_path / "run"), Console(file=io.StringIO()))
    main(["evaluate", str(tmp_path / "run"), "--device", "cpu"])
    page = str(tmp_path / "page.html")
    main(["report", str(tmp_path / "run"), "--out", page, "--n-samples", "0", "--n-cases", "0"])
    file = str(tmp_path / "a.h5")
    main(["data", "export", "multi-dsprites", "--n", "2", "--size", "16", "--out", file])
    main(["data", "stats", file])
    words = ["step", "evaluating", "drawing", "multi-dsprites", file]
    assert [word for word in counted if word != "making"] == words


def test_a_dumb_terminal_gets_lines() -> None:
    """A bar cannot move there, and would be drawn once, at the end."""
    heard = Heard()
    console = Console(file=heard, force_terminal=True, _environ={"TERM": "dumb"})
    with Count(console, "reading", 10, every=0.01):
        assert heard.lines.acquire(timeout=PATIENCE)
    assert heard.getvalue().startswith("reading 0/10")
