"""The samples of a run: from a world, or from a real dataset."""

from pathlib import Path
from typing import Any

import torch

from slotmesh.readers import READERS, BadRecord, open_reader, reader_options
from slotmesh.training.settings import ImageData, no_root
from slotmesh.training.tasks.experiment import Source, Split
from slotmesh.worlds import make_world

_SPLITS: tuple[Split, ...] = ("train", "val", "test")


def world_seed(seed: int, split: Split) -> int:
    """The seed of a split: each split is a world of its own, so that they share no sample."""
    return len(_SPLITS) * seed + _SPLITS.index(split)


def open_source(
    data: ImageData, split: Split, device: torch.device, *, world: str, reader: str, **options: Any
) -> tuple[Source, int | None]:
    """Open the samples of a split; returns them and their number (None if endless).

    Args:
        data: Which samples.
        split: For training, validation or test.
        device: Device on which a world makes them; those of a dataset are on the CPU.
        world: Name of the world, without ``data.root``.
        reader: Name of the reader of the real dataset, with it.
        **options: More options of the reader, such as ``frames``.

    Raises:
        ValueError: If the dataset does not exist, or its images have another size.
    """
    n = {"train": data.train_size, "val": data.val_size, "test": data.test_size}[split]
    if data.root is None:
        try:
            seed = world_seed(data.seed, split)
            # Worlds from plugins need not have an easy version.
            easy = {"easy": True} if data.easy else {}
            return make_world(world, seed=seed, device=device, size=data.size, **easy), n
        except ValueError as error:
            raise ValueError(f"--data.size or --data.seed: {error}") from error
    if not data.root.exists():
        raise no_root(data.root)
    open_ = _open_partial if data.partial else _open
    found = open_(data, data.root, split, reader, options)
    shape = tuple(found.sample([0]).image.shape[-2:])
    if shape != (data.size, data.size):
        raise ValueError(
            f"--data.root {data.root} has images of {shape[0]}x{shape[1]} pixels, expected "
            f"{data.size}x{data.size}. Pass --data.size {shape[0]}, or convert them with "
            "`slotmesh data convert`."
        )
    return found, len(found) if n is None else min(n, len(found))


def _open(data: ImageData, root: Path, split: Split, reader: str, options: dict[str, Any]) -> Any:
    if (root / f"{split}.h5").is_file():
        return open_reader("hdf5", root / f"{split}.h5", split="all")
    others = [name for name in _SPLITS if (root / f"{name}.h5").is_file()]
    if others:
        raise ValueError(f"--data.root {root} has {others[0]}.h5, but no {split}.h5.")
    if root.is_file():
        return open_reader("hdf5", root, split=split)
    part = _labelled(reader, split)
    if "size" in reader_options(reader):
        options = options | {"size": data.size}
    return open_reader(reader, root, split=part, **options)


def _open_partial(
    data: ImageData, root: Path, split: Split, reader: str, options: dict[str, Any]
) -> Any:
    """Open what an incomplete copy has of a split; for ``test``, of the next split that exists."""
    if root.is_file() or "partial" not in reader_options(reader) or any(root.glob("*.h5")):
        raise ValueError(
            f"--data.partial is for the folders of CLEVR, ClevrTex and CLEVRER, but {root} is a "
            "file or holds files. Leave it out."
        )
    parts = _SPLITS[::-1] if split == "test" else (split,)
    problem: ValueError | None = None
    for part in dict.fromkeys(_labelled(reader, part) for part in parts):
        try:
            found = open_reader(reader, root, split=part, size=data.size, partial=True, **options)
        except BadRecord:
            raise
        except ValueError as error:
            problem = problem or error
            continue
        if len(found):
            return found
    said = problem or f"there is no sample of {', '.join(parts)}"
    raise ValueError(f"--data.partial: {root} has nothing of the {split} split: {said}")


def _labelled(reader: str, split: Split) -> str:
    """The part of the dataset that has labels for a split."""
    return READERS[reader].test_split if split == "test" else split
