"""``python -m paper real-clevrer``: models trained on the procedural world, on real videos."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from paper.real_clevr import weights_from_the_world
from paper.tables.pictures import write_png
from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.models import to_unit
from slotmesh.readers import ClevrerReader
from slotmesh.report.pictures import discovery_blocks, draw_blocks
from slotmesh.training.places import place_of

DATASET = {"dataset": "CLEVRER", "licence": "CC0"}
FOLDER = Path("results/real-clevrer")


@dataclass(frozen=True)
class RealClevrer:
    """Show what the models of Table 5, trained on the world, make of real videos of CLEVRER."""

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


@torch.inference_mode()
def run_real_videos(settings: RealClevrer, console: Console | None = None) -> list[dict[str, Any]]:
    """Write a picture and a JSON file per variant: all videos, and the error of their pixels.

    The real videos come without masks, so nothing else is measured.

    Raises:
        ValueError: If weights or videos are missing, or the weights were trained on real videos.
    """
    console = Console() if console is None else console
    runs = weights_from_the_world(settings.task, settings.variants, settings.checkpoints)
    device = place_of(settings.device)
    made: list[dict[str, Any]] = []
    for variant, run in zip(settings.variants, runs, strict=True):
        task: Any = run.experiment
        s = run.settings
        reader = ClevrerReader(
            settings.root, range(15_000), frames=task.frames, size=s.data.size, partial=True
        )
        shown = list(range(min(settings.n, len(reader))))
        video = reader.sample(shown).to(device).image
        model: Any = run.load_model(device)
        # One at a time: what a model sees of a video does not depend on the others.
        found = [model(one.unsqueeze(0), seed=0) for one in video]
        errors = [
            (out.reconstruction - to_unit(one)).square().mean().item()
            for out, one in zip(found, video, strict=True)
        ]
        grid = model.encoder.out_grid
        blocks = [
            block
            for out, one in zip(found, video, strict=True)
            for block in discovery_blocks(one.unsqueeze(0), out, grid)
        ]
        record = {
            "variant": variant,
            "task": settings.task,
            "seed": s.seed,
            "steps": s.steps,
            **DATASET,
            "n": len(shown),
            "frames": list(task.frames),
            "loss": sum(errors) / len(errors),
            "command": f"python -m paper real-clevrer --root CLEVRER --variants {variant}",
            "environment": environment(device),
        }
        write_png(settings.out / f"{variant}.png", draw_blocks(blocks))
        write_whole(settings.out / f"{variant}.json", json.dumps(record, indent=2) + "\n")
        said = f"{variant} on {len(shown)} real videos: {settings.out / variant}.png"
        console.print(escape(said), highlight=False, soft_wrap=True)
        made.append(record)
    return made
