"""Multi-dSprites: coloured sprites on a plain background, from DeepMind's TFRecords."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slotmesh.readers._example import Feature, MalformedExampleError, parse_example
from slotmesh.readers._folder import missing
from slotmesh.readers._images import flatten_layers
from slotmesh.readers._table import ArrayRecord, stack
from slotmesh.readers._tfrecord import RecordFile
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.reader import Reader, Split, choose
from slotmesh.worlds.sample import Sample

_SIDE = 64
_ENTITIES = {"binarized": 4, "colored_on_grayscale": 6, "colored_on_colored": 5}
_FACTORS = {"x": (), "y": (), "scale": (), "orientation": (), "color": (3,)}


class MultiDSpritesReader(Reader):
    """Multi-dSprites, from its TFRecords, gzipped or not, without TensorFlow.

    The release is one gzipped file, which can only be read from the beginning: reading records in
    order is fast, but going back starts over. ``len`` reads through the split once. To read records
    quickly in any order, unpack the file (``gunzip``) or convert it.

    Entity 0 of the file is the background, not an object. An object is ``present`` if its
    ``visibility`` is not 0. The file has one mask per entity; a pixel belongs to the first object
    whose mask contains it, or else to the background. Columns, as stored: ``x``, ``y``, ``scale``,
    ``orientation``, ``color`` (3 numbers) and ``shape_code``. Neither the codes of shapes nor the
    range of colours is documented, so they are left as they are.

    Args:
        root: The file, or the folder that contains it.
        split: MESH's ``"train"`` (records 0 to 59,999), ``"val"`` (320 after them), ``"test"``
            (2,880 after those); ``"all"``; or a range of records.
        variant: ``"colored_on_grayscale"`` (2-5 sprites, the paper's), ``"colored_on_colored"`` or
            ``"binarized"``.

    Example:
        >>> from slotmesh.readers import MultiDSpritesReader
        >>> reader = MultiDSpritesReader("multi_dsprites", split="val")  # doctest: +SKIP
        >>> reader.sample(range(32)).mask.shape  # doctest: +SKIP
        torch.Size([32, 64, 64])
    """

    name: ClassVar[str] = "multi-dsprites"
    splits: ClassVar[Mapping[str, range]] = {
        "train": range(60000),
        "val": range(60000, 60320),
        "test": range(60320, 63200),
        "all": range(1000000),
    }

    def __init__(
        self,
        root: Path | str,
        split: Split = "train",
        *,
        variant: str = "colored_on_grayscale",
    ) -> None:
        if variant not in _ENTITIES:
            names = ", ".join(repr(v) for v in _ENTITIES)
            raise ValueError(
                f"MultiDSpritesReader: variant is {variant!r}, expected one of {names}."
            )
        self._wanted = choose("MultiDSpritesReader", split, self.splits)
        self.split = split
        self._entities = _ENTITIES[variant]
        self.max_objects = self._entities - 1
        self._file = RecordFile(_find(Path(root), variant), self._wanted.stop)

    def __len__(self) -> int:
        first, step, there = self._wanted.start, self._wanted.step, len(self._file)
        if self._file.broken and there <= first:
            # An empty split would hide that its records are missing.
            raise self._file.broken
        return len(range(first, min(there, self._wanted.stop), step))

    def make(self, index: Sequence[int]) -> Sample:
        """Read the records of these indices, all of them within the split."""
        # In order, since going back in a gzipped file starts it again.
        found = {i: self._record(self._wanted[i]) for i in sorted(set(index))}
        return stack([found[i] for i in index], index, str(self._file.path))

    def _record(self, number: int) -> ArrayRecord:
        try:
            return self._decode(parse_example(self._file.read(number)))
        except MalformedExampleError as error:
            raise BadRecord(self._file.path, number, str(error)) from error

    def _decode(self, example: dict[str, Feature]) -> ArrayRecord:
        k = self._entities
        image = _feature(example, "image", (_SIDE, _SIDE, 3), np.uint8)
        layers = _feature(example, "mask", (_SIDE, _SIDE, k, 1), np.uint8)[:, :, 1:, 0] > 127
        mask = flatten_layers(np.moveaxis(layers, 2, 0))
        present = _feature(example, "visibility", (k,), np.float32)[1:] > 0.5
        columns: dict[str, NDArray[Any]] = {}
        for name, shape in _FACTORS.items():
            values = _feature(example, name, (k, *shape), np.float32)[1:]
            columns[name] = values * present.reshape(-1, *(1 for _ in shape))
        codes = _feature(example, "shape", (k,), np.float32)[1:]
        if np.abs(codes).max() > 255:
            raise MalformedExampleError(f"shape holds {codes}, expected small codes")
        columns["shape_code"] = np.where(present, np.rint(codes), 0).astype(np.int64)
        return ArrayRecord(image, mask, columns, present)


def _feature(
    example: dict[str, Feature], name: str, shape: tuple[int, ...], dtype: type[np.generic]
) -> NDArray[Any]:
    """One feature of a record, checked."""
    if name not in example:
        raise MalformedExampleError(f"it has no feature {name!r}")
    value = example[name]
    if isinstance(value, list):
        value = np.frombuffer(b"".join(value), dtype=np.uint8)
    expected = int(np.prod(shape))
    if value.dtype != dtype or value.size != expected:
        shown = " x ".join(str(s) for s in shape)
        raise MalformedExampleError(
            f"its feature {name!r} has {value.size} values of {value.dtype}, expected "
            f"{shown} = {expected} of {np.dtype(dtype)}"
        )
    if dtype == np.float32 and not bool(np.isfinite(value).all()):
        raise MalformedExampleError(f"its feature {name!r} holds numbers that are not finite")
    return value.reshape(shape)


def _find(root: Path, variant: str) -> Path:
    name = f"multi_dsprites_{variant}.tfrecords"
    for path in (root, root / name, root / "multi_dsprites" / name):
        if path.is_file():
            return path
    what = f"{root} has no {name}" if root.exists() else f"{root} does not exist"
    layout = f"  multi_dsprites/\n    {name}\n  (or pass the file itself)"
    raise missing("MultiDSpritesReader", what, layout)
