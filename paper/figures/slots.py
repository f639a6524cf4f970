"""Attention and masks of slots with the shipped weights: the paper's qualitative figures."""

from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from paper.figures.common import OnProgress, noop
from slotmesh.models import ObjectDiscovery
from slotmesh.report.figures import panels
from slotmesh.training.weights import find
from slotmesh.worlds import Sample, make_world

VARIANTS = {"SA": "sa", "SA-MESH": "sa-mesh"}
"""The variants that are compared, and how the names of their weights end."""
# Nothing was trained or chosen on this seed; --seed counts from here.
_FIRST_SEED = 7777
_GAP = 3
# Columns of two sheets that fit next to each other.
_SIDE_BY_SIDE = 8
_INK = "#7d838c"  # can be read on white and on black


@dataclass(frozen=True)
class FoundObjects:
    """Attention and masks of both variants on the same scenes."""

    variants: list[str]
    entropy: list[list[float]]
    """By variant and iteration: entropy of a pixel's attention over slots, as a share of the most
    possible, averaged over scenes and over pixels by the attention that they get."""
    attention: NDArray[np.uint8] = field(metadata={"picture": True})
    """``(variants, scenes, iterations, slots + 1, H, W, 3)``: the image, and through the attention
    of each slot."""
    masks: NDArray[np.uint8] = field(metadata={"picture": True})
    """``(variants, scenes, slots + 1, H, W, 3)``: the image, and through the mask of each slot."""

    def headline(self) -> str:
        """Say how much each pixel is divided between slots."""
        parts = [
            f"{name} {', '.join(f'{x:.2f}' for x in values)}"
            for name, values in zip(self.variants, self.entropy, strict=True)
        ]
        return f"entropy of a pixel's attention over slots by iteration: {'; '.join(parts)}."


def found_objects(
    n_draws: int = 5,
    seed: int = 0,
    on_progress: OnProgress = noop,
    *,
    world: str = "multi-dsprites",
) -> FoundObjects:
    """Run both models on scenes of a world that they were not trained on.

    Args:
        n_draws: Number of scenes.
        seed: Which scenes.
        on_progress: Called after each model.
        world: ``multi-dsprites`` or ``clevrtex``.
    """
    scenes = make_world(world, seed=_FIRST_SEED + seed, size=64).sample(range(n_draws))
    assert isinstance(scenes, Sample)
    attention: list[Tensor] = []
    masks: list[Tensor] = []
    entropies: list[list[float]] = []
    for i, name in enumerate(VARIANTS.values()):
        model = ObjectDiscovery.from_pretrained(find(f"{world}-{name}")).eval()
        with torch.no_grad():
            noise = torch.Generator().manual_seed(seed)
            out = model(scenes.image, generator=noise, trace=True)
        assert out.trace is not None
        share = out.trace / out.trace.sum(-2, keepdim=True).clamp_min(1e-12)
        pixel = -torch.xlogy(share, share).sum(-2) / np.log(share.shape[-2])
        mass = out.trace.sum(-2)
        entropies.append(((pixel * mass).sum((0, -1)) / mass.sum((0, -1))).tolist())
        # The brightest pixel of every slot is as bright as the image.
        shown = out.trace / out.trace.amax(-1, keepdim=True).clamp_min(1e-12)
        shown = shown.unflatten(-1, model.encoder.out_grid)
        shown = F.interpolate(shown.flatten(0, 1), scenes.image.shape[-2:])
        attention.append(_through(scenes.image, shown.unflatten(0, out.trace.shape[:2])))
        masks.append(_through(scenes.image, out.masks[:, None])[:, 0])
        on_progress(i + 1, len(VARIANTS))
    stacked = (torch.stack(x).numpy() for x in (attention, masks))
    return FoundObjects(list(VARIANTS), entropies, *stacked)


def found_on_clevrtex(
    n_draws: int = 5, seed: int = 0, on_progress: OnProgress = noop
) -> FoundObjects:
    """As :func:`found_objects`, for ClevrTex."""
    return found_objects(n_draws, seed, on_progress, world="clevrtex")


def _through(image: Tensor, weights: Tensor) -> Tensor:
    """Images ``(scenes, 3, H, W)``, and times weights ``(scenes, k, m, H, W)``; channels last."""
    whole = torch.ones_like(weights[:, :, :1])
    pictures = torch.cat([whole, weights], 2)[..., None] * image.movedim(1, -1)[:, None, None]
    return pictures.round().to(torch.uint8)


def draw_attention(found: FoundObjects) -> Figure:
    """One row of pictures per scene and iteration, SA left and SA-MESH right."""
    n_iters = found.attention.shape[2]
    labels = [f"{i + 1}" for _ in range(found.attention.shape[1]) for i in range(n_iters)]
    rows = found.attention.reshape(len(found.variants), -1, *found.attention.shape[3:])
    return _sheet(found.variants, rows, labels, n_iters, "iteration")


def draw_masks(found: FoundObjects) -> Figure:
    """One row of pictures per scene, SA left and SA-MESH right."""
    return _sheet(found.variants, found.masks, [""] * found.masks.shape[1], 1, "")


def _sheet(
    names: list[str], rows: NDArray[np.uint8], labels: list[str], per_scene: int, what: str
) -> Figure:
    """Pictures ``(variants, rows, columns, H, W, 3)`` as one raster per variant.

    The variants are side by side, or with many slots one below the other.
    """
    _, n_rows, n_columns, side, _, _ = rows.shape
    cell = side + _GAP
    # A wider gap after each scene.
    tops = [i * cell + 2 * _GAP * (i // per_scene) for i in range(n_rows)]
    height, width = tops[-1] + side, n_columns * cell - _GAP
    if n_columns <= _SIDE_BY_SIDE:
        figure, axes = panels(9.2, 0.4 + 4.3 * height / width, 1, len(names))
    else:
        figure, axes = panels(9.2, len(names) * (0.4 + 8.9 * height / width), len(names), 1)
    figure.patch.set_alpha(0)
    flat = [panel for row in axes for panel in row]
    for panel, name, pictures in zip(flat, names, rows, strict=True):
        sheet = np.zeros((height, width, 4), np.uint8)
        for top, row in zip(tops, pictures, strict=True):
            for j, picture in enumerate(row):
                sheet[top : top + side, j * cell : j * cell + side, :3] = picture
                sheet[top : top + side, j * cell : j * cell + side, 3] = 255
        panel.imshow(sheet, interpolation="none")
        panel.set_title(name, color=_INK)
        panel.set_xticks([])
        panel.set_yticks([top + side / 2 for top in tops], labels)
        panel.tick_params(length=0, labelcolor=_INK, labelsize=7)
        panel.set_ylabel(what, color=_INK)
        panel.patch.set_alpha(0)
        panel.spines[:].set_visible(False)
    return figure
