"""One process at a time trains in a folder."""

import contextlib
import json
import os
import shlex
import socket
import sys
import time
import warnings
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

NAME = ".lock"
# A process that was killed a moment ago may still be giving back its memory.
_PATIENCE_S = 2.0

_held: set[int] = set()


class Lock:
    """A folder in which no other process trains until this is released.

    The kernel holds the lock (``flock``), also against other machines that share the file system,
    and releases it when the process ends, however it ends. The file's text only names the process.

    Args:
        folder: It is created if necessary.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / NAME
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ValueError: If another process has it; the message names that process.
            OSError: If the folder cannot be written.
        """
        end = time.monotonic() + _PATIENCE_S
        while self._file is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._try()
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise ValueError(
                        f"{self.folder} is in use by another process: {self._holder()}. Wait for "
                        "it or stop it, or choose another folder."
                    ) from error
                time.sleep(0.1)

    def check(self) -> None:
        """Raise an OSError if the folder was removed or replaced since then."""
        if self._file is not None and not self._is_mine(self._file):
            raise OSError(
                f"{self.folder} was removed or replaced while it was being trained in, so nothing "
                "more can be saved. Start the same command again: it trains from the beginning."
            )

    def release(self) -> None:
        """Release the lock, if this process has it."""
        if self._file is None:
            return
        file, self._file = self._file, None
        _held.discard(file)
        # Before it is closed: afterwards another process could have it.
        if self._is_mine(file):
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(file)

    def _try(self) -> None:
        mode = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(self._path, mode, 0o666)
        try:
            self._lock(file)
            if not self._is_mine(file):
                # The process that had it removed the file in between.
                os.close(file)
                return
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _held.add(file)
        with contextlib.suppress(OSError):  # It is locked even if the disk has no room for a name.
            os.truncate(file, 0)
            os.write(file, _about_me().encode())

    def _lock(self, file: int) -> None:
        reason = "this system has no flock"
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                raise
            except OSError as error:
                reason = str(error.strerror)
        warnings.warn(
            f"{self.folder} cannot be locked ({reason}): make sure that no other command trains "
            "in it at the same time.",
            stacklevel=5,
        )

    def _is_mine(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except OSError:
            return False

    def _holder(self) -> str:
        try:
            said = json.loads(self._path.read_text(encoding="utf-8"))
            return f"pid {said['pid']} on {said['host']}, {said['command']!r:.500}"
        except (OSError, ValueError, TypeError, KeyError):
            return f"it has not written its name to {self._path}"


def _about_me() -> str:
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    me = {"pid": os.getpid(), "host": socket.gethostname(), "command": command}
    return json.dumps(me, indent=2) + "\n"


def _leave() -> None:
    """Close a forked child's copies, with which the lock would outlive this process."""
    for file in _held:
        with contextlib.suppress(OSError):
            os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
