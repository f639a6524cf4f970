"""``slotmesh data stats``: statistics of a world or a file."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from slotmesh.data._source import classes_of_dataset, classes_of_world, open_world
from slotmesh.progress import Count
from slotmesh.readers import HDF5Reader
from slotmesh.training.settings import at_least
from slotmesh.worlds import WORLDS, Sample, VectorSample

_BARS = " ▁▂▃▄▅▆▇█"
_BINS = 16


@dataclass(frozen=True)
class Stats:
    """Print object counts, factors, visible pixels and colours of a world or an HDF5 file."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """The name of a world, or an HDF5 file."""
    n: int | None = None
    """Number of samples; by default 1000 of a world, and all of a file."""
    seed: int = 0
    """Seed of the world."""
    size: int | None = None
    """Width and height of a world's images."""
    easy: bool = False
    """The easy version of a world: a few large objects in clear colours."""
    batch_size: int = 64
    """Samples per batch."""
    device: str = "auto"
    """cpu, cuda, or auto."""


@dataclass
class Summary:
    """The counts."""

    n: int = 0
    """Number of samples."""
    counts: Counter[int] = field(default_factory=Counter)
    """Number of images (or frames) by number of objects."""
    classes: dict[str, Counter[int]] = field(default_factory=dict)
    """For each column of integers, how often each value occurs among real objects."""
    numbers: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)
    """For each column of real numbers, the values, batch by batch."""
    visible: list[NDArray[np.int64]] = field(default_factory=list)
    """Visible pixels of each real object, batch by batch."""
    colour: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3,)))
    """Sum of the mean colours of the images, 0 to 255."""


def run_stats(stats: Stats, console: Console | None = None) -> Summary:
    """Count, print a table, and return the counts."""
    at_least("batch_size", stats.batch_size, 1)
    if stats.n is not None:
        at_least("n", stats.n, 1)
    console = Console() if console is None else console
    batches, names = _open(stats)
    summary = Summary()
    with Count(console, stats.source) as count:
        for sample in batches:
            add(summary, sample)
            count.advance(len(sample))
    # Not as the title of the table, which would be wrapped at its width.
    said = f"{stats.source}: {summary.n} {'sample' if summary.n == 1 else 'samples'}"
    console.print(escape(said), style="italic", highlight=False, soft_wrap=True)
    console.print(_table(summary, names))
    return summary


def _open(stats: Stats) -> tuple[Iterator[Sample | VectorSample], Mapping[str, Sequence[str]]]:
    if stats.source in WORLDS:
        world = open_world(
            stats.source,
            seed=stats.seed,
            size=stats.size,
            device=stats.device,
            easy=stats.easy,
        )
        n = 1000 if stats.n is None else stats.n
        return _batches(world, n, stats.batch_size), classes_of_world(stats.source)
    if not Path(stats.source).exists():
        raise ValueError(
            f"{stats.source} is neither a world ({', '.join(WORLDS)}) nor a file that exists."
        )
    reader = HDF5Reader(stats.source, split="all")
    n = len(reader) if stats.n is None else min(stats.n, len(reader))
    if n == 0:
        raise ValueError(f"{stats.source} holds no samples, expected at least one.")
    # The world's names where it was exported, the dataset's if not.
    exported = "seed" in reader.settings
    names = classes_of_world(reader.source) if exported else classes_of_dataset(reader.source)
    return _batches(reader, n, stats.batch_size), names


def _batches(source: Any, n: int, size: int) -> Iterator[Sample | VectorSample]:
    for first in range(0, n, size):
        yield source.sample(range(first, min(first + size, n))).to("cpu")


def add(summary: Summary, sample: Sample | VectorSample) -> None:
    """Count a batch."""
    summary.n += len(sample)
    if isinstance(sample, VectorSample):
        summary.counts[sample.targets.shape[1]] += len(sample)
        summary.numbers.setdefault("targets", []).append(_array(sample.targets).ravel())
        return
    present = sample.present
    summary.counts.update(present.sum(-1).flatten().tolist())
    summary.colour += _array(sample.image.to(torch.float64).mean((-2, -1))).reshape(-1, 3).sum(0)
    number = torch.arange(1, present.shape[-1] + 1)[:, None, None]
    frames = sample.mask.flatten(0, -3)
    seen = torch.stack([(frame == number).sum((-2, -1)) for frame in frames])
    summary.visible.append(seen.reshape(present.shape)[present].numpy())
    for name, column in sample.objects.items():
        real = _real_objects(column, present)
        # Visible pixels are already counted on the masks.
        if real is None or name == "visible":
            continue
        if column.is_floating_point():
            for part, values in _parts(name, column[real]):
                summary.numbers.setdefault(part, []).append(_array(values))
        elif column.ndim == real.ndim:
            counter = summary.classes.setdefault(name, Counter())
            counter.update(column[real].to(torch.int64).tolist())


def _real_objects(column: Tensor, present: Tensor) -> Tensor | None:
    """Which entries of a column are real; None where the column is no list of objects."""
    if column.shape[: present.ndim] == present.shape:
        return present
    ever = present.any(1) if present.ndim == 3 else present
    return ever if column.shape[:2] == ever.shape else None


def _parts(name: str, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Split a column of vectors into columns of numbers."""
    if values.ndim == 1:
        yield name, values
    elif values.ndim == 2 and values.shape[1] <= 4:
        letters = "RGBA" if name.startswith("colo") else "xyzw"
        yield from ((f"{name} {letters[k]}", values[:, k]) for k in range(values.shape[1]))


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.to(torch.float64).numpy()


def _table(summary: Summary, names: Mapping[str, Sequence[str]]) -> Table:
    table = Table(width=78)
    table.add_column("what", no_wrap=True)
    table.add_column("values")
    table.add_column("mean", justify="right", no_wrap=True)
    counts = summary.counts
    total = sum(counts.values())
    mean = sum(k * v for k, v in counts.items()) / total
    table.add_row("objects", _shares({str(k): counts[k] for k in sorted(counts)}), f"{mean:.2f}")
    for name, counter in summary.classes.items():
        if len(counter) > 20:
            values = np.repeat(list(counter), list(counter.values())).astype(np.float64)
            table.add_row(name, _histogram(values), f"{values.mean():.4g}")
            continue
        shown = {_name(names.get(name, ()), k): counter[k] for k in sorted(counter)}
        table.add_row(name, _shares(shown), "")
    for name, parts in summary.numbers.items():
        values = np.concatenate(parts)
        if len(values):
            table.add_row(name, _histogram(values), f"{values.mean():.3f}")
    if summary.visible:
        pixels = np.concatenate(summary.visible).astype(np.float64)
        # None where there are no masks.
        if pixels.any():
            table.add_row("pixels seen", _histogram(pixels), f"{pixels.mean():.1f}")
        red, green, blue = summary.colour / total
        table.add_row("mean colour", "RGB of 255", f"{red:.0f} {green:.0f} {blue:.0f}")
    return table


def _name(names: Sequence[str], k: int) -> str:
    return names[k] if 0 <= k < len(names) else str(k)


def _shares(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    return ", ".join(f"{name} {100 * count / total:.1f}%" for name, count in counts.items())


def _histogram(values: NDArray[np.float64]) -> str:
    """A small picture of a distribution between its ends."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        return f"{low:.4g}"
    heights = np.histogram(values, bins=_BINS)[0]
    scaled = np.ceil(heights / heights.max() * (len(_BARS) - 1)).astype(int)
    return f"{low:.4g} {''.join(_BARS[k] for k in scaled)} {high:.4g}"
