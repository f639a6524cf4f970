"""``slotmesh data preview``: a picture sheet of a world."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.markup import escape

from slotmesh.data._source import WorldName, classes_of_world, open_world
from slotmesh.report.sheet import write_sheet
from slotmesh.training.settings import at_least


@dataclass(frozen=True)
class Preview:
    """Draw samples of a world as a PNG sheet: images, masks and object labels."""

    world: tyro.conf.Positional[WorldName]
    """Which world."""
    out: Path = Path("preview.png")
    """The file to write; an existing one is replaced."""
    n: int = 16
    """Number of samples."""
    start: int = 0
    """Index of the first sample."""
    seed: int = 0
    """Seed of the world."""
    size: int | None = None
    """Width and height of the images; the world's own by default."""
    easy: bool = False
    """Use the easy version of the world: a few large objects in clear colours."""
    device: str = "auto"
    """cpu, cuda, or auto."""


def run_preview(preview: Preview, console: Console | None = None) -> Path:
    """Write the sheet and return its path."""
    at_least("n", preview.n, 1)
    at_least("start", preview.start, 0)
    console = Console() if console is None else console
    world = open_world(
        preview.world,
        seed=preview.seed,
        size=preview.size,
        device=preview.device,
        easy=preview.easy,
    )
    sample = world.sample(range(preview.start, preview.start + preview.n))
    title = f"{preview.world}{', easy' if preview.easy else ''}, seed {preview.seed}"
    write_sheet(sample, preview.out, title=title, classes=classes_of_world(preview.world))
    said = f"Sheet: [bold]{escape(str(preview.out))}[/bold]"
    console.print(said, highlight=False, soft_wrap=True)
    return preview.out
