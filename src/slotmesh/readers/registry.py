"""Readers by name."""

import inspect
from pathlib import Path
from typing import Any

from slotmesh.readers.clevr import ClevrReader
from slotmesh.readers.clevrer import ClevrerReader
from slotmesh.readers.clevrtex import ClevrTexReader
from slotmesh.readers.hdf5 import HDF5Reader
from slotmesh.readers.multi_dsprites import MultiDSpritesReader
from slotmesh.readers.reader import Reader

READERS: dict[str, type[Reader]] = {
    reader.name: reader
    for reader in (ClevrReader, MultiDSpritesReader, ClevrTexReader, ClevrerReader, HDF5Reader)
}
"""All readers, by the names of the command line."""


def open_reader(name: str, root: Path | str, **options: Any) -> Reader:
    """Open a dataset by the name of its reader.

    Args:
        name: One of :data:`READERS`: ``clevr``, ``multi-dsprites``, ``clevrtex``, ``clevrer`` or
            ``hdf5``.
        root: Where the dataset is.
        **options: Those of the reader, such as ``split`` and ``size``.

    Example:
        >>> from slotmesh.readers import open_reader
        >>> reader = open_reader("clevr", "CLEVR_v1.0", split="val")  # doctest: +SKIP
    """
    if name not in READERS:
        names = ", ".join(READERS)
        raise ValueError(f"open_reader: there is no reader {name!r}, expected one of {names}.")
    reader = READERS[name]
    known = [p for p in inspect.signature(reader).parameters if p != "root"]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"open_reader: the reader {name!r} has no option {unknown[0]!r}, expected "
            f"{', '.join(known)}."
        )
    return reader(root, **options)  # pyright: ignore[reportCallIssue]
