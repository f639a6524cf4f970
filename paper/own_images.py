"""``python -m paper own-images``: what ``slotmesh train images`` finds in folders of plain objects.

Each folder has 200 images with masks, drawn here. Tested on its held-out images: the weights that
come with slotmesh as they are, the default of ``slotmesh train images``, which adapts them, and the
same training from scratch. Where these weights fail, others are adapted as well.
"""

import colorsys
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from rich.console import Console

from paper.recorded import command_of
from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.training.evaluate import evaluate_run, strict
from slotmesh.training.loop import run_train
from slotmesh.training.places import place_of
from slotmesh.training.runs import open_run
from slotmesh.training.settings import at_least
from slotmesh.training.tasks import experiment, preset
from slotmesh.training.weights import locate
from slotmesh.worlds import make_world

KINDS = ("plain", "grey", "table", "colour", "clevr")
"""Folders: shapes on a cream background, on a random grey, on a shaded and noisy one, on a random
colour; CLEVR's world."""
_SIDE = 96
_COLOURS = (
    (220, 60, 60),
    (60, 160, 70),
    (60, 90, 210),
    (230, 190, 50),
    (160, 70, 190),
    (60, 190, 200),
)
_WAYS = ("as they are", "adapted", "from scratch")
_OTHER = "adapted from clevrtex"
_SCRATCH: dict[str, Any] = {"start": None}
_CLEVRTEX: dict[str, Any] = {
    "start": "clevrtex-sa-mesh",
    "channels": 64,
    "slot_dim": 128,
    "mlp_dim": 256,
}
"""Weights that know backgrounds of all colours, and the sizes of their network."""


