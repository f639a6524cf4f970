"""The table of all readers."""

import inspect
from pathlib import Path
from typing import Any

from slotmesh.readers.clevr import ClevrReader
from slotmesh.readers.clevrer import ClevrerReader
from slotmesh.readers.clevrtex import ClevrTexReader
from slotmesh.readers.hdf5 import HDF5Reader
from slotmesh.readers.images import ImageReader
from slotmesh.readers.multi_dsprites import MultiDSpritesReader
from slotmesh.readers.reader import Reader
from slotmesh.readers.videos import VideoReader

READERS: dict[str, type[Reader]] = {
    reader.name: reader
    for reader in (
        ClevrReader,
        MultiDSpritesReader,
        ClevrTexReader,
        ClevrerReader,
        HDF5Reader,
        ImageReader,
        VideoReader,
    )
}
"""All readers by their names on the command line."""


def register_reader(reader: type[Reader]) -> None:
    """Register a reader of your own, so that commands find it by its ``name``.

    Raises:
        ValueError: If the name is taken.
    """
    if reader.name in READERS:
        raise ValueError(
            f"register_reader: a reader named {reader.name!r} already exists. Choose another name."
        )
    READERS[reader.name] = reader


def reader_options(name: str) -> list[str]:
    """List the options of a reader, such as ``split``, ``size`` and ``partial``."""
    if name not in READERS:
        names = ", ".join(READERS)
        raise ValueError(f"open_reader: there is no reader {name!r}, expected one of {names}.")
    return [option for option in inspect.signature(READERS[name]).parameters if option != "root"]


def open_reader(name: str, root: Path | str, **options: Any) -> Reader:
    """Open a dataset by the name of its reader.

    Args:
        name: One of :data:`READERS`: ``clevr``, ``multi-dsprites``, ``clevrtex``, ``clevrer``,
            ``hdf5``, ``images`` or ``videos``.
        root: The folder or file of the dataset.
        **options: Options of the reader, such as ``split`` and ``size``.

    Example:
        >>> from slotmesh.readers import open_reader
        >>> reader = open_reader("clevr", "CLEVR_v1.0", split="val")  # doctest: +SKIP
    """
    known = reader_options(name)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"open_reader: the reader {name!r} has no option {unknown[0]!r}, expected "
            f"{', '.join(known)}."
        )
    return READERS[name](root, **options)  # pyright: ignore[reportCallIssue]
