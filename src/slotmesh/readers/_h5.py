"""HDF5 files from others: nothing outside the file is opened, and every error names it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from slotmesh.readers import _h5_safe, _untrusted
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.hdf5_layout import plain

Rows = slice | NDArray[np.int64]

_MOST_TEXT = 1 << 20
_MOST_TEXTS = 1 << 26


class H5File:
    """An HDF5 file, for reading.

    Links to other places, virtual datasets, external storage, filters that need a plugin and
    unreasonable sizes are refused before HDF5 acts on them.
    """

    def __init__(self, reader: str, path: Path) -> None:
        self.path = path
        if not path.exists() or path.is_dir():
            raise ValueError(
                f"{reader}: {path} does not exist, or is a folder. Pass an HDF5 file: one written "
                "by `slotmesh data export` or `data convert`, one of the MESH authors' layout "
                "(images, masks, num_objects), or one with images alone."
            )
        _untrusted.open_file(path).close()
        with self._looking("it is not an HDF5 file, damaged or cut short"):
            self._file = h5py.File(path, "r")
        self._checked: dict[str, h5py.Dataset] = {}
        self._bursting: set[str] = set()

    def __enter__(self) -> "H5File":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def names(self, group: str = "/") -> list[str]:
        """Names of the entries of a group, sorted; empty if there is no such group."""
        with self._looking(f"its group {group!r} is damaged"):
            found = self._find(group)
            return sorted(found) if isinstance(found, h5py.Group) else []

    def attributes(self) -> dict[str, Any]:
        """All attributes of the file."""
        with self._looking("its attributes are damaged"):
            return {name: self._attribute(name) for name in sorted(self._file.attrs)}

    def dataset(self, name: str, dtype: Any | None = None, dims: int | None = None) -> h5py.Dataset:
        """A dataset, after checking its type and number of dimensions."""
        if name not in self._checked:
            with self._looking(f"its dataset {name!r} is damaged"):
                self._checked[name] = self._check(name)
        found = self._checked[name]
        if dtype is not None and found.dtype != dtype:
            expected = np.dtype(dtype).name
            raise self.bad(f"{name} has dtype {found.dtype}, expected {expected}")
        if dims is not None and found.ndim != dims:
            raise self.bad(f"{name} has shape {found.shape}, expected {dims} dimensions")
        return found

    def read(self, name: str, rows: Rows, record: int | None = None) -> NDArray[Any]:
        """Read some rows of a dataset."""
        found = self.dataset(name)
        damaged = f"{name} cannot be read, the file is damaged or cut short"
        # Its filters have been checked, and need no plugin.
        with self._explained(damaged, record):
            problem = _h5_safe.burst_problem(found, rows) if name in self._bursting else None
            if problem:
                raise self.bad(f"{name} {problem}", record)
            return np.asarray(found[rows])

    def texts(self, name: str) -> list[str]:
        """Read a list of strings."""
        with self._looking(f"its dataset {name!r} is damaged"):
            found = self._stored(name)
            simple = found.shape is not None and found.ndim == 1 and found.chunks is None
            if not simple or not _is_text(found.dtype) or found.nbytes > _MOST_TEXTS:
                raise self.bad(f"{name} has dtype {found.dtype}, expected a list of strings")
            return [str(text) for text in found.asstr()[:]]

    def bad(self, reason: str, record: int | None = None) -> BadRecord:
        """An error about this file."""
        return BadRecord(self.path, record, reason)

    def _find(self, name: str) -> Any:
        """An entry, found through hard links only; None if there is none."""
        found: Any = self._file
        for part in name.strip("/").split("/"):
            if part and (not isinstance(found, h5py.Group) or part not in list(found)):
                return None
            if part:
                problem = _h5_safe.link_problem(found, part)
                if problem:
                    raise self.bad(f"{name} {problem}")
                found = found[part]
        return found

    def _stored(self, name: str) -> h5py.Dataset:
        """A dataset whose data are in this file."""
        found = self._find(name)
        if not isinstance(found, h5py.Dataset):
            there = ", ".join(sorted(self._file)) or "nothing"
            raise self.bad(f"it has no dataset {name!r}; it holds {there}")
        problem = _h5_safe.storage_problem(found)
        if problem:
            raise self.bad(f"{name} {problem}")
        return found

    def _check(self, name: str) -> h5py.Dataset:
        found = self._stored(name)
        problem = _h5_safe.size_problem(found)
        if problem:
            raise self.bad(f"{name} {problem}")
        if _h5_safe.may_burst(found):
            self._bursting.add(name)
        return found

    def _attribute(self, name: str) -> str | int | float | bool | None:
        identity = self._file.attrs.get_id(name)
        small = identity.shape == () and identity.get_type().get_size() <= _MOST_TEXT
        if not small or (identity.dtype.kind not in "biuf" and not _is_text(identity.dtype)):
            return None
        return plain(self._file.attrs[name])

    @contextmanager
    def _looking(self, damaged: str) -> Iterator[None]:
        """Guard access to the structure of the file, any part of which may request a plugin."""
        with self._explained(damaged), _h5_safe.no_plugins():
            yield

    @contextmanager
    def _explained(self, damaged: str, record: int | None = None) -> Iterator[None]:
        try:
            yield
        except BadRecord:
            raise
        # h5py reports damage by any of these.
        except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
            raise self.bad(f"{damaged}: {error}", record) from error


def _is_text(dtype: np.dtype[Any]) -> bool:
    return h5py.check_string_dtype(dtype) is not None
