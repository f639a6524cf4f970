"""
Your own transport, world and task
==================================

Write one class each and register it, and the command line can use it, with presets, checkpoints and
reports: ``python examples/extend.py train squares --variant SA-top2``. **You should see** images of
the new world, and the part of them that each slot represents after a short training.
"""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from slotmesh.cli import main
from slotmesh.nn import SlotTransport, Softmax
from slotmesh.training.runs import open_run
from slotmesh.training.settings import ImageData
from slotmesh.training.tasks import register_task
from slotmesh.training.tasks.discovery import Discovery
from slotmesh.training.tasks.image_model import ImageModel
from slotmesh.training.variants import TransportSettings, Variant, register_variant
from slotmesh.worlds import Sample, World, register_world


class TopK(Softmax):
    """Softmax attention in which an input goes to its best ``k`` slots only."""

    def __init__(self, k: int = 2) -> None:
        super().__init__()
        self.k = k

    def forward(self, queries: Tensor, keys: Tensor, *context: object) -> tuple[Tensor, object]:
        attention, transport = super().forward(queries, keys, *context)
        kept = attention >= attention.topk(min(self.k, queries.shape[-2]), -2).values[..., -1:, :]
        attention = torch.where(kept, attention, 0.0)
        return attention / attention.sum(-1, keepdim=True).clamp_min(1e-8), transport


@dataclass(frozen=True)
class TopKSettings(TransportSettings):
    k: int = 2
    """Number of slots that may share an input."""

    def build(self) -> SlotTransport:
        return TopK(self.k)


class Squares(World):
    """Two squares, one red and one green, anywhere on black: a pure function of (seed, index)."""

    name, max_objects = "squares", 2

    def __init__(self, *, size: int = 16, **options: object) -> None:
        super().__init__(**options)
        self.size = size

    def make(self, index: Tensor) -> Sample:
        edge = self.size // 4
        mask = torch.zeros(len(index), self.size, self.size, dtype=torch.uint8)
        for row, i in enumerate(index.tolist()):
            draw = torch.Generator().manual_seed(1_000_003 * self.seed + i)
            for k, (y, x) in enumerate(torch.randint(3 * edge, (2, 2), generator=draw).tolist()):
                mask[row, y : y + edge, x : x + edge] = k + 1
        colours = torch.tensor([[0, 0, 0], [230, 60, 60], [60, 200, 90]], dtype=torch.uint8)
        image = colours[mask.long()].movedim(-1, 1).contiguous().to(self.device)
        present = torch.stack([(mask == k + 1).flatten(1).any(1) for k in range(2)], 1)
        return Sample(image, mask.to(self.device), {}, present.to(self.device), index)


class SquaresDiscovery(Discovery):
    name, title, max_objects = "squares", "Squares", 2
    about = "Two coloured squares, found by reconstructing images through slots."
    data = ImageData(train_size=4096, test_size=512, size=16)
    model = ImageModel(n_slots=3, channels=16, slot_dim=32, mlp_dim=64)
    quick = (800, 1024)


register_variant(Variant("SA-top2", TopKSettings, "#1b9e77"))
register_world("squares", Squares, description="two coloured squares")
register_task(SquaresDiscovery)

# %%
# With arguments, the script is the command line. Without, it trains for a while and shows new
# images, their segments, and each image multiplied by the mask of each slot.

if __name__ == "__main__" and sys.argv[1:]:
    main()
elif __name__ == "__main__":
    with TemporaryDirectory() as out, redirect_stdout(None):
        main(["train", "squares", "--variant", "SA-top2", "--steps", "400", "--out", f"{out}/run"])
        model = open_run(Path(out) / "run").load_model()
    found = [model.segment(image) for image in Squares(seed=7).sample(range(4)).image]
    for ax, one in zip(plt.subplots(4, figsize=(6, 4.8))[1], found, strict=True):
        ax.imshow(one.picture())
        ax.axis("off")
    plt.show()
