"""Atomic writes: readers see the old file or the new one, never a part; and file names."""

import errno
import os
import re
import threading
import unicodedata
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: Any, *, old: Path | None = None, mode: int = 0o666) -> None:
    """Write a file atomically: readers see the previous file or all of the new one.

    The content goes to a temporary file in the same folder, reaches the disk, and is then renamed.
    If that fails, the previous file stays. Only a kill leaves a temporary file behind; see
    :func:`parts`.

    Args:
        path: The file, replaced if it exists.
        content: Text, which is encoded as UTF-8, or bytes.
        old: Where to keep the file that is replaced.
        mode: Permissions of the file, before the umask.

    Raises:
        OSError: If it cannot be written.
    """
    part = _part(path)
    try:
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(number, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if old is not None and path.is_file():
            keep_also_as(path, old)
        part.replace(path)
    except BaseException as error:
        # If the folder is gone, or is a file, there is no temporary file either.
        if part.parent.is_dir():
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # Nobody knows about the temporary file.
            error.filename, error.filename2 = str(path), None
        raise


def make_folder(path: Path, option: str = "--out") -> None:
    """Create the folder of an option, including its parents.

    Raises:
        ValueError: If there is a file of this name, or it cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file" if path.is_file() else f"cannot be made: {error.strerror or error}"
        raise ValueError(
            f"{option} is {path}, which {what}; expected a folder. Choose another name."
        ) from error
    if not os.access(path, os.W_OK):
        raise ValueError(
            f"{option} is {path}, a folder that cannot be written. Make it writable, or pass "
            f"another one as {option}."
        )


def make_room(error: OSError) -> str:
    """Say what to do so that a file can be written, as the beginning of a sentence."""
    return "Free some space" if is_full(error) else "Make it writable"


def is_full(error: OSError) -> bool:
    """Whether there is no room for a file: the disk is full, or there is a limit."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def keep_also_as(path: Path, other: Path) -> None:
    """Give a file a second name, replacing what has that name now.

    On a file system without hard links, the file is renamed instead.
    """
    part = _part(other)
    try:
        part.unlink(missing_ok=True)
        os.link(path, part)
    except OSError:
        path.replace(other)
        return
    part.replace(other)
    # Renaming one name of a file to another name of the same file does nothing.
    part.unlink(missing_ok=True)


def parts(folder: Path, name: str) -> list[Path]:
    """Find the temporary files that a killed process left for ``name`` (which may hold ``*``)."""
    return [*folder.glob(f".{name}.part"), *folder.glob(f".{name}.*.part")]


def slug(name: str, *, ascii_only: bool = True) -> str:
    """A name for use in file names: lower-case letters, digits and hyphens.

    Args:
        name: Any words.
        ascii_only: Whether letters outside of the English alphabet become hyphens.

    Example:
        >>> from slotmesh.files import slug
        >>> slug("NVIDIA H200 (80 GB)")
        'nvidia-h200-80-gb'
        >>> slug("söme pics", ascii_only=False)
        'söme-pics'
    """
    if ascii_only:
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    # Some file systems separate letters from their accents.
    whole = unicodedata.normalize("NFC", name.lower())
    # Letters with their marks, and numbers.
    kept = (c if unicodedata.category(c)[0] in "LMN" else " " for c in whole)
    return "-".join("".join(kept).split())


def _part(path: Path) -> Path:
    """A temporary name in the same folder, different in every process and thread."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.part")
