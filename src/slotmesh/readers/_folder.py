"""Common base of the datasets that are folders of images or videos."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slotmesh.readers import _images
from slotmesh.readers._table import ArrayRecord, stack
from slotmesh.readers.listing import check_folder
from slotmesh.readers.reader import Reader, Split, choose
from slotmesh.worlds.sample import Sample


class FolderReader(Reader):
    """A folder whose records are read one by one, by their numbers in the dataset.

    Subclasses set ``_root`` and ``_numbers``, the numbers of the records in the split, and
    implement ``_record``.
    """

    _root: Path
    _numbers: NDArray[np.int64]

    def __init__(self, split: Split, size: int | tuple[int, int] | None, antialias: bool) -> None:
        self._wanted = choose(type(self).__name__, split, self.splits)
        self.split = split
        self.size = _images.check_size(type(self).__name__, size)
        self.antialias = antialias

    def __len__(self) -> int:
        return len(self._numbers)

    def make(self, index: Sequence[int]) -> Sample:
        """Read the records of these indices, all of them within the split."""
        records = [self._record(int(self._numbers[i])) for i in index]
        return stack(records, index, str(self._root))

    @abstractmethod
    def _record(self, number: int) -> ArrayRecord: ...


def find_folder(reader: str, root: Path | str, holds: str, inner: str, layout: str) -> Path:
    """Find the folder with the entry ``holds``: ``root``, or ``inner`` in it.

    Raises:
        ValueError: If neither has it; says what is missing and what the folder should look like.
    """
    root = Path(root)
    if root.is_dir():
        check_folder(root)
    for folder in (root, root / inner):
        if (folder / holds).exists():
            return folder
    holds = f"folder {holds}" if holds.isdecimal() else holds
    what = f"{root} has no {holds}" if root.exists() else f"{root} does not exist"
    raise missing(reader, what, layout)


def missing(reader: str, what: str, layout: str) -> ValueError:
    """An error about something that is not in the folder."""
    return ValueError(f"{reader}: {what}. Pass the root of a folder like this:\n{layout}")
