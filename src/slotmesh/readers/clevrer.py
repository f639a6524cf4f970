"""CLEVRER: short videos of objects that move and collide."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slotmesh.ops import checks
from slotmesh.readers import _images, _json, _rle, clips
from slotmesh.readers._folder import FolderReader, missing
from slotmesh.readers._identity import Detection, Kind, join, visible
from slotmesh.readers._images import Pixels
from slotmesh.readers._table import ArrayRecord, floats, integers
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.labels import COLORS, MATERIALS, SHAPES
from slotmesh.readers.reader import Split

SHORT_VIDEOS = frozenset({7648, 9777, 10800})
"""Videos with proposals for fewer than 128 frames: in no split, as in the MESH authors' files."""

_LAYOUT = """\
  video_train/video_00000-01000/video_00000.mp4 ...
  annotation_train/annotation_00000-01000/annotation_00000.json ...   (positions; not for test)
  processed_proposals/sim_00000.json ...                              (masks)
    or derender_proposals/proposal_00000.json ..."""

_PROPOSALS = {"processed_proposals": "sim", "derender_proposals": "proposal"}


class ClevrerReader(FolderReader):
    """CLEVRER, from its videos, annotations and detector proposals.

    Masks come from the proposals, the output of a detector: where two overlap, the one with the
    higher score wins. Objects may be missing, or change their attributes from frame to frame.
    Without proposals, masks are all zero and :attr:`has_masks` is False.

    Rows of the table are the objects of the annotation (or, without one, of the proposals' ground
    truth), then any others in the proposals of these frames. Objects are identified by colour,
    material and shape, so a row is the same object in every frame. An object is ``present`` in a
    frame if the mask shows it or, without masks, if the annotation says that it is in view.
    Columns: ``real`` (rows that are objects, in view or not), ``color``, ``material``, ``shape``
    (indices into :mod:`slotmesh.readers.labels`); with annotations also ``position`` and
    ``velocity``, ``(T, max_objects, 3)``, and ``rotation``, ``(T, max_objects)``, about the
    vertical in radians; all zero for rows that are not in the annotation.

    Args:
        root: The folder of the dataset.
        split: MESH's ``"train"`` (videos 0 to 9,999), ``"val"`` (10,000 to 10,319) and ``"test"``
            (15,000 to 19,999); ``"full-val"`` (10,000 to 14,999); or a range of videos. The videos
            in :data:`SHORT_VIDEOS` are left out.
        frames: Which frames: ``(0, 16)`` is CLEVRER-S, ``(0, 127)`` is CLEVRER-L.
        size: Height and width, or one number for both; None keeps the 320 x 480 pixels. The whole
            frame is squashed and nothing is cropped.
        antialias: Whether to average when shrinking (Pillow) or not (OpenCV, which MESH uses).
            Masks are always resized to the nearest pixel.
        max_objects: Rows of the table. Two frames of seven detections fit the default.
        partial: For an incomplete copy: leave out videos that are missing.

    Example:
        >>> from slotmesh.readers import ClevrerReader
        >>> reader = ClevrerReader("clevrer", split="val", frames=(0, 127))  # doctest: +SKIP
        >>> reader.read(0).image.shape  # doctest: +SKIP
        torch.Size([1, 2, 3, 64, 64])
    """

    name: ClassVar[str] = "clevrer"
    splits: ClassVar[Mapping[str, range]] = {
        "train": range(10000),
        "val": range(10000, 10320),
        "test": range(15000, 20000),
        "full-val": range(10000, 15000),
    }
    classes: ClassVar = {"color": COLORS, "material": MATERIALS, "shape": SHAPES}

    def __init__(
        self,
        root: Path | str,
        split: Split = "train",
        *,
        frames: Sequence[int] = (0, 16),
        size: int | tuple[int, int] | None = 64,
        antialias: bool = False,
        max_objects: int = 14,
        partial: bool = False,
    ) -> None:
        super().__init__(split, size, antialias)
        self.partial = partial
        chosen = [checks.plain(f) for f in frames] if isinstance(frames, Iterable) else []
        if not chosen or any(type(f) is not int or not 0 <= f < 128 for f in chosen):
            raise ValueError(
                f"ClevrerReader: frames is {frames!r}, expected whole numbers from 0 to 127. Pass "
                "(0, 16)."
            )
        max_objects = checks.as_count("ClevrerReader", "max_objects", max_objects, 1)
        if max_objects > 255:
            raise ValueError(f"ClevrerReader: max_objects is {max_objects}, expected 1 to 255.")
        clips.require_av("ClevrerReader")
        self.frames = tuple(chosen)
        self.max_objects = max_objects
        self._root = Path(root)
        ids = [i for i in self._wanted if i not in SHORT_VIDEOS]
        parts = sorted({_part(i) for i in ids})
        for part in parts:
            if not (self._root / f"video_{part}").is_dir():
                what = f"{self._root / f'video_{part}'} does not exist"
                raise missing("ClevrerReader", what, _LAYOUT)
        found = [f for f in _PROPOSALS if (self._root / f).is_dir()]
        self._proposals = found[0] if found else None
        self.has_masks = self._proposals is not None
        self.has_positions = all((self._root / f"annotation_{p}").is_dir() for p in parts)
        if not self.has_masks and not self.has_positions:
            what = f"{self._root} has neither annotations nor proposals for {' and '.join(parts)}"
            raise missing("ClevrerReader", what, _LAYOUT)
        if partial:
            ids = [i for i in ids if self._path("video", i, "mp4").is_file()]
        self._numbers = np.array(ids, dtype=np.int64)

    def _path(self, what: str, video: int, ending: str) -> Path:
        low = video // 1000 * 1000
        folder = self._root / f"{what}_{_part(video)}" / f"{what}_{low:05d}-{low + 1000:05d}"
        return folder / f"{what}_{video:05d}.{ending}"

    def _record(self, number: int) -> ArrayRecord:
        path = self._path("video", number, "mp4")
        pixels = clips.load_frames(path, self.frames)
        full = pixels[0].shape[:2]
        size = self.size or (full[0], full[1])
        kinds: list[Kind] = []
        columns: dict[str, NDArray[Any]] = {}
        inside = np.zeros((len(self.frames), self.max_objects), dtype=np.bool_)
        if self.has_positions:
            kinds, columns, inside = self._annotation(self._path("annotation", number, "json"))
        mask, present = np.zeros((len(self.frames), *size), dtype=np.uint8), inside
        if self._proposals:
            name = f"{_PROPOSALS[self._proposals]}_{number:05d}.json"
            proposals = self._root / self._proposals / name
            kinds, mask = self._masks(proposals, kinds, (full[0], full[1]), size)
            present = visible(mask, self.max_objects)
        for i, column in enumerate(("color", "material", "shape")):
            columns[column] = integers(self.max_objects)
            columns[column][: len(kinds)] = [kind[i] for kind in kinds]
        columns["real"] = np.arange(self.max_objects) < len(kinds)
        images = [_images.resize(p, self.size, antialias=self.antialias) for p in pixels]
        return ArrayRecord(np.stack(images), mask, columns, present)

    def _masks(
        self, path: Path, known: list[Kind], full: tuple[int, int], size: tuple[int, int]
    ) -> tuple[list[Kind], Pixels]:
        scene = _json.Fields(_json.load(path), path)
        if not known and "ground_truth" in scene:
            known = [_kind(o) for o in scene.object("ground_truth").objects("objects")]
        all_frames = scene.objects("frames")
        by_number = {f.integer("frame_index"): f for f in all_frames if "frame_index" in f}
        by_number = by_number or dict(enumerate(all_frames))
        found: list[list[Detection]] = []
        for number in self.frames:
            if number not in by_number:
                reason = f"it has {len(all_frames)} frames, and not frame {number}"
                raise BadRecord(path, None, reason)
            things = by_number[number].objects("objects")
            found.append([_detection(o, full, size) for o in things])
        kinds, mask = join(found, known, size)
        if len(kinds) > self.max_objects:
            raise BadRecord(
                path,
                None,
                f"it has {len(kinds)} objects, expected at most {self.max_objects}. Open the "
                "reader with a larger max_objects",
            )
        return kinds, mask

    def _annotation(
        self, path: Path
    ) -> tuple[list[Kind], dict[str, NDArray[Any]], NDArray[np.bool_]]:
        scene = _json.Fields(_json.load(path), path)
        things = {o.integer("object_id"): o for o in scene.objects("object_property")}
        if len(things) > self.max_objects:
            reason = f"it has {len(things)} objects, expected at most {self.max_objects}"
            raise BadRecord(path, None, reason)
        row_of = {number: row for row, number in enumerate(sorted(things))}
        t, k = len(self.frames), self.max_objects
        columns: dict[str, NDArray[Any]] = {"position": floats(t, k, 3), "rotation": floats(t, k)}
        columns["velocity"] = floats(t, k, 3)
        inside = np.zeros((t, k), dtype=np.bool_)
        moments = {m.integer("frame_id"): m for m in scene.objects("motion_trajectory")}
        for at, frame in enumerate(self.frames):
            if frame not in moments:
                reason = f"motion_trajectory has {len(moments)} frames, and not frame {frame}"
                raise BadRecord(path, None, reason)
            for thing in moments[frame].objects("objects"):
                number = thing.integer("object_id")
                if number not in row_of:
                    raise thing.bad(f"{thing.where}.object_id is {number}: no such object")
                row = row_of[number]
                columns["position"][at, row] = thing.numbers("location", 3)
                columns["velocity"][at, row] = thing.numbers("velocity", 3)
                columns["rotation"][at, row] = thing.numbers("orientation", 3)[2]
                inside[at, row] = thing.boolean("inside_camera_view")
        return [_kind(things[number]) for number in row_of], columns, inside


def _part(video: int) -> str:
    return "train" if video < 10000 else "validation" if video < 15000 else "test"


def _kind(thing: _json.Fields) -> Kind:
    return (
        thing.label("color", COLORS),
        thing.label("material", MATERIALS),
        thing.label("shape", SHAPES),
    )


def _detection(thing: _json.Fields, full: tuple[int, int], size: tuple[int, int]) -> Detection:
    rle = thing.object("mask")
    height, width = rle.numbers("size", 2)
    if (height, width) != full:
        reason = f"{rle.where}.size is {height:g} x {width:g}, its video {full[0]} x {full[1]}"
        raise rle.bad(reason)
    counts = rle.get("counts")
    if not isinstance(counts, str | list):
        raise rle.bad(f"{rle.where}.counts is neither a string nor a list")
    try:
        mask = _rle.decode(counts, full)
    except _rle.MalformedMaskError as error:
        raise rle.bad(f"{rle.where}.counts cannot be decoded: {error}") from error
    score = thing.number("score") if "score" in thing else 0.0
    return Detection(_kind(thing), _images.resize_mask(mask, size), score)
