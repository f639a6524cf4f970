"""``python -m paper real-clevrer``: models trained on the procedural world, on real videos."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from paper.real_clevr import weights_from_the_world
from paper.tables.pictures import below, write_png
from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.readers import ClevrerReader
from slotmesh.training.places import place_of
from slotmesh.training.settings import at_least

DATASET = {"dataset": "CLEVRER", "licence": "CC0"}
FOLDER = Path("results/real-clevrer")
MERGE = 0.05
"""Slots whose pictures differ by at most this are shown as one."""


@dataclass(frozen=True)
class RealClevrer:
    """Draw what the models of Table 5, trained on the world, find in real videos."""

    root: Path
    """Folder of the dataset; an incomplete copy of training and validation videos is enough."""
    task: str = "clevrer-s"
    """clevrer-s or clevrer-l: frames a short or a long time apart."""
    variants: tuple[str, ...] = ("SA", "SA-MESH")
    """Variants whose weights are shown."""
    n: int = 4
    """Maximum number of videos; the first ones are used."""
    checkpoints: Path = Path("checkpoints")
    """Folder with the weights of `python -m paper table5`."""
    out: Path = FOLDER
    """Folder for VARIANT.png and VARIANT.json."""
    device: str = "auto"
    """cpu, cuda, or auto."""


def run_real_videos(settings: RealClevrer, console: Console | None = None) -> list[dict[str, Any]]:
    """Write a picture and a JSON file per variant.

    A row of the picture is a frame: the frame, its segments, and what each slot shows of it. The
    real videos come without masks, so nothing is measured.

    Raises:
        ValueError: If weights or videos are missing, or the weights were trained on real videos.
    """
    console = Console() if console is None else console
    at_least("n", settings.n, 1)
    runs = weights_from_the_world(settings.task, settings.variants, settings.checkpoints)
    device = place_of(settings.device)
    made: list[dict[str, Any]] = []
    for variant, run in zip(settings.variants, runs, strict=True):
        task: Any = run.experiment
        reader = ClevrerReader(
            settings.root, range(15_000), frames=task.frames, size=None, partial=True
        )
        n = min(settings.n, len(reader))
        model: Any = run.load_model(device)
        # Several slots share the background; shown as one, what they found is easier to see.
        pictures = [
            model.segment(video, seed=0, merge=MERGE).picture()
            for video in reader.sample(range(n)).image
        ]
        s = run.settings
        record = {
            "variant": variant,
            "task": settings.task,
            "seed": s.seed,
            "steps": s.steps,
            **DATASET,
            "n": n,
            "frames": list(task.frames),
            "merge": MERGE,
            "command": f"python -m paper real-clevrer --root CLEVRER --task {settings.task} "
            f"--variants {variant}",
            "environment": environment(device),
        }
        write_png(settings.out / f"{variant}.png", below(pictures, gap=12))
        write_whole(settings.out / f"{variant}.json", json.dumps(record, indent=2) + "\n")
        said = f"{variant} on {n} real videos: {settings.out / variant}.png"
        console.print(escape(said), highlight=False, soft_wrap=True)
        made.append(record)
    return made
