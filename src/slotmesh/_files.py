"""Files that are whole or not there."""

import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: Any, *, old: Path | None = None) -> None:
    """Write a file that is never seen half-written; where that fails, the old one stays.

    Its part lies beside it until it is on the disk, under a name that no other process takes; only
    a kill leaves one behind (:func:`parts`).

    Args:
        path: The file. It is replaced if it is there.
        content: Text, which is written as UTF-8, or bytes.
        old: Where the file that is replaced is kept.

    Raises:
        OSError: If it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if old is not None and path.is_file():
            keep_also_as(path, old)
        part.replace(path)
    except BaseException:
        # Where its folder is gone, or is a file, there is no part either.
        if part.parent.is_dir():
            part.unlink(missing_ok=True)
        raise


def keep_also_as(path: Path, other: Path) -> None:
    """Let a file be there under another name too, in place of what has that name now.

    Where the file system knows no second names, the file gets the other one.
    """
    part = other.with_name(f".{other.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        os.link(path, part)
    except OSError:
        path.replace(other)
        return
    part.replace(other)
    # A rename of one name of a file to another of its names does nothing.
    part.unlink(missing_ok=True)


def parts(folder: Path, name: str) -> list[Path]:
    """What writing files of a name (with ``*``) left in a folder, if it was killed meanwhile."""
    return [*folder.glob(f".{name}.part"), *folder.glob(f".{name}.*.part")]
