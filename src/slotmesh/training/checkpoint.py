"""The file of a checkpoint: plain data, and a hash that tells whether it is intact.

It is a ZIP archive as :func:`torch.save` writes it, whose comment, at its very end, is the SHA-256
of everything before it. torch alone checks neither this nor the archive's own checksums.
"""

import hashlib
import io
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from slotmesh.files import keep_also_as, make_room, write_whole

_LABEL = b"slotmesh sha256 "
_COMMENT = len(_LABEL) + 64
# The end of an archive without a comment: 20 bytes, then the length of the comment.
_END, _END_SIZE = b"PK\x05\x06", 22
# Bytes of the pickle for each part of the archive; a run has about 100. Every byte can create an
# object, in microseconds: this limits what a file can cost before it is refused.
_MOST_PICKLE = 16 << 10
_BLOCK = 1 << 20
# The bit of a part's attributes that says that it is a folder.
_FOLDER = 0x10


class DamagedError(ValueError):
    """A checkpoint is damaged."""


def packed(content: dict[str, Any]) -> memoryview:
    """The bytes of a checkpoint."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    whole = buffer.getbuffer()
    if whole[-_END_SIZE:][:4] != _END or whole[-2:] != b"\0\0":
        raise AssertionError("torch.save no longer ends its archives as this module expects.")
    whole[-2:] = _COMMENT.to_bytes(2, "little")
    found = hashlib.sha256(whole).hexdigest().encode()
    whole.release()
    buffer.seek(0, io.SEEK_END)
    buffer.write(_LABEL + found)
    return buffer.getbuffer()


def replace_file(path: Path, content: Any, *, old: Path | None = None) -> None:
    """Write a file of a run, as :func:`slotmesh.files.write_whole` does.

    Raises:
        OSError: If it cannot be written, with what to do; the old file is as it was.
    """
    try:
        write_whole(path, content, old=old)
    except OSError as error:
        kept = f" The previous {path} is intact." if path.is_file() else ""
        raise OSError(
            f"{path} could not be written: {error.strerror}.{kept} {make_room(error)}, and repeat "
            "the command to resume."
        ) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint as plain data; a file that would run code when loaded is refused.

    Raises:
        DamagedError: If it is damaged.
        ValueError: If it contains more than plain data, or is not a checkpoint.
    """
    try:
        with path.open("rb") as file:
            _check(path, file)
            found = _plain_data(path, file)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("state_dict"), dict):
        raise ValueError(f"{path} is not a checkpoint: it holds no state_dict.")
    return found


def last_sound(folder: Path, say: Callable[[str], None], *, replace: bool = True) -> Path | None:
    """Find the checkpoint to resume from; if it is damaged, the previous one takes its place.

    Args:
        folder: With ``last.ckpt``, ``previous.ckpt`` and ``best.ckpt``, if they exist.
        say: Called with a line about each file that is damaged.
        replace: Whether the one before also takes its name; otherwise no file is changed.

    Raises:
        ValueError: If none can be read, or if loading one would run code.
    """
    last, previous, best = (folder / f"{name}.ckpt" for name in ("last", "previous", "best"))
    if best.is_file():
        try:
            load_checkpoint(best)
        except DamagedError as error:
            say(f"{error} It is replaced once a validation loss is below all previous ones.")
    if last.is_file():
        try:
            load_checkpoint(last)
            return last
        except DamagedError as error:
            if not previous.is_file():
                raise DamagedError(
                    f"{error} There is no earlier one to resume from: pass --overwrite to start "
                    "from the beginning."
                ) from error
            problem = str(error)
    elif previous.is_file():
        problem = f"{last} is missing."
    else:
        return None
    try:
        step = load_checkpoint(previous).get("global_step")
    except DamagedError as error:
        raise DamagedError(
            f"{problem} The one before, {error} Pass --overwrite to start from the beginning."
        ) from error
    if replace:
        keep_also_as(previous, last)
    say(f"{problem} Resuming from the one before it, of step {step}.")
    return last if replace else previous


def _plain_data(path: Path, file: BinaryIO) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice about files that are not torch's
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _refused(path, str(error).splitlines()[0]) from error
    except Exception as error:  # files of other programs can raise anything
        raise ValueError(f"{path} cannot be read as a checkpoint: {error!r}") from error


def _check(path: Path, file: BinaryIO) -> None:
    """Raise if a file is damaged; leave it at its beginning."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if file.read(1) == b"\x80":
        raise _refused(path, "It is a bare pickle, not what torch.save writes.")
    file.seek(max(0, size - _COMMENT))
    end = file.read()
    file.seek(0)
    if end.startswith(_LABEL):
        _check_hash(path, file, size - _COMMENT, end[len(_LABEL) :])
    elif end[-_END_SIZE:][:4] != _END or end[-2:] != b"\0\0":
        # Also an archive whose comment, the hash, was cut off or changed.
        raise _damaged(path, "it does not end as a checkpoint does" if size else "it is empty")
    _check_archive(path, file)
    file.seek(0)


def _check_hash(path: Path, file: BinaryIO, size: int, expected: bytes) -> None:
    found = hashlib.sha256()
    while size > 0:
        block = file.read(min(size, _BLOCK))
        if not block:
            break
        found.update(block)
        size -= len(block)
    if found.hexdigest().encode() != expected:
        raise _damaged(path, "its SHA-256 differs from the recorded one")


def _check_archive(path: Path, file: BinaryIO) -> None:
    """Check the CRCs of its parts, the only checksums in a file that was written without a hash."""
    size = file.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
            packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
            pickles = [part.file_size for part in parts if part.filename.endswith(".pkl")]
            # A small file must not expand to a large one in memory.
            fits = not packed and sum(part.file_size for part in parts) <= size
            broken = archive.testzip() if fits else None
    except Exception as error:  # zipfile raises more than it documents
        raise _damaged(path, str(error)) from error
    # torch does not read a part that is marked as a folder, and uses whatever was in memory.
    folders = [part.filename for part in parts if part.external_attr & _FOLDER]
    if folders:
        raise _damaged(path, f"{folders[0]} is marked as a folder")
    if not fits:
        raise _refused(path, "It is compressed, which torch.save does not do.")
    if sum(pickles) > _MOST_PICKLE * len(parts):
        raise _refused(path, f"Its pickle has {sum(pickles):,} bytes, for {len(parts)} parts.")
    if broken is not None:
        raise _damaged(path, f"the CRC of {broken} differs from the recorded one")


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{path} cannot be read as a checkpoint: it is damaged ({why}).")


def _refused(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} is refused: it is damaged, or holds more than tensors and plain data and could "
        f"run code when it is loaded. ({why})"
    )
