"""ClevrTex: CLEVR with textures everywhere, and with masks."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slotmesh.readers import _images, _json
from slotmesh.readers._folder import FolderReader, find_folder, missing
from slotmesh.readers._table import ArrayRecord, empty_table, read_object
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.labels import CLEVRTEX_MATERIALS, CLEVRTEX_SHAPES, CLEVRTEX_SIZES
from slotmesh.readers.listing import names_in
from slotmesh.readers.reader import Split

_PLAIN = {"shape": CLEVRTEX_SHAPES, "size": CLEVRTEX_SIZES}
# One material has the wrong name in the first release, according to its errata.
_RENAMED = {
    "poliigonfabricupholsterymidcenturypebbles001": "poliigonfabricupholsterybrightanglepattern001"
}


class ClevrTexReader(FolderReader):
    """ClevrTex, from its images, palette masks and JSON.

    The central square of ``int(0.8 * min(width, height))`` pixels (192 x 192) is cropped and
    resized, as in the paper and by the MESH authors. Masks are disjoint in the files. An object is
    ``present`` even if the crop leaves nothing of it. Columns: ``shape``, ``size``, ``material``
    (indices into ``CLEVRTEX_SHAPES``, ``CLEVRTEX_SIZES`` and ``CLEVRTEX_MATERIALS`` of
    :mod:`slotmesh.readers.labels`), ``position`` (x, y, z), ``rotation`` (as in the file) and
    ``pixel`` (x, y, depth, in pixels of the original image).

    Args:
        root: The folder ``clevrtex_full``, or its parent.
        split: MESH's ``"train"`` (10,000 to 49,999), ``"val"`` (5,000 to 5,319) and ``"test"`` (0
            to 4,999); ``"full-val"`` (5,000 to 9,999, the dataset's own); ``"all"``; or a range of
            image numbers.
        size: Height and width, or one number for both; None keeps the 192 pixels.
        crop: Whether to crop the centre.
        antialias: Whether to average when shrinking (Pillow, as the dataset's own loader) or not
            (OpenCV, which MESH uses). Masks are always resized to the nearest pixel.
        variant: ``"full"``, or another variant of the dataset: camo, outd, pbg, vbg, grassbg.
        partial: For an incomplete copy: leave out numbers without an image.

    Example:
        >>> from slotmesh.readers import ClevrTexReader
        >>> reader = ClevrTexReader("clevrtex_full", split="test")  # doctest: +SKIP
        >>> reader.sample([0, 1]).image.shape  # doctest: +SKIP
        torch.Size([2, 3, 64, 64])
    """

    name: ClassVar[str] = "clevrtex"
    splits: ClassVar[Mapping[str, range]] = {
        "train": range(10000, 50000),
        "val": range(5000, 5320),
        "test": range(5000),
        "full-val": range(5000, 10000),
        "all": range(50000),
    }
    classes: ClassVar = _PLAIN | {"material": CLEVRTEX_MATERIALS}
    max_objects = 10

    def __init__(
        self,
        root: Path | str,
        split: Split = "train",
        *,
        size: int | tuple[int, int] | None = 64,
        crop: bool = True,
        antialias: bool = False,
        variant: str = "full",
        partial: bool = False,
    ) -> None:
        super().__init__(split, size, antialias)
        self.partial = partial
        wanted = self._wanted
        self.crop = crop
        self._prefix = f"CLEVRTEX_{variant}_"
        self._layout = (
            f"  clevrtex_{variant}/\n"
            f"    0/{self._prefix}000000.png, {self._prefix}000000_flat.png, {self._prefix}"
            "000000.json ...\n    1/ ..."
        )
        inner = f"clevrtex_{variant}"
        first = str(wanted.start // 1000)
        self._root = find_folder("ClevrTexReader", root, first, inner, self._layout)
        there = self._present(wanted)
        if not there:
            what = f"{self._root} has none of the images {wanted.start} to {wanted.stop - 1}"
            raise missing("ClevrTexReader", what, self._layout)
        # Variants differ in size: the dataset ends with the last image that exists.
        all_numbers = [i for i in wanted if i <= there[-1]]
        self._numbers = np.array(there if partial else all_numbers, dtype=np.int64)

    def _present(self, wanted: range) -> list[int]:
        """Which of the requested images exist."""
        numbered = re.compile(re.escape(self._prefix) + r"(\d{6})\.png")
        found: list[int] = []
        for chunk in range(wanted.start // 1000, (wanted.stop - 1) // 1000 + 1):
            folder = self._root / str(chunk)
            # An incomplete copy may lack whole folders.
            matches = map(numbered.fullmatch, names_in(folder) if folder.is_dir() else ())
            found += [int(m[1]) for m in matches if m]
        return sorted(n for n in found if n in wanted)

    def _record(self, number: int) -> ArrayRecord:
        stem = self._root / str(number // 1000) / f"{self._prefix}{number:06d}"
        columns, present = self._table(stem.with_name(stem.name + ".json"))
        image = _images.load_rgb(stem.with_name(stem.name + ".png"))
        mask_path = stem.with_name(stem.name + "_flat.png")
        mask = _images.load_palette(mask_path)
        if mask.shape != image.shape[:2]:
            reason = f"the mask has shape {mask.shape}, its image {image.shape[:2]}"
            raise BadRecord(mask_path, None, reason)
        strange = [i for i in np.unique(mask).tolist() if i > 0 and (i > 10 or not present[i - 1])]
        if strange:
            reason = f"the mask holds the index {strange[0]}, which no object in the JSON has"
            raise BadRecord(mask_path, None, reason)
        if self.crop:
            side = int(0.8 * min(image.shape[:2]))
            image, mask = _images.centre_crop(image, side), _images.centre_crop(mask, side)
        image = _images.resize(image, self.size, antialias=self.antialias)
        return ArrayRecord(image, _images.resize_mask(mask, self.size), columns, present)

    def _table(self, path: Path) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        scene = _json.Fields(_json.load(path), path)
        k = self.max_objects
        columns, present = empty_table(self.classes, k)
        for thing in scene.objects("objects"):
            row = thing.integer("index") - 1
            if not 0 <= row < k or present[row]:
                reason = f"{thing.where}.index is {row + 1}, expected 1 to {k}, each once"
                raise thing.bad(reason)
            read_object(columns, row, thing, _PLAIN)
            columns["material"][row] = _material(thing.text("material"))
            present[row] = True
        return columns, present


def _material(name: str) -> int:
    name = _RENAMED.get(name.lower(), name.lower())
    known = name if name in CLEVRTEX_MATERIALS else "other"
    return CLEVRTEX_MATERIALS.index(known)
