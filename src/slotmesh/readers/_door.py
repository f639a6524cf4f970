"""The one way in for files that others wrote: regular files alone, and of a bearable size.

A named pipe would be waited for, a device read without end, and a sparse file of terabytes held in
memory. Every reader opens its files here, so none of them has to think of it.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from slotmesh.readers.errors import BadRecord

Place = int | str | None
"""Which record of a file, for errors."""


def enter(path: Path, record: Place = None, *, most: int | None = None) -> BinaryIO:
    """The file, opened for reading.

    Args:
        path: The file.
        record: Which record it holds, for the error.
        most: The most bytes it may have; None is any number.

    Raises:
        BadRecord: If it is missing, cannot be read, is larger, or is no regular file.
    """
    try:
        # Opening alone has effects on some devices, so look before; and after, at what was opened.
        _check(os.stat(path).st_mode, path, record)  # noqa: PTH116 (pathlib's hides ValueError)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        number = os.open(path, flags)
    except FileNotFoundError:
        raise BadRecord(path, record, "the file is missing") from None
    except OSError as error:
        raise BadRecord(path, record, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        # Zero bytes and lone surrogates, which JSON can hold, are in no name of a file.
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


def read(path: Path, record: Place = None, *, most: int) -> bytes:
    """All bytes of a file of at most ``most``."""
    with enter(path, record, most=most) as file:
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
