"""JSON that others wrote: every error names the file, the record and the field."""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from slotmesh.readers import _untrusted
from slotmesh.readers.errors import BadRecord

T = TypeVar("T")

# The largest known file, CLEVR's training scenes, has a few hundred million.
_MOST_BYTES = 1 << 31


def load(path: Path, record: int | str | None = None) -> dict[str, Any]:
    """Load the object in a JSON file."""
    raw = _untrusted.read_file(path, record, most=_MOST_BYTES)
    # Parsing makes millions of containers and no garbage; collecting would take most of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        found = parse(raw, path, record)
    finally:
        if collecting:
            gc.enable()
    if not isinstance(found, dict):
        raise BadRecord(path, record, f"it holds {_kind(found)}, expected an object")
    return found


def parse(text: str | bytes, path: Path, record: int | str | None = None) -> Any:
    """Parse JSON text; the path and the record are for the error."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadRecord(path, record, "its JSON is nested too deeply") from error
    except ValueError as error:
        raise BadRecord(path, record, f"it is not JSON: {error}") from error


class Fields:
    """A JSON object whose fields are checked as they are read; errors name its place."""

    def __init__(
        self, value: Any, path: Path, record: int | str | None = None, where: str = ""
    ) -> None:
        self.path = path
        self.record = record
        self.where = where
        if not isinstance(value, dict):
            raise self.bad(f"{where or 'it'} is {_kind(value)}, expected an object")
        self._value: dict[str, Any] = value

    def bad(self, reason: str) -> BadRecord:
        """An error about this object."""
        return BadRecord(self.path, self.record, reason)

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def get(self, name: str) -> Any:
        """A field of any type."""
        if name not in self._value:
            raise self.bad(f"{self.where or 'it'} has no field {name!r}")
        return self._value[name]

    def integer(self, name: str) -> int:
        """A whole number."""
        return self._typed(name, int, "a whole number")

    def number(self, name: str) -> float:
        """A number."""
        return self._float(name, self.get(name), "a number")

    def numbers(self, name: str, count: int) -> list[float]:
        """A list of exactly ``count`` numbers."""
        expected = f"a list of {count} numbers"
        value = self.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise self._wrong(name, value, expected)
        return [self._float(name, v, expected) for v in value]

    def boolean(self, name: str) -> bool:
        """True or false."""
        return self._typed(name, bool, "true or false")

    def label(self, name: str, classes: Sequence[str]) -> int:
        """One of some names, as its index."""
        value = self.get(name)
        if value not in classes:
            raise self._wrong(name, value, "one of " + ", ".join(classes))
        return classes.index(value)

    def text(self, name: str) -> str:
        """A string."""
        return self._typed(name, str, "a string")

    def objects(self, name: str) -> "list[Fields]":
        """A list of objects."""
        value = self._typed(name, list, "a list")
        at = f"{self.where}.{name}" if self.where else name
        return [Fields(v, self.path, self.record, f"{at}[{i}]") for i, v in enumerate(value)]

    def object(self, name: str) -> "Fields":
        """An object."""
        at = f"{self.where}.{name}" if self.where else name
        return Fields(self.get(name), self.path, self.record, at)

    def _typed(self, name: str, kind: type[T], expected: str) -> T:
        value = self.get(name)
        # Booleans are integers to Python.
        if type(value) is not kind:
            raise self._wrong(name, value, expected)
        return value

    def _float(self, name: str, value: Any, expected: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, value, expected)
        # Columns are float32; NaN fails this too.
        if not abs(value) < 1e30:
            raise self._wrong(name, value, expected)
        return float(value)

    def _wrong(self, name: str, value: Any, expected: str) -> BadRecord:
        at = f"{self.where}.{name}" if self.where else name
        try:
            shown = repr(value)
        except RecursionError:
            shown = "nested too deeply"
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return self.bad(f"{at} is {shown}, expected {expected}")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number")
