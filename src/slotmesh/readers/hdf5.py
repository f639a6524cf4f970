"""HDF5 files in slotmesh's own layout, that of the MESH authors, or with images alone."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from slotmesh.readers._authors import AuthorsLayout
from slotmesh.readers._h5 import H5File
from slotmesh.readers._own import OwnLayout, read_header
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


def _parts(n: int) -> dict[str, range]:
    """Rows for training, validation and test of a file that does not define them."""
    held_out = max(1, n // 10)
    first, last = n - 2 * held_out, n - held_out
    return {
        "train": range(max(0, first)),
        "val": range(max(0, first), last),
        "test": range(last, n),
    }


class HDF5Reader(Reader):
    """Samples from an HDF5 file, whose layout is detected.

    Samples written by ``slotmesh data export`` and ``data convert`` are read back unchanged, with
    the index that they had in their source.

    A file of your own needs only ``images``, uint8 ``(N, 3, H, W)`` or ``(N, T, 3, H, W)``: masks
    are then all zero, and :attr:`has_masks` is False.

    In the MESH authors' files, ``images`` is ``(N, 3, H, W)`` or ``(N, T, 3, H, W)``, ``masks`` has
    one 0/1 image per object ``(N, [T,] K, 1, H, W)`` without the background, ``num_objects`` says
    how many are real, and ``attributes`` ``(N, T, K, 3)``, if it exists, contains colour, material
    and shape. Where masks overlap, the first object wins; pixels in no mask are background. With
    attributes, rows are rearranged so that each is the same object in every frame (up to ``T * K``
    rows), the columns ``color``, ``material``, ``shape`` are indices into
    :mod:`slotmesh.readers.labels`, and an object is ``present`` where it has a pixel. Without
    attributes, rows are as in the file.

    Args:
        root: The file.
        split: ``"all"`` or a range of rows; ``"train"``, ``"val"`` and ``"test"`` are the splits of
            MESH in the authors' files, and the first 80%, the next 10% and the last 10% in others.
        channels: Order of the colour channels in the file. ``"auto"`` means BGR for the authors'
            files that were written with OpenCV (ClevrTex and CLEVRER), and RGB for all others. Pass
            ``"bgr"`` for an excerpt of one of the former.

    The authors' files do not name their dataset and are recognised by their shapes: ClevrTex has
    50,000 images with K = 10, CLEVRER 20,000 videos of 2 frames with K = 7, and Multi-dSprites at
    least 63,200 images with K = 5. Any other file in their layout is treated as your own.

    Raises:
        ValueError: If there are no rows for the split.
        BadRecord: If the file cannot be read.

    Example:
        >>> from slotmesh.readers import HDF5Reader
        >>> HDF5Reader("clevrtex.h5", split="test").sample([0]).image.shape  # doctest: +SKIP
        torch.Size([1, 3, 64, 64])
    """

    name: ClassVar[str] = "hdf5"
    source: str
    """World or dataset that our own file was made from; empty for the authors' files."""
    settings: dict[str, Any]
    """Settings of the source, as our own file has them."""

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
        self._file: H5File | None = None
        self._owner = 0
        file = self._open()
        try:
            header = read_header(file)
            self._layout = AuthorsLayout(file) if header is None else OwnLayout(file, header)
        except BadRecord:
            # Otherwise HDF5 would lock the file for as long as the error is alive.
            file.close()
            raise
        self.max_objects = self._layout.max_objects
        self.source = "" if header is None else header.source
        self.settings = {} if header is None else header.settings
        self.has_masks = self._layout.has_masks and bool(self.settings.get("has_masks", True))
        bgr = self._layout.dataset in ("clevrtex", "clevrer")
        self._flip = bgr if channels == "auto" else channels == "bgr"
        n = self._layout.n
        splits = {"all": range(n), **_SPLITS.get(self._layout.dataset, _parts(n))}
        wanted = choose("HDF5Reader", split, splits)
        rows = np.arange(wanted.start, min(wanted.stop, self._layout.n), wanted.step)
        if self._layout.dataset == "clevrer":
            rows = rows[~np.isin(rows, list(SHORT_VIDEOS))]
        if len(rows) == 0 and split in _PAPER:
            file.close()
            raise ValueError(
                f"HDF5Reader: {self.path} has {n} rows, of which none are for split {split!r}; "
                "expected at least 3 rows. Pass split='all', or a range."
            )
        self._rows = rows.astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def __len__(self) -> int:
        return len(self._rows)

    def make(self, index: Sequence[int]) -> Sample:
        """Read the records of these indices, all of them within the split."""
        file = self._open()
        which, back = np.unique(self._rows[list(index)], return_inverse=True)
        # Consecutive rows are one slice of the file.
        dense = len(which) == which[-1] - which[0] + 1
        rows = slice(int(which[0]), int(which[-1]) + 1) if dense else which
        try:
            sample = self._layout.read(file, rows, which)
        except BadRecord as bad:
            if bad.record is None:
                # Find the row at fault.
                for i in index if len(which) > 1 else ():
                    self.make([i])
            raise
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

    def _open(self) -> H5File:
        # A forked process must not use its parent's file.
        if self._file is None or self._owner != os.getpid():
            self._file = H5File("HDF5Reader", self.path)
            self._owner = os.getpid()
        return self._file
