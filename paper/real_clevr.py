"""``python -m paper real-clevr``: test models trained on the procedural world on real images."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.training.evaluate import Evaluate, place_of, run_evaluate
from slotmesh.training.export import weights_name
from slotmesh.training.runs import Run, open_run

TASK = "clevr-properties"
DATASET = {"dataset": "CLEVR v1.0", "licence": "CC BY 4.0"}
FOLDER = Path("results/real-clevr")


@dataclass(frozen=True)
class RealClevr:
    """Test the models of Table 2, trained on the world, on real images of CLEVR v1.0."""

    root: Path
    """Folder of the dataset; an incomplete copy with any labelled split is enough."""
    variants: tuple[str, ...] = ("SA", "SA-MESH")
    """Variants whose weights are tested."""
    n: int = 15_000
    """Maximum number of images; the first ones are used."""
    checkpoints: Path = Path("checkpoints")
    """Folder with the weights of `python -m paper table2`."""
    out: Path = FOLDER
    """Folder for the results, VARIANT.json."""
    device: str = "auto"
    """cpu, cuda, or auto."""


def weights_from_the_world(task: str, variants: Sequence[str], checkpoints: Path) -> list[Run]:
    """Open the exported weights of a task that saw the procedural world alone.

    Raises:
        ValueError: If weights are missing, of another task, or trained on the real dataset.
    """
    runs = [open_run(checkpoints / weights_name(task, variant)) for variant in variants]
    for run in runs:
        if run.settings.task != task or run.settings.data.root is not None:
            raise ValueError(
                f"{run.folder} holds a model of {run.settings.task} that was trained on "
                f"{run.settings.data.root or 'the world'}, expected one of {task} that was trained "
                "on the world. Choose another folder with --checkpoints."
            )
    return runs


def run_real(settings: RealClevr, console: Console | None = None) -> list[dict[str, Any]]:
    """Test the models and write one JSON file per variant.

    Raises:
        ValueError: If weights or images are missing, or the weights were trained on real images.
    """
    console = Console() if console is None else console
    runs = weights_from_the_world(TASK, settings.variants, settings.checkpoints)
    asked = Evaluate(Path(), n=settings.n, root=settings.root, partial=True, device=settings.device)
    made: list[dict[str, Any]] = []
    for variant, run in zip(settings.variants, runs, strict=True):
        with tempfile.TemporaryDirectory() as place:
            found = run_evaluate(
                replace(asked, run=run.folder, out=Path(place)), Console(quiet=True)
            )
        s = run.settings
        record = {
            "variant": variant,
            "seed": s.seed,
            "steps": s.steps,
            **DATASET,
            "split": found["split"],
            "n": found["n"],
            "metrics": found["metrics"],
            "blind": found["blind"]["metrics"],
            "command": f"python -m paper real-clevr --root CLEVR_v1.0 --variants {variant}",
            "environment": environment(place_of(settings.device)),
        }
        path = settings.out / f"{variant}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(record, indent=2) + "\n")
        said = f"{variant} on {found['n']} real images of {found['split']}: written to {path}"
        console.print(escape(said), highlight=False, soft_wrap=True)
        made.append(record)
    return made
