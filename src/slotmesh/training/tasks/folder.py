"""The images or videos of a folder, read once and kept in memory."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from rich.console import Console
from rich.markup import escape

from slotmesh.progress import Count
from slotmesh.readers import BadRecord, HDF5Reader, ImageReader, VideoReader
from slotmesh.worlds import Sample

_THREADS = min(8, os.cpu_count() or 1)
_MOST_NAMED = 3
_ROWS = 256
_FOR = {"train": "training ", "val": "validation ", "test": "test "}


class Loaded:
    """Samples of a split in memory."""

    def __init__(self, whole: Sample, split: str) -> None:
        self.whole = replace(whole, index=torch.arange(len(whole)))
        self.split = split

    def __len__(self) -> int:
        return len(self.whole)

    def sample(self, index: Sequence[int] | range | torch.Tensor) -> Sample:
        """The samples of these indices, as one batch."""
        return self.whole[torch.as_tensor(index, dtype=torch.int64)]


def load(reader: ImageReader | VideoReader, most: int | None, console: Console) -> Loaded:
    """Read all samples of a split, or the first ``most``; unreadable ones are skipped and listed.

    Raises:
        ValueError: If none can be read, or they do not fit into memory.
    """
    groups = (
        reader.together() if isinstance(reader, VideoReader) else [[i] for i in range(len(reader))]
    )
    _check_memory(reader, min(len(reader), most or len(reader)))
    bad: list[BadRecord] = list(getattr(reader, "short", []))
    found: list[Sample] = []
    kept = 0
    what = f"reading {reader.split}"
    with ThreadPoolExecutor(_THREADS) as pool, Count(console, what, len(groups)) as count:
        for part in pool.map(_reading(reader), groups):
            count.advance()
            if isinstance(part, BadRecord):
                # A mask that does not fit is a mistake, and so many images must not be skipped
                # unnoticed.
                if reader.masks is not None and part.path.is_relative_to(reader.masks):
                    raise part
                bad.append(part)
                continue
            found.append(part)
            kept += len(part)
            if most is not None and kept >= most:
                pool.shutdown(cancel_futures=True)
                break
    noun = "videos" if isinstance(reader, VideoReader) else "images"
    if not found:
        why = f" {_named(bad)}" if bad else ""
        raise ValueError(
            f"None of the {len(reader.names)} {_FOR.get(str(reader.split), '')}{noun} in "
            f"{reader.root} can be used.{why}"
        )
    if bad:
        skipped(bad, len(reader.names), noun, str(reader.split), console)
    whole = Sample.join(found)
    return Loaded(whole if most is None else whole[:most], str(reader.split))


def skipped(bad: list[BadRecord], n: int, noun: str, split: str, console: Console) -> None:
    """Say in one line which files were left out, and why."""
    words = f"Skipped {len(bad)} of {n} {noun} for {split}: {_named(bad)}"
    console.print(escape(words), highlight=False, soft_wrap=True)


def load_file(reader: HDF5Reader, most: int | None, size: int) -> Loaded:
    """Read the samples of a split of an HDF5 file.

    Raises:
        ValueError: If there are none, or if they are not images of this size.
    """
    n = min(len(reader), most or len(reader))
    if n == 0:
        raise ValueError(f"{reader.path} has too few samples: none is left for {reader.split}.")
    shape = tuple(reader.sample([0]).image.shape[1:])
    if shape != (3, size, size):
        raise ValueError(
            f"{reader.path} has samples of shape {shape}, expected images (3, {size}, {size}): "
            "square ones, and --data.size as they are."
        )
    starts = range(0, n, _ROWS)
    found = [reader.sample(range(start, min(start + _ROWS, n))) for start in starts]
    return Loaded(Sample.join(found), str(reader.split))


def _reading(
    reader: ImageReader | VideoReader,
) -> Callable[[list[int]], Sample | BadRecord]:
    def read(index: list[int]) -> Sample | BadRecord:
        try:
            return reader.sample(index)
        except BadRecord as bad:
            return bad

    return read


def _named(bad: list[BadRecord]) -> str:
    shown = "; ".join(str(one) for one in bad[:_MOST_NAMED])
    more = len(bad) - _MOST_NAMED
    return f"{shown}; and {more} more." if more > 0 else f"{shown}."


def _check_memory(reader: ImageReader | VideoReader, n: int) -> None:
    frames = reader.n_frames if isinstance(reader, VideoReader) else 1
    needed = n * frames * (4 * reader.size**2 + reader.max_objects)
    # Joining the parts takes the same amount again.
    most = _memory() // 3
    if needed > most:
        raise ValueError(
            f"{reader.root} has {n:,} samples for {reader.split}, which take "
            f"{needed / 2**30:.1f} GiB in memory, expected at most {most / 2**30:.1f}. Pass a "
            "smaller --data.size, or fewer with --data.train-size."
        )


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 16 << 30
