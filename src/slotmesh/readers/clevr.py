"""CLEVR v1.0: rendered scenes with descriptions, but without masks."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from slotmesh.readers import _images, _json
from slotmesh.readers._folder import FolderReader, find_folder, missing
from slotmesh.readers._table import ArrayRecord, empty_table, read_object
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.labels import COLORS, MATERIALS, SHAPES, SIZES
from slotmesh.readers.listing import names_in
from slotmesh.readers.reader import Split

_LAYOUT = """\
  CLEVR_v1.0/
    images/train/CLEVR_train_000000.png ...
    scenes/CLEVR_train_scenes.json"""

_NEEDED = ("image_index", "image_filename", "objects")


class ClevrReader(FolderReader):
    """CLEVR v1.0, from its images and scenes.

    The dataset has no masks: ``mask`` is all zero, and :attr:`has_masks` is False. Its test split
    has no scenes either: no object is ``present`` there. Columns: ``color``, ``material``,
    ``shape``, ``size`` (indices into :mod:`slotmesh.readers.labels`), ``position`` (x, y, z; x and
    y from -3 to 3), ``rotation`` (as in the file) and ``pixel`` (x, y, depth, in pixels of the
    original image).

    Args:
        root: The folder ``CLEVR_v1.0``, or its parent.
        split: ``"train"``, ``"val"`` or ``"test"``; Slot Attention's ``"sa-train-eval"`` (the first
            512 of train), ``"sa-train"`` (the others) and ``"sa-test"`` (val), here in the order of
            the files; or a range of training images.
        size: Height and width, or one number for both; None keeps the 320 x 480 pixels. The whole
            image is squashed and nothing is cropped, as in iDSPN and Slot Attention.
        antialias: Whether to average when shrinking (Pillow, as iDSPN) or not (OpenCV).
        partial: For an incomplete copy: leave out scenes whose image is missing.

    Example:
        >>> from slotmesh.readers import ClevrReader
        >>> reader = ClevrReader("CLEVR_v1.0", split="val")  # doctest: +SKIP
        >>> batch = reader.sample(range(32))  # doctest: +SKIP
        >>> batch.image.shape, batch.objects["color"].shape  # doctest: +SKIP
        (torch.Size([32, 3, 128, 128]), torch.Size([32, 10]))
    """

    name: ClassVar[str] = "clevr"
    splits: ClassVar[Mapping[str, range]] = {
        "train": range(70000),
        "val": range(15000),
        "test": range(15000),
        "sa-train-eval": range(512),
        "sa-train": range(512, 70000),
        "sa-test": range(15000),
    }
    test_split = "val"  # The scenes of the test split are secret.
    classes: ClassVar = {"color": COLORS, "material": MATERIALS, "shape": SHAPES, "size": SIZES}
    max_objects = 10
    has_masks = False

    def __init__(
        self,
        root: Path | str,
        split: Split = "train",
        *,
        size: int | tuple[int, int] | None = 128,
        antialias: bool = True,
        partial: bool = False,
    ) -> None:
        super().__init__(split, size, antialias)
        self.partial = partial
        root = find_folder("ClevrReader", root, "images", "CLEVR_v1.0", _LAYOUT)
        part = {"val": "val", "sa-test": "val", "test": "test"}.get(str(split), "train")
        layout = _LAYOUT.replace("train", part)
        self._root = root / "images" / part
        if not self._root.is_dir():
            raise missing("ClevrReader", f"{self._root} does not exist", layout)
        self._path = root / "scenes" / f"CLEVR_{part}_scenes.json"
        if self._path.exists():
            self._scenes = _labelled(self._path, self._wanted)
        elif part == "test":
            self._scenes = _unlabelled(self._root, self._wanted)
        else:
            raise missing("ClevrReader", f"{self._path} does not exist", layout)
        there = set(names_in(self._root)) if partial else None
        kept = [i for i, scene in enumerate(self._scenes) if there is None or scene.file in there]
        self._numbers = np.array(kept, dtype=np.int64)

    def _record(self, number: int) -> ArrayRecord:
        scene = self._scenes[number]
        columns, present = empty_table(self.classes, self.max_objects)
        if scene.text is not None:
            objects = _objects(scene, self._path)
            for i, thing in enumerate(objects):
                read_object(columns, i, thing, self.classes)
            present[: len(objects)] = True
        pixels = _images.load_rgb(self._root / scene.file)
        pixels = _images.resize(pixels, self.size, antialias=self.antialias)
        return ArrayRecord(pixels, np.zeros(pixels.shape[:2], np.uint8), columns, present)


class _Scene(NamedTuple):
    file: str
    place: int
    """In the scenes file."""
    text: str | None
    """Short JSON, a tenth of the memory of the parsed scene; None without labels."""


def _labelled(path: Path, wanted: range) -> list[_Scene]:
    """The requested scenes of a scenes file."""
    scenes = _json.Fields(_json.load(path), path).get("scenes")
    if not isinstance(scenes, list):
        raise BadRecord(path, None, "scenes is not a list")
    found: list[_Scene] = []
    for place, scene in enumerate(scenes):
        short, number, name = scene, place, ""
        if isinstance(scene, dict):
            short = {k: v for k, v in scene.items() if k in _NEEDED}
            number, name = scene.get("image_index", place), scene.get("image_filename", "")
        # A scene that cannot be read is kept, and raises when it is asked for.
        if isinstance(number, int) and number not in wanted:
            continue
        try:
            text = json.dumps(short)
        except RecursionError as error:
            raise BadRecord(path, place, "its JSON is nested too deeply") from error
        found.append(_Scene(name if isinstance(name, str) else "", place, text))
    return found


def _unlabelled(folder: Path, wanted: range) -> list[_Scene]:
    """The requested images of a split without a scenes file."""
    numbered = re.compile(r"CLEVR_\w+_(\d{6})\.png")
    found = ((name, numbered.fullmatch(name)) for name in names_in(folder))
    names = sorted(name for name, m in found if m and int(m[1]) in wanted)
    return [_Scene(name, place, None) for place, name in enumerate(names)]


def _objects(scene: _Scene, path: Path) -> list[_json.Fields]:
    assert scene.text is not None
    fields = _json.Fields(_json.parse(scene.text, path, scene.place), path, scene.place)
    name = fields.text("image_filename")
    if name != Path(name).name or not name:
        raise fields.bad(f"image_filename is {name!r}, expected a name without a folder")
    fields.integer("image_index")
    objects = fields.objects("objects")
    if len(objects) > ClevrReader.max_objects:
        raise fields.bad(f"it has {len(objects)} objects, expected at most 10")
    return objects
