"""Pictures of a run's output for test samples, exactly as it was evaluated on them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image

from slotmesh.report.mosaic import Mosaic, slot_mosaic
from slotmesh.report.pictures import Block, attention_blocks, discovery_blocks, draw_blocks
from slotmesh.training.report.collect import Found


class SamplePainter:
    """Draws test samples of a run.

    Args:
        found: The run.
        device: Where its model runs.

    Raises:
        ValueError: If its weights or its data cannot be read.
    """

    def __init__(self, found: Found, device: str) -> None:
        self.device = torch.device(device)
        self.run = found.run
        known = found.evaluation or {}
        made = found.run.experiment
        if known.get("root") is not None:
            changes: dict[str, Any] = {"root": Path(known["root"])}
            if hasattr(made.settings.data, "easy"):
                changes["easy"] = False
            if hasattr(made.settings.data, "partial"):
                changes["partial"] = known.get("partial", False)
            data = replace(made.settings.data, **changes)
            made = type(made)(replace(made.settings, data=data))
        self.experiment = made
        self.model: Any = found.run.load_model(self.device)
        self.source, n = made.source("test", self.device)
        device_name = (known.get("environment") or {}).get("device")
        self.judged_on = None if device_name is None else str(device_name).partition(":")[0]
        """Kind of device that it was evaluated on, if that is known: each has its own noise."""
        # As in the evaluation: noise is drawn per batch.
        self.n: int = known.get("n", n)
        self.batch_size: int = known.get("batch_size", made.settings.data.batch_size)

    def noise(self, index: int) -> torch.Generator:
        """The noise that a sample had in the evaluation."""
        batch, place = divmod(index, self.batch_size)
        total = min(self.batch_size, self.n - batch * self.batch_size)
        # As for a batch that is shared by as many processes as it has samples.
        return self.experiment.noise(
            "test", batch, total=total, device=self.device, rank=place, n_ranks=total
        )

    @torch.inference_mode()
    def draw(self, index: int, *, trace: bool) -> Image:
        """One test sample, with the attention of every iteration or of the last, as a picture."""
        sample, noise = self._sample(index)
        if not hasattr(sample, "image"):
            return self.experiment.picture(self.model, sample, noise)
        return draw_blocks(self._blocks(sample, noise, trace))

    @torch.inference_mode()
    def mosaics(self, index: int, *, trace: bool) -> list[Mosaic]:
        """Pictures of a sample for a page: one, or one per frame of a video."""
        sample, noise = self._sample(index)
        if not hasattr(sample, "image"):
            return [self.experiment.mosaic(self.model, sample, noise)]
        return [slot_mosaic(block) for block in self._blocks(sample, noise, trace)]

    def _sample(self, index: int) -> tuple[Any, torch.Generator]:
        return self.source.sample([index]).to(self.device), self.noise(index)

    def _blocks(self, sample: Any, noise: torch.Generator, trace: bool) -> list[Block]:
        out = self.model(sample.image, generator=noise, trace=trace)
        grid = self.model.encoder.out_grid
        if hasattr(out, "masks"):
            # Without masks there is no truth to show.
            truth = sample.mask if getattr(self.experiment, "has_masks", True) else None
            return discovery_blocks(sample.image, out, grid, truth=truth)
        return attention_blocks(sample.image, out.trace if trace else out.attention, grid)


def best_and_worst(found: Found, n: int) -> tuple[str, list[int], list[int]]:
    """The metric, and the samples with its best and its worst values, most extreme first.

    The metric is the experiment's own where samples have it, otherwise the loss. Samples for which
    it is not defined are left out; none is both best and worst.
    """
    goal = found.run.experiment.goal
    name, higher = (goal.metric, goal.higher) if goal.metric in found.by_sample else ("loss", False)
    values = found.by_sample.get(name, [])
    order = sorted(
        (i for i, value in enumerate(values) if math.isfinite(value)),
        key=lambda i: values[i],
        reverse=higher,
    )
    n = min(n, len(order) // 2)
    return name, order[:n], order[::-1][:n]
