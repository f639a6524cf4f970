"""One small dataset of each format, what a reader makes of it, and what damage may change of that.

``exact`` formats have checksums: damage either leaves the content as it was, or is an error. The
others cannot tell: a digit of JSON is as good as another, mpeg4 and h264 have no checksums, and nor
have the MESH authors' HDF5 files (stored plainly). There, what is read must at least be a batch
that a model can take: known types, fitting shapes, finite numbers, masks of known objects.
"""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from slotmesh.readers import (
    ClevrerReader,
    ClevrReader,
    ClevrTexReader,
    HDF5Reader,
    MultiDSpritesReader,
    Reader,
    VectorReader,
)
from slotmesh.readers.hdf5_layout import Skipped
from slotmesh.readers.hdf5_writer import write_hdf5
from slotmesh.worlds import MultiDSprites, RandomObjects, Sample

from ..readers import test_clevr, test_clevrer, test_clevrtex, test_hdf5, test_multi_dsprites

Content = list[dict[str, np.ndarray]]
"""The columns of each record."""


@dataclass(frozen=True)
class Format:
    """A dataset on disk that can be damaged."""

    build: Callable[[Path], Path]
    """Writes it into a folder, and returns the file to damage."""
    read: Callable[[Path, Path], Content]
    """Reads all of it, from the folder and the file."""
    exact: bool
    """Whether all of its content is under checksums."""
    prefix: bool = False
    """Whether the format does not say how many records there are: the last may be lost unseen."""


def own(root: Path) -> Path:
    path = root / "x.h5"
    sample = MultiDSprites(size=16).sample(range(6))
    records = [sample, Skipped(6, "a reason")]
    write_hdf5(path, lambda start: records, n=7, source="multi-dsprites", settings={"seed": 0})
    return path


def vectors(root: Path) -> Path:
    path = root / "v.h5"
    sample = RandomObjects(n_background=3, dim=4).sample(range(6))
    write_hdf5(path, lambda start: [sample], n=6, source="random-objects", settings={"seed": 0})
    return path


def authors(root: Path) -> Path:
    test_hdf5.authors(root / "x.h5")
    return root / "x.h5"


def authors_video(root: Path) -> Path:
    test_hdf5.video(root / "x.h5")
    return root / "x.h5"


def clevr(root: Path) -> Path:
    scenes = [test_clevr.scene(i, [test_clevr.OBJECT, test_clevr.OTHER]) for i in range(2)]
    return test_clevr.write(root, scenes)


def clevrtex(root: Path) -> Path:
    return test_clevrtex.write(root, 0, test_clevrtex.THREE)


def tfrecord(root: Path) -> Path:
    path = root / test_multi_dsprites.NAME
    path.write_bytes(b"".join(map(test_multi_dsprites.frame, test_multi_dsprites.RECORDS[:3])))
    return path


def tfrecord_gzip(root: Path) -> Path:
    path = tfrecord(root)
    path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def clevrer(root: Path) -> None:
    test_clevrer.video(test_clevrer.video_path(root, 0))
    kinds = [test_clevrer.GRAY, test_clevrer.BLUE]
    test_clevrer.put(root, "annotation", 0, test_clevrer.annotation(kinds, [True, False]))
    test_clevrer.put(root, "proposals", 0, test_clevrer.proposals(test_clevrer.FRAMES, None))


def columns(sample: Sample) -> dict[str, np.ndarray]:
    found = {"image": sample.image, "mask": sample.mask, "present": sample.present}
    found |= sample.objects | {"index": sample.index}
    return {name: values.numpy() for name, values in found.items()}


def every(reader: Reader) -> Content:
    return [columns(reader.read(i)) for i in range(len(reader))]


def every_vector(path: Path) -> Content:
    sample = VectorReader(path).sample(range(6))
    return [{"inputs": sample.inputs.numpy(), "targets": sample.targets.numpy()}]


def made(make: Callable[[Path], object], name: str) -> Callable[[Path], Path]:
    """Make a dataset of several files, of which one is to be damaged."""

    def build(root: Path) -> Path:
        make(root)
        return next(root.rglob(name))

    return build


def from_clevr(root: Path, file: Path) -> Content:
    return every(ClevrReader(root, range(2), size=None))


def from_clevrtex(root: Path, file: Path) -> Content:
    return every(ClevrTexReader(root, "test", size=None, crop=False))


def from_clevrer(root: Path, file: Path) -> Content:
    return every(ClevrerReader(root, range(1), size=None))


def from_hdf5(root: Path, file: Path) -> Content:
    return every(HDF5Reader(file))


def from_tfrecord(root: Path, file: Path) -> Content:
    return every(MultiDSpritesReader(file, range(100)))


FORMATS = {
    "our HDF5": Format(own, from_hdf5, exact=True),
    "our HDF5 of vectors": Format(vectors, lambda root, file: every_vector(file), exact=True),
    "authors' HDF5": Format(authors, from_hdf5, exact=False),
    "authors' HDF5 of videos": Format(authors_video, from_hdf5, exact=False),
    "CLEVR image": Format(made(clevr, "*_000001.png"), from_clevr, exact=True),
    "CLEVR scenes": Format(made(clevr, "*_scenes.json"), from_clevr, exact=False),
    "ClevrTex image": Format(made(clevrtex, "*_000000.png"), from_clevrtex, exact=True),
    "ClevrTex mask": Format(made(clevrtex, "*_flat.png"), from_clevrtex, exact=True),
    "ClevrTex objects": Format(made(clevrtex, "*.json"), from_clevrtex, exact=False),
    "TFRecord": Format(tfrecord, from_tfrecord, exact=True, prefix=True),
    "TFRecord, gzipped": Format(tfrecord_gzip, from_tfrecord, exact=True),
    "CLEVRER video": Format(made(clevrer, "*.mp4"), from_clevrer, exact=False),
    "CLEVRER annotation": Format(made(clevrer, "annotation_*.json"), from_clevrer, exact=False),
    "CLEVRER run lengths": Format(made(clevrer, "sim_*.json"), from_clevrer, exact=False),
}


def wrong(form: Format, found: Content, original: Content) -> Iterator[str]:
    """What is not as it may be of content that was read without an error."""
    if form.exact:
        if len(found) > len(original) or (len(found) < len(original) and not form.prefix):
            yield f"{len(found)} records of {len(original)}"
        for i, (record, expected) in enumerate(zip(found, original, strict=False)):
            if record.keys() != expected.keys():
                yield f"record {i} has the columns {list(record)}"
            for name in record.keys() & expected.keys():
                a, b = record[name], expected[name]
                if a.dtype != b.dtype or not np.array_equal(a, b):
                    yield f"record {i} has another {name}"
        return
    for i, record in enumerate(found):
        image, mask, present = record["image"], record["mask"], record["present"]
        if image.dtype != np.uint8 or mask.dtype != np.uint8 or present.dtype != np.bool_:
            yield f"record {i} has the types {image.dtype}, {mask.dtype} and {present.dtype}"
        if image.shape[-3] != 3 or mask.shape != (*image.shape[:-3], *image.shape[-2:]):
            yield f"record {i} has the shapes {image.shape} and {mask.shape}"
        if mask.max(initial=0) > present.shape[-1]:
            yield f"record {i} has the number {mask.max()} in its mask"
        numbers = [v for v in record.values() if v.dtype.kind == "f"]
        if not all(bool(torch.from_numpy(v).isfinite().all()) for v in numbers):
            yield f"record {i} has numbers that are not finite"
