"""Open files that others wrote: regular files only, and of a reasonable size.

A named pipe would block, a device never end, and a sparse file of terabytes fill the memory. Every
reader opens its files here, so that none of them has to check.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from slotmesh.readers.errors import MISSING, BadRecord

Place = int | str | None
"""Which record of a file, for errors."""


def open_file(path: Path, record: Place = None, *, most: int | None = None) -> BinaryIO:
    """Open a file for reading.

    Args:
        path: The file.
        record: Which record it holds, for the error.
        most: Largest size in bytes; None is no limit.

    Raises:
        BadRecord: If it is missing, unreadable, larger, or not a regular file.
    """
    try:
        # Opening some devices has side effects, so check before; and after, what was opened.
        _check(os.stat(path).st_mode, path, record)  # noqa: PTH116 (pathlib's hides ValueError)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        number = os.open(path, flags)
    except BadRecord:
        raise  # it is a ValueError, but not about the name
    except FileNotFoundError:
        raise BadRecord(path, record, MISSING) from None
    except OSError as error:
        raise BadRecord(path, record, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        # JSON can hold zero bytes and lone surrogates, which no file name can.
        raise BadRecord(path, record, f"no file can have this name: {error}") from error
    try:
        opened = os.fstat(number)
        _check(opened.st_mode, path, record)
        if most is not None and opened.st_size > most:
            reason = f"it has {opened.st_size:,} bytes, expected at most {most:,}"
            raise BadRecord(path, record, reason)
    except BaseException:
        os.close(number)
        raise
    return os.fdopen(number, "rb")


def read_file(path: Path, record: Place = None, *, most: int) -> bytes:
    """Read a file of at most ``most`` bytes."""
    with open_file(path, record, most=most) as file:
        try:
            return file.read(most)
        except OSError as error:
            raise BadRecord(path, record, f"it cannot be read: {error.strerror}") from error


def _check(mode: int, path: Path, record: Place) -> None:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    if not stat.S_ISREG(mode):
        kind = kinds.get(stat.S_IFMT(mode), "something else")
        raise BadRecord(path, record, f"it is {kind}, expected a regular file")
