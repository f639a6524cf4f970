"""Find the files in a user's folder, and divide them into splits."""

import hashlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from slotmesh.readers.errors import one_line

SPLITS = ("train", "val", "test", "all")
_HELD_OUT = 0.1


def find_files(
    root: Path, endings: Collection[str], *, skip: Path | None = None, written: bool = False
) -> list[str]:
    """Names of the files with one of these endings, relative to ``root`` and sorted.

    Nested folders are searched, but neither hidden folders (``.thumbnails``) nor those that
    slotmesh wrote: the pictures of a run are not data.

    Args:
        root: The folder.
        endings: Endings in lower case, with the dot; those of files may be in upper case.
        skip: A folder that is left out.
        written: Whether to search what slotmesh wrote, too.
    """
    found = _walk(root, skip, written=written)
    return sorted(name for name in found if Path(name).suffix.lower() in endings)


def describe(root: Path, skip: Path | None = None) -> str:
    """Describe the content of a folder, for an error about files that are missing there."""
    names = list(_walk(root, skip))
    if not names:
        return "it is empty"
    if len(names) == 1:
        return one_line(f"it has 1 other file, {names[0]}")
    return one_line(f"it has {len(names)} other files, such as {min(names)}")


def names_in(folder: Path) -> list[str]:
    """Names of the entries of a folder.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except OSError as error:
        raise unreadable(folder, error) from error


def check_folder(folder: Path) -> None:
    """Check that a folder can be listed, and its files opened.

    Raises:
        ValueError: If not.
    """
    try:
        _enter(folder)
    except OSError as error:
        raise unreadable(folder, error) from error


def _enter(folder: Path) -> None:
    os.scandir(folder).close()
    # Listing needs permission to read the folder; this needs permission to enter it.
    os.stat(f"{folder}/.")  # noqa: PTH116 (a Path drops the dot)


def unreadable(folder: Path, error: OSError) -> ValueError:
    """An error about a folder that cannot be read."""
    return ValueError(
        one_line(
            f"{folder} cannot be read: {error.strerror or error}. Expected a folder that you may "
            "read and enter: change its permissions, or move it elsewhere."
        )
    )


def split_names(names: list[str], split: str, seed: int = 0) -> list[str]:
    """The names in a split: about 10% each in ``val`` and ``test``, the others in ``train``.

    The split of a file depends only on its name, so adding files does not move others. Only in a
    small folder that leaves ``val`` or ``test`` empty, the file closest to that split is moved
    there.

    Args:
        names: Sorted names.
        split: One of :data:`SPLITS`.
        seed: Another seed divides the names differently.

    Raises:
        ValueError: If there are fewer than three files.

    Example:
        >>> from slotmesh.readers.listing import split_names
        >>> names = [f"{i:04d}.png" for i in range(1000)]
        >>> [len(split_names(names, part)) for part in ("train", "val", "test")]
        [804, 91, 105]
    """
    if split == "all":
        return names
    if len(names) < 3:
        raise ValueError(
            f"got {len(names)}, expected at least 3: one each for training, validation and test"
        )
    place = {name: _place(f"{seed}/{name}") for name in names}
    order = sorted(names, key=place.__getitem__)
    places = sorted(place.values())
    n_test = max(1, sum(place < _HELD_OUT for place in places))
    n_val = max(1, sum(place >= 1 - _HELD_OUT for place in places))
    while n_test + n_val >= len(names):
        # With so few files, none would be left for training.
        n_test, n_val = (n_test - 1, n_val) if n_test > n_val else (n_test, n_val - 1)
    parts = {"test": order[:n_test], "val": order[-n_val:], "train": order[n_test:-n_val]}
    return sorted(parts[split])


def _place(name: str) -> float:
    """A number from 0 to 1 that depends on the name alone."""
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


def _is_written(folder: Path) -> bool:
    """Whether ``slotmesh train`` or ``slotmesh segment`` wrote a folder."""
    if (folder / "settings.json").is_file() and (folder / "checkpoints").is_dir():
        return True
    # Nested images leave nothing here but the sheet.
    look = folder.rglob if (folder / "sheet.png").is_file() else folder.glob
    # Only overlays of `slotmesh segment` have arrays beside them.
    return any(
        path.with_name(path.name.removesuffix("-overlay.png") + ".npz").is_file()
        for path in look("*-overlay.png")
    )


def _walk(root: Path, skip: Path | None, *, written: bool = False) -> Iterator[str]:
    try:
        yield from _names(root, skip, written=written)
    except OSError as error:
        raise unreadable(Path(error.filename or root), error) from error


def _stop(error: OSError) -> None:
    # os.walk would treat the folder as if it were empty.
    raise error


def _names(root: Path, skip: Path | None, *, written: bool) -> Iterator[str]:
    seen = {str(root.resolve())}
    left_out = None if skip is None else skip.resolve()
    for folder, folders, files in os.walk(root, onerror=_stop, followlinks=True):
        here = Path(folder)
        # Only root may read the folder that a file system keeps at the top of a disk.
        kept = (name for name in folders if not name.startswith(".") and name != "lost+found")
        # A link to a parent folder would never end.
        inner = [(name, (here / name).resolve()) for name in kept]
        inner = [(name, at) for name, at in inner if str(at) not in seen and at != left_out]
        for _, at in inner:
            _enter(at)
        folders[:] = [name for name, at in inner if written or not _is_written(at)]
        seen.update(str(at) for _, at in inner)
        for name in files:
            if not name.startswith("."):
                yield (here / name).relative_to(root).as_posix()
