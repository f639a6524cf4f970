"""Find the files of a folder that somebody else filled, and divide them into splits."""

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

    Nested folders are searched, but not hidden ones (``.thumbnails``), nor those that slotmesh
    wrote: the pictures of a run are no data.

    Args:
        root: The folder.
        endings: In lower case, with the dot; a file's may be in upper case.
        skip: A folder that is left out.
        written: Whether to search what slotmesh wrote, too.
    """
    found = _walk(root, skip, written=written)
    return sorted(name for name in found if Path(name).suffix.lower() in endings)


def describe(root: Path, skip: Path | None = None) -> str:
    """What a folder holds, for an error about what it does not hold."""
    names = list(_walk(root, skip))
    if not names:
        return "it is empty"
    if len(names) == 1:
        return one_line(f"it has 1 other file, {names[0]}")
    return one_line(f"it has {len(names)} other files, such as {min(names)}")


def split_names(names: list[str], split: str, seed: int = 0) -> list[str]:
    """Those of a split: about 10% each for ``val`` and ``test``, the others for ``train``.

    The split of a file depends on nothing but its name, so that adding files moves no other file;
    only in a small folder without any file for ``val`` or ``test`` do the files that are nearest to
    being in it move there.

    Args:
        names: Sorted.
        split: One of :data:`SPLITS`.
        seed: Another seed, another division.

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
        # So few files that none would be left to train on.
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
    # Only those of `slotmesh segment` have arrays beside them.
    return (folder / "sheet.png").is_file() and any(
        path.with_name(path.name.removesuffix("-overlay.png") + ".npz").is_file()
        for path in folder.rglob("*-overlay.png")
    )


def _walk(root: Path, skip: Path | None, *, written: bool = False) -> Iterator[str]:
    seen = {str(root.resolve())}
    left_out = None if skip is None else skip.resolve()
    for folder, folders, files in os.walk(root, followlinks=True):
        here = Path(folder)
        # A link to a folder above would never end.
        kept = (name for name in folders if not name.startswith("."))
        inner = [(name, (here / name).resolve()) for name in kept]
        inner = [(name, at) for name, at in inner if str(at) not in seen and at != left_out]
        folders[:] = [name for name, at in inner if written or not _is_written(at)]
        seen.update(str(at) for _, at in inner)
        for name in files:
            if not name.startswith("."):
                yield (here / name).relative_to(root).as_posix()
