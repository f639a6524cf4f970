"""CLEVR v1.0: rendered scenes with descriptions, but without masks."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slotmesh.readers import _images, _json
from slotmesh.readers._folder import FolderReader, find_folder, missing
from slotmesh.readers._table import ArrayRecord, floats, integers
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.labels import COLORS, MATERIALS, SHAPES, SIZES
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
            image is squashed, nothing is cropped, as in iDSPN and Slot Attention.
        antialias: Whether to average when shrinking (Pillow, as iDSPN) or not (OpenCV).
        partial: Leave out scenes whose image is missing, for an incomplete copy.

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
    classes: ClassVar = {"shape": SHAPES, "material": MATERIALS, "color": COLORS, "size": SIZES}
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
        root = find_folder("ClevrReader", root, "images", "CLEVR_v1.0", _LAYOUT)
        part = {"val": "val", "sa-test": "val", "test": "test"}.get(str(split), "train")
        self._root = root / "images" / part
        if not self._root.is_dir():
            raise missing("ClevrReader", f"{self._root} does not exist", _LAYOUT)
        self._scenes_path = root / "scenes" / f"CLEVR_{part}_scenes.json"
        if self._scenes_path.exists():
            self._scenes = _Scenes(self._scenes_path, self._wanted)
        elif part == "test":
            self._scenes = _Unlabelled(self._root, self._wanted)
        else:
            raise missing("ClevrReader", f"{self._scenes_path} does not exist", _LAYOUT)
        files = self._scenes.files
        there = {p.name for p in self._root.iterdir()} if partial else set(files)
        self._numbers = np.array([i for i, f in enumerate(files) if f in there], dtype=np.int64)

    def _record(self, number: int) -> ArrayRecord:
        objects, present = self._scenes.table(number)
        pixels = _images.load_rgb(self._root / self._scenes.files[number])
        pixels = _images.resize(pixels, self.size, antialias=self.antialias)
        return ArrayRecord(pixels, np.zeros(pixels.shape[:2], np.uint8), objects, present)


class _Scenes:
    """The scenes file, as a short text per scene: a tenth of the memory of the parsed JSON."""

    def __init__(self, path: Path, wanted: range) -> None:
        self._path = path
        self._places: list[int] = []
        self._texts: list[str] = []
        self.files: list[str] = []
        scenes = _json.Fields(_json.load(path), path).get("scenes")
        if not isinstance(scenes, list):
            raise BadRecord(path, None, "scenes is not a list")
        for place, scene in enumerate(scenes):
            short, number, name = scene, place, ""
            if isinstance(scene, dict):
                short = {k: v for k, v in scene.items() if k in _NEEDED}
                number, name = scene.get("image_index", place), scene.get("image_filename", "")
            # A scene that cannot be read is kept, and raises when it is asked for.
            if not isinstance(number, int) or number in wanted:
                self._places.append(place)
                self._texts.append(self._short(short, place))
                self.files.append(name if isinstance(name, str) else "")

    def _short(self, scene: Any, place: int) -> str:
        try:
            return json.dumps(scene)
        except RecursionError as error:
            raise BadRecord(self._path, place, "its JSON is nested too deeply") from error

    def table(self, row: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Columns of one scene, and which objects are present."""
        place = self._places[row]
        found = _json.parse(self._texts[row], self._path, place)
        scene = _json.Fields(found, self._path, place)
        name = scene.text("image_filename")
        if name != Path(name).name or not name:
            raise scene.bad(f"image_filename is {name!r}, expected a name without a folder")
        scene.integer("image_index")
        objects = scene.objects("objects")
        if len(objects) > ClevrReader.max_objects:
            raise scene.bad(f"it has {len(objects)} objects, expected at most 10")
        columns, present = _empty()
        for i, thing in enumerate(objects):
            columns["color"][i] = thing.label("color", COLORS)
            columns["material"][i] = thing.label("material", MATERIALS)
            columns["shape"][i] = thing.label("shape", SHAPES)
            columns["size"][i] = thing.label("size", SIZES)
            columns["position"][i] = thing.numbers("3d_coords", 3)
            columns["rotation"][i] = thing.number("rotation")
            columns["pixel"][i] = thing.numbers("pixel_coords", 3)
        present[: len(objects)] = True
        return columns, present


class _Unlabelled:
    """Images without scenes."""

    def __init__(self, folder: Path, wanted: range) -> None:
        numbered = re.compile(r"CLEVR_\w+_(\d{6})\.png")
        found = ((p.name, numbered.fullmatch(p.name)) for p in folder.iterdir())
        self.files = sorted(name for name, m in found if m and int(m[1]) in wanted)

    def table(self, row: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """An empty table."""
        return _empty()


def _empty() -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    k = ClevrReader.max_objects
    columns: dict[str, NDArray[Any]] = {
        name: integers(k) for name in ("color", "material", "shape", "size")
    }
    columns |= {"position": floats(k, 3), "rotation": floats(k), "pixel": floats(k, 3)}
    return columns, np.zeros(k, dtype=np.bool_)
