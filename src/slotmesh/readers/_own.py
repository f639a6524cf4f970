"""Read slotmesh's own HDF5 files."""

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from slotmesh.readers import _json
from slotmesh.readers._h5 import H5File, Rows
from slotmesh.readers.hdf5_layout import (
    FORMAT,
    FORMAT_VERSION,
    Columns,
    Like,
    Skipped,
    checksums,
    digest,
)
from slotmesh.worlds.sample import Sample


@dataclass(frozen=True)
class Header:
    """The attributes of a file."""

    kind: str
    """Image, video or vectors."""
    source: str
    """World or dataset."""
    settings: dict[str, Any]
    """Settings of the source."""
    sealed: bool
    """Whether there are checksums; files of version 1 have none."""


def read_header(file: H5File) -> Header | None:
    """Read the attributes and check the structure against its digest; None for another layout."""
    attributes = file.attributes()
    if attributes.get("format") != FORMAT:
        return None
    version = attributes.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        expected = f"expected 1 to {FORMAT_VERSION}. Update slotmesh"
        raise file.bad(f"its format_version is {version}, {expected}")
    sealed = version > 1 or "digest" in attributes or "checksum" in file.names()
    if sealed:
        _check_structure(file, attributes)
    settings = _json.parse(str(attributes.get("settings", "{}")), file.path)
    if not isinstance(settings, dict):
        raise file.bad(f"its settings are {settings!r}, expected a JSON object")
    source = str(attributes.get("source", ""))
    return Header(str(attributes.get("kind")), source, settings, sealed)


def _check_structure(file: H5File, attributes: dict[str, Any]) -> None:
    names = [n for n in file.names() if n not in ("objects", "skipped")]
    names += [f"objects/{n}" for n in file.names("objects")]
    found = {n: file.dataset(n) for n in names}
    like: Like = {n: (d.shape, d.dtype) for n, d in found.items()}
    which, why = file.read("skipped/index", slice(None)), file.texts("skipped/reason")
    skipped = [Skipped(int(i), reason) for i, reason in zip(which, why, strict=False)]
    if attributes.get("digest") != digest(attributes, like, skipped):
        raise file.bad("its structure does not match its digest: it is damaged, or was changed")


def read_columns(file: H5File, names: list[str], rows: Rows, which: NDArray[np.int64]) -> Columns:
    """Read some rows of all columns, and check them if the checksums are among them."""
    record = int(which[0]) if len(which) == 1 else None
    found = {name: file.read(name, rows, record) for name in names}
    if "checksum" in found:
        stored = found.pop("checksum")
        wrong = np.flatnonzero(checksums(found) != stored)
        if len(wrong):
            raise file.bad("its checksum is wrong: it is damaged", int(which[wrong[0]]))
    return found


class OwnLayout:
    """The layout that :mod:`slotmesh.readers.hdf5_layout` describes."""

    dataset = ""
    has_masks = True

    def __init__(self, file: H5File, header: Header) -> None:
        if header.kind not in ("image", "video"):
            expected = "expected 'image' or 'video' (VectorReader has vectors)"
            raise file.bad(f"its kind is {header.kind!r}, {expected}")
        dims = 5 if header.kind == "video" else 4
        images = file.dataset("images", np.uint8, dims)
        self.n = images.shape[0]
        masks = file.dataset("masks", np.uint8, dims - 1)
        present = file.dataset("present", np.bool_, dims - 2)
        index = file.dataset("index", np.int64, 1)
        expected = (*images.shape[: dims - 3], *images.shape[-2:])
        if images.shape[-3] != 3 or masks.shape != expected or 0 in images.shape[1:]:
            raise file.bad(
                f"images have shape {images.shape} and masks {masks.shape}: they do not fit"
            )
        self.max_objects = present.shape[-1]
        columns = [f"objects/{name}" for name in file.names("objects")]
        found: dict[str, h5py.Dataset] = {name: file.dataset(name) for name in columns}
        found |= {"masks": masks, "present": present, "index": index}
        if header.sealed:
            found["checksum"] = file.dataset("checksum", np.uint32, 1)
        for name, each in found.items():
            if each.shape[:1] != (self.n,):
                expected = f"expected {self.n} rows as in images"
                raise file.bad(f"{name} has shape {each.shape}, {expected}")
        self._names = ["images", *found]

    def read(self, file: H5File, rows: Rows, which: NDArray[np.int64]) -> Sample:
        """Read some rows, in the order of the file; ``which`` are their indices."""
        columns = read_columns(file, self._names, rows, which)
        tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
        return Sample(
            image=tensors.pop("images"),
            mask=tensors.pop("masks"),
            present=tensors.pop("present"),
            index=tensors.pop("index"),
            objects={name.removeprefix("objects/"): values for name, values in tensors.items()},
        )
