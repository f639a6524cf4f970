"""SA and SA-MESH with shipped weights, on scenes that neither was trained on."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from slotmesh.report.mosaic import Mosaic
from slotmesh.report.side_by_side import SegmentedScene, side_by_side
from slotmesh.training.evaluate import evaluate_run
from slotmesh.training.export import weights_name
from slotmesh.training.published import published_rows
from slotmesh.training.reading import Columns, read_csv
from slotmesh.training.report.collect import Found
from slotmesh.training.report.samples import SamplePainter
from slotmesh.training.runs import Run, open_run
from slotmesh.training.tasks import experiment
from slotmesh.training.weights import find
from slotmesh.training.weights import names as names_here

VARIANTS = ("SA", "SA-MESH")
SCENES = 64
"""Number of scenes that both models are measured on."""
SHOWN = 4
"""Number of scenes that are drawn, the first ones."""
HOW = (
    "There are no trained weights in checkpoints/ here to find objects with: `python -m paper "
    "table3` trains them, which takes a GPU. If they are elsewhere, pass --checkpoints."
)
"""What to do if weights are missing."""

_HERE = Path("checkpoints")
# The world's seeds of training, validation and test are far below.
_FRESH = 1_000
_BATCH = 16


@dataclass(frozen=True)
class Weights:
    """The objects that a model found in the scenes."""

    variant: str
    found: Found
    by_scene: Columns
    seconds: float

    @property
    def settings(self) -> Any:
        """Settings of the run that the weights come from."""
        return self.found.settings

    @property
    def metrics(self) -> dict[str, float]:
        """Means of the metrics over all scenes."""
        assert self.found.evaluation is not None
        return self.found.evaluation["metrics"]

    def row(self) -> dict[str, Any]:
        """The row of the page's table."""
        [paper] = [r for r in published_rows() if (r.table, r.label) == ("Table 3", self.variant)]
        assert self.found.evaluation is not None
        return {
            "name": self.variant,
            "steps": self.settings.steps,
            "n": self.found.evaluation["n"],
            "seconds": self.seconds,
            "paper": {name: 100 * value for name, (value, _) in paper.results.items()},
            **{name: 100 * value for name, value in self.metrics.items()},
        }


def find_weights(folder: Path | None) -> list[Run]:
    """Find the weights of both variants; none if one is missing.

    Args:
        folder: Folder to search; None stands for ``checkpoints`` here, then the weights that come
            with slotmesh.

    Raises:
        ValueError: If a given folder does not contain both, or they are of another kind.
    """
    shipped = weights_name("multi-dsprites", VARIANTS[0])
    places = [_HERE, *([find(shipped).parent] if shipped in names_here() else [])]
    for place in places if folder is None else (folder,):
        names = {variant: place / weights_name("multi-dsprites", variant) for variant in VARIANTS}
        if all(path.is_dir() for path in names.values()):
            runs = [open_run(path) for path in names.values()]
            _check(runs)
            return runs
    if folder is not None:
        expected = " and ".join(weights_name("multi-dsprites", variant) for variant in VARIANTS)
        raise ValueError(f"--checkpoints is {folder}, expected a folder with {expected}.")
    return []


def _check(runs: list[Run]) -> None:
    for run, variant in zip(runs, VARIANTS, strict=True):
        kind = (run.settings.task, run.settings.variant)
        if kind != ("multi-dsprites", variant):
            raise ValueError(
                f"{run.folder} holds {' '.join(kind)}, expected multi-dsprites {variant}."
            )
    sizes = [(run.settings.data.size, run.settings.model.n_slots) for run in runs]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{runs[0].folder} and {runs[1].folder} have other image sizes and slots, {sizes[0]} "
            f"and {sizes[1]}, expected the same."
        )


def try_weights(run: Run, seed: int, out: Path, console: Console) -> Weights:
    """Measure weights on fresh scenes; the numbers by scene are written to ``out``."""
    began = time.perf_counter()
    data = run.settings.data
    seed += data.seed + _FRESH
    data = replace(data, root=None, seed=seed, test_size=SCENES, batch_size=_BATCH)
    run = replace(run, experiment=experiment(replace(run.settings, data=data), moved=True))
    where = out / run.settings.variant
    found = evaluate_run(run, out=where, device="cpu", console=console, usage=False)
    return Weights(
        run.settings.variant,
        Found(run.folder, run, whole=True, row=None, evaluation=found),
        read_csv(where / "evaluation.csv"),
        time.perf_counter() - began,
    )


def scene_table(tried: list[Weights]) -> Table:
    """The metrics of both, for the terminal."""
    title = f"Objects found in {SCENES} fresh scenes of Multi-dSprites"
    table = Table(title=title, title_justify="left")
    for name in ("variant", "FG-ARI, %", "FG-mIoU, %", "run of", "time"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for one in tried:
        table.add_row(
            one.variant,
            f"{100 * one.metrics['fg_ari']:.1f}",
            f"{100 * one.metrics['fg_miou']:.1f}",
            f"{one.settings.steps:,} steps",
            f"{one.seconds:.0f} s",
            style="bold" if one.variant == "SA-MESH" else None,
        )
    return table


@torch.inference_mode()
def draw_scenes(tried: list[Weights]) -> list[Mosaic]:
    """The first scenes, as both models were measured on them."""
    painters = {one.variant: SamplePainter(one.found, "cpu") for one in tried}
    notes = {one.variant: _notes(one) for one in tried}
    scenes: list[SegmentedScene] = []
    for i in range(SHOWN):
        sample = painters[tried[0].variant].source.sample([i])
        masks = {
            name: painter.model(sample.image, generator=painter.noise(i)).masks[0]
            for name, painter in painters.items()
        }
        said = {name: notes[name][i] for name in painters}
        scenes.append(SegmentedScene(sample.image[0], sample.mask[0], masks, said))
    return [side_by_side(scene) for scene in scenes]


def best_row(tried: list[Weights]) -> str | None:
    """The variant with the highest FG-ARI, unless a fixed grid is as good."""
    if not tried:
        return None
    best = max(tried, key=lambda one: one.metrics["fg_ari"])
    assert best.found.evaluation is not None
    blind = best.found.evaluation["blind"]["metrics"]["fg_ari"]
    return best.variant if best.metrics["fg_ari"] > blind else None


def _notes(one: Weights) -> list[str]:
    pairs = zip(one.by_scene["fg_ari"], one.by_scene["fg_miou"], strict=True)
    return [f"FG-ARI {100 * ari:.0f} %, FG-mIoU {100 * miou:.0f} %" for ari, miou in pairs]