@dataclass(frozen=True)
class OwnImagesStudy:
    """Measure what `slotmesh train images` finds in folders of plain objects."""

    kinds: tuple[str, ...] = KINDS
    """Folders to measure."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run per seed that adapts the weights; the first also trains from scratch."""
    images: int = 200
    """Images per folder; about a tenth of them are for validation, and a tenth for testing."""
    steps: int | None = None
    """Training steps; by default, those of `slotmesh train images`."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    runs: Path = Path("runs/own-images-study")
    """Folder for the images and the runs. The same command resumes from it."""
    out: Path = Path("results/own-images.json")
    """The result. Folders that are in it and not measured now stay."""


def run_own_images(asked: OwnImagesStudy, console: Console | None = None) -> dict[str, Any]:
    """Draw the folders, train, test, and write the result.

    Raises:
        ValueError: If a setting is wrong.
        SystemExit: If it was asked to stop during training; the same command resumes.
    """
    console = Console() if console is None else console
    at_least("images", asked.images, 30)
    for kind in asked.kinds:
        if kind not in KINDS:
            raise ValueError(f"--kinds has {kind!r}, expected some of: {', '.join(KINDS)}.")
    found = _measured(asked.out)
    for kind in asked.kinds:
        root = asked.runs / kind
        if not root.is_dir():
            draw(kind, root, asked.images)
        found[kind] = {
            "command": command_of("own-images", asked, {}),
            "environment": environment(place_of(asked.device)),
            "images": asked.images,
            _WAYS[0]: [_as_they_are(asked, root)],
            _WAYS[1]: [_trained(asked, root, seed, console) for seed in asked.seeds],
            _WAYS[2]: [_trained(asked, root, asked.seeds[0], console, "scratch-", _SCRATCH)],
        }
        if kind == "colour":
            found[kind][_OTHER] = [
                _trained(asked, root, seed, console, "clevrtex-", _CLEVRTEX) for seed in asked.seeds
            ]
    result = {"folders": {kind: found[kind] for kind in KINDS if kind in found}}
    write_whole(asked.out, json.dumps(result, indent=2) + "\n")
    console.print(f"Written: {asked.out}", markup=False, highlight=False)
    return result


def _measured(out: Path) -> dict[str, Any]:
    """Return the folders that a result holds."""
    if not out.is_file():
        return {}
    try:
        return dict(json.loads(out.read_text(encoding="utf-8"))["folders"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--out is {out}, which is no result of this study. Choose another file, or remove it."
        ) from error


def draw(kind: str, root: Path, n: int) -> None:
    """Write n images of a kind, and their masks, into a folder."""
    (root / "masks").mkdir(parents=True)
    if kind == "clevr":
        sample: Any = make_world("clevr", seed=11, size=_SIDE).sample(range(n))
        pictures = [image.movedim(0, -1).numpy() for image in sample.image]
        masks = [mask.numpy().astype(np.uint8) for mask in sample.mask]
    else:
        rng = np.random.default_rng(KINDS.index(kind))
        pictures, masks = zip(*(_shapes(kind, rng) for _ in range(n)), strict=True)
    for i, (picture, mask) in enumerate(zip(pictures, masks, strict=True)):
        Image.fromarray(picture).save(root / f"{i:04d}.png")
        Image.fromarray(mask).save(root / "masks" / f"{i:04d}.png")


def _shapes(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two to four discs, squares and triangles that do not touch."""
    ground = np.full((_SIDE, _SIDE, 3), (235.0, 230.0, 220.0))
    if kind == "grey":
        ground[:] = rng.integers(40, 215)
    elif kind == "colour":
        hsv = rng.random(), rng.uniform(0.4, 0.9), rng.uniform(0.35, 0.95)
        ground[:] = 255 * np.array(colorsys.hsv_to_rgb(*hsv))
    elif kind == "table":
        ground = np.linspace(90, 190, _SIDE)[:, None, None] * np.array([1.0, 0.93, 0.85])
        ground = ground + rng.normal(0, 6, (_SIDE, _SIDE, 3))
    image = Image.fromarray(ground.clip(0, 255).astype(np.uint8))
    mask = Image.new("L", image.size)
    wanted, placed = int(rng.integers(2, 5)), []
    while len(placed) < wanted:
        r = int(rng.integers(_SIDE // 10, _SIDE // 6))
        x, y = (int(v) for v in rng.integers(r, _SIDE - r, 2))
        if any((x - a) ** 2 + (y - b) ** 2 < (1.1 * (r + c)) ** 2 for a, b, c in placed):
            continue
        placed.append((x, y, r))
        shade = np.array(_COLOURS[rng.integers(len(_COLOURS))]) + rng.integers(-15, 16, 3)
        colour = tuple(int(v) for v in shade.clip(0, 255))
        form = int(rng.integers(3))
        for target, fill in ((image, colour), (mask, len(placed))):
            pen, box = ImageDraw.Draw(target), (x - r, y - r, x + r, y + r)
            if form == 0:
                pen.ellipse(box, fill=fill)
            elif form == 1:
                pen.rectangle(box, fill=fill)
            else:
                pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=fill)
    return np.asarray(image), np.asarray(mask)


def _settings(
    asked: OwnImagesStudy,
    root: Path,
    seed: int = 0,
    name: str = "",
    model: dict[str, Any] | None = None,
) -> Any:
    settings: Any = preset("images", "SA-MESH", "quick", root=root)
    changes: dict[str, Any] = {
        "seed": seed,
        "out": asked.runs / f"{root.name}-{name}{seed}",
        "data": replace(settings.data, root=root),
        "hardware": replace(settings.hardware, accelerator=_accelerator(asked)),
    }
    if asked.steps is not None:
        changes |= {"steps": asked.steps, "val_every": asked.steps, "save_every": asked.steps}
    if model is not None:
        changes["model"] = replace(settings.model, **model)
    return replace(settings, **changes)


def _accelerator(asked: OwnImagesStudy) -> str:
    return "cpu" if place_of(asked.device).type == "cpu" else "gpu"


def _as_they_are(asked: OwnImagesStudy, root: Path) -> dict[str, Any]:
    settings = _settings(asked, root)
    weights = open_run(locate(settings.model.start))
    run = replace(weights, experiment=experiment(settings))
    return _tested(evaluate_run(run, device=asked.device, usage=False))


def _trained(
    asked: OwnImagesStudy,
    root: Path,
    seed: int,
    console: Console,
    name: str = "",
    model: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train with other settings of the model, if given, in a folder with ``name``, and test."""
    run = run_train(_settings(asked, root, seed, name, model), console)
    found = _tested(evaluate_run(run, device=asked.device, usage=False))
    return {"seed": seed, "steps": run.settings.steps, **found}


def _tested(found: dict[str, Any]) -> dict[str, Any]:
    found = strict(found)
    return {"n": found["n"], "metrics": found["metrics"], "blind": found["blind"]["metrics"]}
