"""``python -m paper surplus-slots``: more slots than objects, and what helps after training."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.metrics import ari, fg_ari, fg_miou, miou, slot_usage
from slotmesh.models import same_picture
from slotmesh.progress import Count
from slotmesh.training.export import weights_name
from slotmesh.training.places import place_of
from slotmesh.training.runs import open_run
from slotmesh.training.settings import at_least
from slotmesh.worlds import MultiDSprites

TASK = "multi-dsprites"
FILE = Path("results/surplus-slots.json")
METRICS = {"ari": ari, "fg_ari": fg_ari, "miou": miou, "fg_miou": fg_miou}
_BATCH = 16
_MAX_OBJECTS = 5


@dataclass(frozen=True)
class SurplusSlots:
    """Try to make one segment of a background that several slots share."""

    n: int = 128
    """Scenes of the world."""
    seed: int = 2001
    """Seed of the world, whose scenes are in no training, validation or test set."""
    slots: tuple[int, ...] = (6, 4)
    """Numbers of slots to try; the first is that of training."""
    merge: tuple[float, ...] = (0.02, 0.05, 0.1)
    """Tolerances for merging slots with the same picture."""
    prune: tuple[float, ...] = (0.02, 0.1)
    """Drop slots whose mean mask is below this."""
    checkpoints: Path = Path("checkpoints")
    """Folder with the weights of `python -m paper table3`."""
    out: Path = FILE
    """The results."""
    device: str = "auto"
    """cpu, cuda, or auto."""


def run_surplus(settings: SurplusSlots, console: Console | None = None) -> dict[str, Any]:
    """Measure everything, print a table, write the file."""
    console = Console() if console is None else console
    at_least("n", settings.n, 1)
    device = place_of(settings.device)
    world = MultiDSprites(seed=settings.seed, device=device)
    rows: list[dict[str, Any]] = []
    for variant in ("SA", "SA-MESH"):
        model: Any = open_run(settings.checkpoints / weights_name(TASK, variant)).load_model(device)
        for n_slots in settings.slots:
            ways: dict[str, Callable[[Any], Tensor]] = {"as it is": lambda out: out.masks}
            if n_slots == settings.slots[0]:
                ways |= {f"merge {t:g}": lambda out, t=t: _merged(out, t) for t in settings.merge}
                ways |= {f"prune {s:g}": lambda out, s=s: _pruned(out, s) for s in settings.prune}
            found = _measure(
                model, world, settings.n, n_slots, ways, f"{variant}, {n_slots}", console
            )
            rows += [
                {"variant": variant, "n_slots": n_slots, "way": k, **v} for k, v in found.items()
            ]
    result = {
        "command": "python -m paper surplus-slots",
        "n": settings.n,
        "seed": settings.seed,
        "rows": rows,
        "environment": environment(device),
    }
    write_whole(settings.out, json.dumps(result, indent=2) + "\n")
    console.print(_table(rows))
    console.print(f"Written: [bold]{escape(str(settings.out))}[/bold]", soft_wrap=True)
    return result


@torch.inference_mode()
def _measure(
    model: Any,
    world: MultiDSprites,
    n: int,
    n_slots: int,
    ways: dict[str, Callable[[Any], Tensor]],
    what: str,
    console: Console,
) -> dict[str, dict[str, float]]:
    """The mean over scenes of each metric, for each way to read the same output."""
    values: dict[str, dict[str, list[Tensor]]] = {way: {} for way in ways}
    with Count(console, what, n) as count:
        for first in range(0, n, _BATCH):
            sample = world.sample(range(first, min(first + _BATCH, n)))
            noise = torch.Generator(sample.image.device).manual_seed(first)
            out = model(sample.image, generator=noise, n_slots=n_slots)
            for way, read in ways.items():
                masks = read(out)
                seen = masks.argmax(1)
                usage = slot_usage(masks, truth=sample.mask)
                assert usage.n_background is not None
                found = {"used": usage.n_used, "background": usage.n_background}
                for name, metric in METRICS.items():
                    found[name] = metric(seen, sample.mask, n_slots=n_slots, n_objects=_MAX_OBJECTS)
                for name, value in found.items():
                    values[way].setdefault(name, []).append(value.double().cpu())
            count.advance(len(sample))
    return {
        way: {name: round(float(torch.cat(v).nanmean()), 6) for name, v in found.items()}
        for way, found in values.items()
    }


def _merged(out: Any, tolerance: float) -> Tensor:
    """Masks in which the first slot of a group has all of it, and the others nothing."""
    group = same_picture(out.rgb, out.masks, tolerance)
    index = group[..., None, None].expand_as(out.masks)
    return torch.zeros_like(out.masks).scatter_add(1, index, out.masks)


def _pruned(out: Any, share: float) -> Tensor:
    """Masks without the slots that have little, shared by the others."""
    keep = out.masks.mean((-2, -1), keepdim=True) >= share
    kept = out.masks * keep
    return kept / kept.sum(1, keepdim=True).clamp_min(1e-12)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Surplus slots on Multi-dSprites", title_justify="left")
    names = {"ari": "ARI", "fg_ari": "FG-ARI", "miou": "mIoU", "fg_miou": "FG-mIoU"}
    for head in ("variant", "slots", "way", *names.values(), "used", "behind"):
        left = head in ("variant", "way")
        table.add_column(head, justify="left" if left else "right", no_wrap=left)
    for row in rows:
        numbers = [f"{100 * row[name]:.1f}" for name in names]
        counts = [f"{row[name]:.2f}" for name in ("used", "background")]
        table.add_row(row["variant"], str(row["n_slots"]), row["way"], *numbers, *counts)
    return table
