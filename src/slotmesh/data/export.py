"""``slotmesh data export``: samples of a world as an HDF5 file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.markup import escape

from slotmesh.data._source import WorldName, open_world, settings_of
from slotmesh.progress import Count
from slotmesh.readers.hdf5_writer import Written, write_hdf5
from slotmesh.training.settings import at_least
from slotmesh.worlds import Sample, VectorSample


@dataclass(frozen=True)
class Export:
    """Write samples of a world to an HDF5 file; repeat the command to resume."""

    world: tyro.conf.Positional[WorldName]
    """Which world."""
    n: int
    """Number of samples."""
    out: Path
    """The file to write. Until it is complete, the data are in a folder OUT.part."""
    start: int = 0
    """Index of the first sample."""
    seed: int = 0
    """Seed of the world."""
    size: int | None = None
    """Width and height of the images; the world's own by default."""
    easy: bool = False
    """Use the easy version of the world: a few large objects in clear colours."""
    batch_size: int = 64
    """Samples per batch."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    overwrite: bool = False
    """Replace the file if it exists."""


def run_export(export: Export, console: Console | None = None) -> Written:
    """Write the file and report its content."""
    at_least("n", export.n, 1)
    at_least("start", export.start, 0)
    at_least("batch_size", export.batch_size, 1)
    console = Console() if console is None else console
    world = open_world(
        export.world,
        seed=export.seed,
        size=export.size,
        device=export.device,
        easy=export.easy,
    )
    stop = export.start + export.n

    def records(done: int) -> Iterator[Sample | VectorSample]:
        for first in range(export.start + done, stop, export.batch_size):
            yield world.sample(range(first, min(first + export.batch_size, stop)))

    with Count(console, export.world, export.n, transient=False) as count:
        written = write_hdf5(
            export.out,
            records,
            n=export.n,
            source=export.world,
            settings=settings_of(world) | {"start": export.start},
            overwrite=export.overwrite,
            on_progress=count.update,
        )
    megabytes = written.path.stat().st_size / 1e6
    console.print(
        f"Wrote [bold]{escape(str(written.path))}[/bold]: {written.n} samples, {megabytes:.1f} MB",
        soft_wrap=True,
    )
    return written
