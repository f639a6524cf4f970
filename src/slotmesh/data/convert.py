"""``slotmesh data convert``: a real dataset as one HDF5 file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.markup import escape

from slotmesh.data._source import DatasetName
from slotmesh.progress import Count
from slotmesh.readers import BadRecord, open_reader
from slotmesh.readers.hdf5_layout import Skipped
from slotmesh.readers.hdf5_writer import Written, write_hdf5
from slotmesh.worlds import Sample

# The file holds the whole list.
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Convert:
    """Write a real dataset to one HDF5 file; repeat the command to resume."""

    dataset: tyro.conf.Positional[DatasetName]
    """Which dataset; hdf5 is a file of the MESH authors, or one that slotmesh wrote."""
    root: Path
    """Folder or file of the dataset."""
    out: Path
    """The file to write. Until it is complete, the data are in a folder OUT.part."""
    split: str | None = None
    """Which split. By default the training split, or everything in an HDF5 file or in your own
    folder of images or videos. An unknown split is an error that lists those of the dataset."""
    size: int | None = None
    """Width and height of the images; by default, as in the paper."""
    frames: tuple[int, ...] | None = None
    """CLEVRER: which frames, starting at 0; 0 16 by default."""
    variant: str | None = None
    """Multi-dSprites and ClevrTex: which variant."""
    partial: bool = False
    """Accept an incomplete copy of the dataset."""
    skip_bad: bool = False
    """Skip records that cannot be read, and list them, instead of stopping at the first."""
    overwrite: bool = False
    """Replace the file if it exists."""


def run_convert(convert: Convert, console: Console | None = None) -> Written:
    """Write the file and report its content and what was left out."""
    console = Console() if console is None else console
    given = {
        "split": convert.split,
        "size": convert.size,
        "frames": convert.frames,
        "variant": convert.variant,
        "partial": convert.partial or None,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if convert.dataset in ("images", "videos"):
        # These are divided into splits when they are read, and so is the file.
        options.setdefault("split", "all")
    reader = open_reader(convert.dataset, convert.root, **options)

    def records(done: int) -> Iterator[Sample | Skipped]:
        for number, record in enumerate(reader.records(done), done):
            if not isinstance(record, BadRecord):
                yield record
            elif convert.skip_bad:
                yield Skipped(number, " ".join(str(record).split()))
            else:
                raise record

    n = len(reader)
    with Count(console, convert.dataset, n, transient=False) as count:
        written = write_hdf5(
            convert.out,
            records,
            n=n,
            source=convert.dataset,
            # The folder's name, not its path: the file may be shared.
            settings=json.loads(json.dumps(options))
            | {"root": convert.root.resolve().name}
            | ({} if reader.has_masks else {"has_masks": False}),
            overwrite=convert.overwrite,
            on_progress=count.update,
        )
    megabytes = written.path.stat().st_size / 1e6
    console.print(
        f"Wrote [bold]{escape(str(written.path))}[/bold]: {written.n} samples, {megabytes:.1f} MB",
        soft_wrap=True,
    )
    if written.skipped:
        console.print(f"Skipped {len(written.skipped)} records that could not be read:")
        for bad in written.skipped[:_MOST_SHOWN]:
            console.print(f"  {bad.index}: {escape(bad.reason)}", highlight=False, soft_wrap=True)
        if len(written.skipped) > _MOST_SHOWN:
            console.print(f"  and {len(written.skipped) - _MOST_SHOWN} more: see skipped/ in it")
    return written
