"""Defaults that suit a folder of images or videos: their number, their size and their objects."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from slotmesh.readers import BadRecord, HDF5Reader, photos
from slotmesh.training.settings import Optim
from slotmesh.training.tasks.discovery import with_lr

T = TypeVar("T")

_MOST_SLOTS = 24
# Number of files that are opened to choose defaults.
_LOOKED_AT = 64


def suited_to(
    start: Any, n_train: int, shapes: list[tuple[int, int]], objects: int | None, size: int | None
) -> Any:
    """Adapt a preset to the number of samples, their shapes, and the number of objects."""
    # At most half of the samples: some may turn out to be unreadable.
    data = replace(start.data, batch_size=min(start.data.batch_size, max(1, n_train // 2)))
    if shapes:
        short = int(statistics.median(min(shape) for shape in shapes))
        long = statistics.median(max(shape) / min(shape) for shape in shapes)
        data = replace(data, square="squeeze" if long > 2 else "crop")
        if start.model.start is None:
            # Small images gain nothing from more pixels, unless the weights were trained on larger
            # ones.
            data = replace(data, size=min(data.size, max(16, short // 8 * 8)))
    if size is not None:
        data = replace(data, size=size)
    model = start.model
    if objects is not None:
        model = replace(model, n_slots=max(2, min(_MOST_SLOTS, objects + 1)))
    return with_schedule(replace(start, data=data, model=model), n_train)


def with_schedule(start: Any, n_train: int) -> Any:
    """Set steps, learning rate and MESH's step for the number of samples and their size."""
    batch = start.data.batch_size
    if start.model.start is not None:
        steps = max(200, min(400, 10 * n_train // batch))
        optim = Optim(lr=4e-4, warmup=20, cosine=True, clip=0.1)
    elif start.preset == "quick":
        steps = max(400, min(1000, 10 * n_train // batch))
        optim = Optim(lr=2e-3, warmup=50, cosine=True, clip=1.0)
    else:
        # The paper has 530 epochs, with a warm-up of a fiftieth and a half-life of a fifth.
        steps = max(20_000, min(500_000, 530 * n_train // batch))
        optim = Optim(lr=4e-4, warmup=steps // 50, half_life=steps // 5, clip=0.1)
    every = steps // (5 if start.preset == "quick" else 50)
    # The norm of a step over the matrix, which grows with the image: 8 for 64 x 64, as in the
    # paper.
    transport = with_lr(start.transport, start.data.size / 8)
    changes = {"steps": steps, "val_every": every, "save_every": every}
    return replace(start, optim=optim, transport=transport, **changes)


def suited_to_file(start: Any, root: Path) -> Any:
    """Use the size of the images in the file: nothing is resized."""
    reader = HDF5Reader(root, "train")
    if not len(reader):
        raise ValueError(f"{root} has too few samples: none is left for training.")
    height, width = reader.sample([0]).image.shape[-2:]
    objects = reader.max_objects if reader.has_masks else None
    return suited_to(start, len(reader), [(height, width)], objects, height)


def spread(files: list[T], most: int = _LOOKED_AT) -> list[T]:
    """Choose a few, evenly spaced."""
    return files[:: max(1, -(-len(files) // most))]


def size_of(path: Path) -> tuple[int, int] | None:
    """Height and width of an image; None if it cannot be read."""
    try:
        return photos.photo_size(path)
    except BadRecord:
        return None


def most_objects(masks: list[Path]) -> int | None:
    """The largest number of objects in a few masks; None if there are no masks."""
    found: list[int] = []
    for path in spread(masks):
        try:
            labels = photos.to_labels(photos.load_codes(path), path)
            found.append(int(labels.max(initial=0)))
        except BadRecord:
            continue
    return max(found, default=None)
