"""Errors about files that others wrote."""

from functools import partial
from pathlib import Path
from typing import Any

MISSING = "the file is missing"
"""The reason of a :class:`BadRecord` whose file does not exist."""


class BadRecord(ValueError):  # noqa: N818 (it names what was found)
    """A record that cannot be read; the message names the file, the record and the problem.

    Args:
        path: The file.
        record: Which record, if the file holds several.
        reason: What was found, and what was expected.
        rest_lost: Whether the records after this one are lost too.

    Example:
        >>> from slotmesh.readers import BadRecord
        >>> raise BadRecord("scenes.json", 7, "no field 'objects'")
        Traceback (most recent call last):
        ...
        slotmesh.readers.errors.BadRecord: scenes.json, record 7: no field 'objects'
    """

    def __init__(
        self, path: Path | str, record: int | str | None, reason: str, *, rest_lost: bool = False
    ) -> None:
        self.path = Path(path)
        self.record = record
        self.reason = reason
        self.rest_lost = rest_lost
        where = f"{path}" if record is None else f"{path}, record {record}"
        super().__init__(one_line(f"{where}: {reason}"))

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes pickle their errors; the default would pass the message only.
        again = partial(BadRecord, rest_lost=self.rest_lost)
        return again, (str(self.path), self.record, self.reason)


def one_line(text: str) -> str:
    """Escape line breaks and terminal commands, which names in files can hold."""
    shown = (" " if c.isspace() else c for c in text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
