"""``slotmesh score``: how well the masks of any model agree with the truth."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slotmesh.files import write_whole
from slotmesh.metrics import ari, fg_ari, fg_miou, mbo, miou
from slotmesh.progress import Count
from slotmesh.readers import BadRecord
from slotmesh.readers.listing import describe, find_files
from slotmesh.readers.photos import load_codes
from slotmesh.training.evaluate import strict

METRICS = {"fg_ari": fg_ari, "ari": ari, "mbo": mbo, "miou": miou, "fg_miou": fg_miou}
"""The metrics, by their names in the JSON file."""
_NAMES = {"fg_ari": "FG-ARI", "ari": "ARI", "mbo": "mBO", "miou": "mIoU", "fg_miou": "FG-mIoU"}
_ENDINGS = (".png", ".npy")
_MASK = "-mask"
# Far more labels than any mask has, and far fewer colours than a photograph.
_MOST_LABELS = 1024


@dataclass(frozen=True)
class Score:
    """Compare two folders of masks: FG-ARI, ARI, mBO, mIoU and FG-mIoU."""

    pred: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="PRED")]
    """Folder of predicted masks, PNG (indexed, grey or coloured) or .npy; every value or colour is
    a segment. It may be the output of `slotmesh segment`: pixels that the model did not see are
    ignored."""
    truth: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="TRUTH")]
    """Folder of true masks with the same names; 0 or black is the background."""
    void: int | None = None
    """Value in the true masks of pixels to ignore, such as 255 in PASCAL VOC; for coloured masks,
    65536 R + 256 G + B."""
    out: Path | None = None
    """JSON file for the results, including those of every image."""


def run_score(settings: Score, console: Console | None = None) -> dict[str, Any]:
    """Measure, print the table, and write the file.

    Raises:
        ValueError: If a folder has no masks, a mask has no counterpart, or two differ in size.
    """
    console = Console() if console is None else console
    if settings.out is not None and settings.out.is_dir():
        raise ValueError(f"--out is {settings.out}, which is a folder; expected a file.")
    pairs = _pairs(settings.pred, settings.truth)
    images: dict[str, dict[str, float]] = {}
    with Count(console, "scoring", len(pairs)) as count:
        for name, pair in pairs.items():
            images[name] = _measure(*pair, settings.void)
            count.advance()
    found = {
        "pred": str(settings.pred),
        "truth": str(settings.truth),
        "void": settings.void,
        "n": len(images),
        "metrics": {name: _mean([one[name] for one in images.values()]) for name in METRICS},
        "undefined": {
            name: sum(one[name] != one[name] for one in images.values()) for name in METRICS
        },
        "images": images,
    }
    console.print(_table(found))
    if settings.out is not None:
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(settings.out, json.dumps(strict(found), indent=2) + "\n")
        said = f"Written: [bold]{escape(str(settings.out))}[/bold]"
        console.print(said, highlight=False, soft_wrap=True)
    return found


def score_masks(
    predicted: NDArray[Any], truth: NDArray[Any], void: int | None = None
) -> dict[str, float]:
    """Compute all metrics of one image; NaN where a metric is undefined.

    Args:
        predicted: Integers ``(H, W)``; every value is a segment.
        truth: Integers ``(H, W)``; 0 is the background, every other value an object.
        void: Value in ``truth`` of pixels that do not count.

    Example:
        >>> import numpy as np
        >>> from slotmesh.training.score import score_masks
        >>> truth = np.array([[0, 0, 7, 7], [255, 9, 9, 9]])
        >>> found = score_masks(np.array([[5, 5, 1, 1], [1, 2, 2, 2]]), truth, void=255)
        >>> found["ari"], found["fg_ari"], found["mbo"]
        (1.0, 1.0, 1.0)
    """
    keep = np.ones(truth.shape, dtype=bool) if void is None else truth != void
    segments, slot = np.unique(predicted[keep], return_inverse=True)
    labels = np.unique(truth[keep])
    objects = labels[labels != 0]
    label = np.where(truth[keep] == 0, 0, 1 + np.searchsorted(objects, truth[keep]))
    sizes = {"n_slots": max(1, len(segments)), "n_objects": max(1, len(objects))}
    # As one row of pixels: their positions do not matter.
    rows = (slot.reshape(1, -1), label.reshape(1, -1))
    return {name: float(metric(*rows, **sizes)) for name, metric in METRICS.items()}


def _pairs(pred: Path, truth: Path) -> dict[str, tuple[Path, Path]]:
    """Pair the masks of each image by name."""
    mine, theirs = _masks(pred), _masks(truth)
    for have, lack, of, where in (
        (mine, theirs, "a prediction without its truth", truth),
        (theirs, mine, "a true mask without its prediction", pred),
    ):
        alone = sorted(set(have) - set(lack))
        if alone:
            more = f", and {len(alone) - 1} others" if len(alone) > 1 else ""
            reason = f"it is {of}: {where} has no {alone[0]}.png or .npy{more}"
            raise BadRecord(have[alone[0]], None, reason)
    return {name: (mine[name], theirs[name]) for name in sorted(mine)}


def _masks(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {what}, expected a folder of masks.")
    names = find_files(folder, _ENDINGS, written=True)
    if not names:
        raise ValueError(f"{folder} has no masks, PNG or .npy: {describe(folder)}.")
    stems = [(name.rpartition(".")[0], name) for name in names]
    if any(stem.endswith(_MASK) for stem, _ in stems):
        # What `slotmesh segment` wrote: overlays are not masks.
        stems = [(s.removesuffix(_MASK), name) for s, name in stems if s.endswith(_MASK)]
    found: dict[str, Path] = {}
    for stem, name in stems:
        if stem in found:
            reason = f"{found[stem].name} is a mask of the same image, expected one"
            raise BadRecord(folder / name, None, reason)
        found[stem] = folder / name
    return found


def _measure(pred: Path, truth: Path, void: int | None) -> dict[str, float]:
    predicted, true = load_codes(pred), load_codes(truth)
    if predicted.shape != true.shape:
        mine, theirs = (f"{x.shape[1]} x {x.shape[0]}" for x in (predicted, true))
        reason = (
            f"it has {mine} pixels, and {truth} {theirs}, expected the same. Make a mask of the "
            "whole image: a crop that is resized does not fit any more"
        )
        raise BadRecord(pred, None, reason)
    for path, codes in ((pred, predicted), (truth, true)):
        n = len(np.unique(codes))
        if n > _MOST_LABELS:
            reason = f"it has {n} different values, expected a mask of at most {_MOST_LABELS}"
            raise BadRecord(path, None, reason)
    hole = _hole(pred)
    if hole is not None:
        seen = predicted != hole
        predicted, true = predicted[seen][None], true[seen][None]
    return score_masks(predicted, true, void)


def _hole(path: Path) -> int | None:
    """The value of pixels that ``slotmesh segment`` did not see, which is transparent."""
    if not path.name.endswith(f"{_MASK}.png"):
        return None
    with Image.open(path) as image:
        found = image.info.get("transparency") if image.mode == "P" else None
    return found if isinstance(found, int) else None


def _mean(values: list[float]) -> float:
    defined = [value for value in values if value == value]
    return float(np.mean(defined)) if defined else float("nan")


def _table(found: dict[str, Any]) -> Table:
    title = f"{found['n']} {'image' if found['n'] == 1 else 'images'}"
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("mean, %", justify="right")
    if any(found["undefined"].values()):
        table.add_column("", style="dim")
    for name, value in found["metrics"].items():
        n = found["undefined"][name]
        shown = f"{100 * value:.2f}" if value == value else "undefined"
        table.add_row(_NAMES[name], shown, *([f"undefined for {n}"] if n else []))
    return table
