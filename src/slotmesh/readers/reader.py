"""The base class of all readers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from slotmesh.ops import checks
from slotmesh.readers.errors import MISSING, BadRecord
from slotmesh.worlds.indices import as_indices
from slotmesh.worlds.sample import Sample

Split = str | range


class Reader(ABC):
    """A finite, labelled dataset on disk that returns the same batches as a world.

    Indices count from 0 within the split. If a record cannot be read, :meth:`sample` and
    :meth:`read` raise :class:`~slotmesh.readers.BadRecord`, and :meth:`records` continues.
    """

    name: ClassVar[str]
    """The name on the command line."""
    splits: ClassVar[Mapping[str, range]] = {}
    """Which records of the dataset belong to each split."""
    test_split: ClassVar[str] = "test"
    """The split that results are reported on."""
    classes: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names of the classes, by the columns of the table of objects that hold their indices."""
    max_objects: int
    """Number of rows in the table of objects."""
    has_masks: bool = True
    """Whether the dataset has masks; without them, masks are all zero."""
    split: Split
    """The requested split."""
    partial: bool | None = None
    """Whether records that are missing in an incomplete copy are left out; None if unsupported."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def make(self, index: Sequence[int]) -> Sample:
        """Read the records of these indices, all of them within the split."""

    def sample(self, index: Sequence[int] | range | Tensor) -> Sample:
        """Read the records of these indices, as one batch.

        Raises:
            BadRecord: If one of them cannot be read.
        """
        which = as_indices(f"{type(self).__name__}.sample", index)
        n = len(self)
        numbers: list[int] = which.tolist()
        wrong = [i for i in numbers if i >= n]
        if wrong:
            raise ValueError(
                f"{type(self).__name__}.sample: there is no record {wrong[0]}: split "
                f"{self.split!r} has {n} records here, counted from 0."
            )
        try:
            return self.make(numbers)
        except BadRecord as bad:
            if self.partial is not False or bad.reason != MISSING:
                raise
            hint = (
                "To use an incomplete copy, pass partial=True (on the command line --partial; in "
                "slotmesh train --data.partial)."
            )
            raise BadRecord(bad.path, bad.record, f"{MISSING}. {hint}") from bad

    def read(self, index: int) -> Sample:
        """Read one record, as a batch of one."""
        return self.sample([index])

    def records(self, start: int = 0) -> Iterator[Sample | BadRecord]:
        """Iterate over all records from ``start`` on, one at a time, in order.

        For a record that cannot be read, the error is yielded and reading continues: there is one
        item per record, ``len(self) - start`` in total.

        Raises:
            ValueError: If ``start`` is not a whole number of at least 0.
        """
        return self._records(checks.as_count(f"{type(self).__name__}.records", "start", start, 0))

    def _records(self, start: int) -> Iterator[Sample | BadRecord]:
        for i in range(start, len(self)):
            try:
                yield self.read(i)
            except BadRecord as bad:
                yield bad

    def batches(self, batch_size: int, start: int = 0) -> Iterator[Sample]:
        """Iterate over batches of the records from ``start`` on; the last may be smaller.

        Raises:
            ValueError: If ``batch_size`` or ``start`` is too small.
        """
        name = f"{type(self).__name__}.batches"
        return self._batches(
            checks.as_count(name, "batch_size", batch_size, 1),
            checks.as_count(name, "start", start, 0),
        )

    def _batches(self, batch_size: int, start: int) -> Iterator[Sample]:
        for first in range(start, len(self), batch_size):
            yield self.sample(range(first, min(first + batch_size, len(self))))


def check_range(reader: str, split: range) -> range:
    """Check that a range of records counts up."""
    if split.step < 1 or split.start < 0:
        raise ValueError(
            f"{reader}: split is {split}, expected a range that counts up from 0 or more."
        )
    return split


def choose(reader: str, split: Split, splits: Mapping[str, range]) -> range:
    """The records of a named split, or those of a range."""
    if isinstance(split, range):
        return check_range(reader, split)
    # A list is not hashable, so it cannot be looked up.
    if not isinstance(split, str) or split not in splits:
        names = ", ".join(f"{k!r}" for k in splits)
        raise ValueError(f"{reader}: split is {split!r}, expected one of {names}, or a range.")
    return splits[split]
