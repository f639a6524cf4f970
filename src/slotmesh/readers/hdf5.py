"""HDF5 files: slotmesh's own export, and the layout of the MESH authors' files."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import h5py
import numpy as np
import torch

from slotmesh.readers._authors import AuthorsLayout
from slotmesh.readers._h5 import open_file
from slotmesh.readers._hdf5_layout import FORMAT
from slotmesh.readers._own import OwnLayout
from slotmesh.readers.clevrer import SHORT_VIDEOS, ClevrerReader
from slotmesh.readers.clevrtex import ClevrTexReader
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.multi_dsprites import MultiDSpritesReader
from slotmesh.readers.reader import Reader, Split, choose
from slotmesh.worlds.sample import Sample

_PAPER = ("train", "val", "test")
_SPLITS: dict[str, Mapping[str, range]] = {
    r.name: {k: r.splits[k] for k in _PAPER}
    for r in (MultiDSpritesReader, ClevrTexReader, ClevrerReader)
}


class HDF5Reader(Reader):
    """Samples from an HDF5 file; which of two layouts it has is found out.

    Files that ``slotmesh data export`` and ``data convert`` wrote come back as they went in, with
    the index they had in their source.

    In the MESH authors' files, ``images`` is ``(N, 3, H, W)`` or ``(N, T, 3, H, W)``, ``masks`` has
    one 0/1 image an object ``(N, [T,] K, 1, H, W)`` without the background, ``num_objects`` says
    how many are real, and ``attributes`` ``(N, T, K, 3)``, if there, holds colour, material and
    shape. Where masks overlap, the first object wins; pixels of none are background. With
    attributes, rows of the table are made the same object in every frame (up to ``T * K`` rows) and
    the columns ``color``, ``material``, ``shape`` are places in :mod:`slotmesh.readers.labels`; an
    object is ``present`` where it has a pixel. Without, rows are as in the file.

    Args:
        root: The file.
        split: ``"all"`` or a range of rows; in the authors' files also MESH's ``"train"``,
            ``"val"`` and ``"test"``.
        channels: Order of the colours in the file. ``"auto"`` is RGB for our own files; for the
            authors' it is BGR where OpenCV made them (ClevrTex and CLEVRER), and RGB where K is 5
            (Multi-dSprites, which comes from TFRecords).

    Example:
        >>> from slotmesh.readers import HDF5Reader
        >>> HDF5Reader("clevrtex.h5", split="test").sample([0]).image.shape  # doctest: +SKIP
        torch.Size([1, 3, 64, 64])
    """

    name: ClassVar[str] = "hdf5"

    def __init__(
        self,
        root: Path | str,
        split: Split = "all",
        *,
        channels: Literal["auto", "rgb", "bgr"] = "auto",
    ) -> None:
        if channels not in ("auto", "rgb", "bgr"):
            raise ValueError(f"HDF5Reader: channels is {channels!r}, expected auto, rgb or bgr.")
        self.path = Path(root)
        self.split = split
        self._file: h5py.File | None = None
        self._owner = 0
        file = self._open()
        own = file.attrs.get("format") == FORMAT
        self._layout = OwnLayout(file, self.path) if own else AuthorsLayout(file, self.path)
        self.max_objects = self._layout.max_objects
        settings = json.loads(str(file.attrs.get("settings", "{}"))) if own else {}
        self.has_masks = bool(settings.get("has_masks", True))
        bgr = self._layout.dataset in ("clevrtex", "clevrer")
        self._flip = bgr if channels == "auto" else channels == "bgr"
        splits = {"all": range(self._layout.n), **_SPLITS.get(self._layout.dataset, {})}
        rows = [i for i in choose("HDF5Reader", split, splits) if i < self._layout.n]
        if self._layout.dataset == "clevrer":
            rows = [i for i in rows if i not in SHORT_VIDEOS]
        self._rows = np.array(rows, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def __len__(self) -> int:
        return len(self._rows)

    def make(self, index: Sequence[int]) -> Sample:
        """The records of these indices, all of them within the split."""
        file = self._open()
        which, back = np.unique(self._rows[list(index)], return_inverse=True)
        # Rows that follow one another are one piece of the file.
        dense = len(which) == which[-1] - which[0] + 1
        rows = slice(int(which[0]), int(which[-1]) + 1) if dense else which
        try:
            sample = self._layout.read(file, rows, which)
        except OSError as error:
            if len(which) == 1:
                reason = f"it cannot be read, the file is damaged or cut short: {error}"
                raise BadRecord(self.path, int(which[0]), reason) from error
            for i in index:
                self.make([i])
            raise BadRecord(self.path, None, f"it cannot be read: {error}") from error
        order = torch.from_numpy(back)
        image = sample.image[order]
        source = sample.index if isinstance(self._layout, OwnLayout) else None
        return Sample(
            image=image.flip(-3) if self._flip else image,
            mask=sample.mask[order],
            objects={k: v[order] for k, v in sample.objects.items()},
            present=sample.present[order],
            index=torch.tensor(index) if source is None else source[order],
        )

    def _open(self) -> h5py.File:
        # A forked process must not use its parent's file.
        if self._file is None or self._owner != os.getpid():
            self._file = open_file("HDF5Reader", self.path)
            self._owner = os.getpid()
        return self._file
