"""A transport, a world and a task of your own, trained by the command line.

Run it as you would run ``slotmesh``::

    python examples/extend.py train squares --variant SA-top2 --steps 200
    python examples/extend.py report runs/squares/SA-top2-quick-0

The report should show the two squares of each image in slots of their own, named and coloured like
the built-in tasks and variants: nothing in slotmesh was changed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slotmesh.cli import main
from slotmesh.nn import SlotTransport, Softmax
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
        """Attention ``(..., m, n)`` and the transport behind it."""
        attention, transport = super().forward(queries, keys, *context)
        k = min(self.k, attention.shape[-2])
        kept = attention >= attention.topk(k, dim=-2).values[..., -1:, :]
        attention = torch.where(kept, attention, 0.0)
        return attention / attention.sum(-1, keepdim=True).clamp_min(1e-8), transport


@dataclass(frozen=True)
class TopKSettings(TransportSettings):
    """SA-top2: every input goes to its best slots only."""

    k: int = 2
    """Slots that may share an input."""

    def build(self) -> SlotTransport:
        """The transport with these settings."""
        return TopK(self.k)


class Squares(World):
    """Two squares, one red and one green, anywhere on black."""

    name, max_objects = "squares", 2

    def __init__(self, *, size: int = 32, **options: object) -> None:
        super().__init__(**options)
        self.size = size

    def make(self, index: Tensor) -> Sample:
        """The images ``(batch, 3, size, size)`` of these indices, a pure function of (seed, i)."""
        edge, free = self.size // 4, self.size - self.size // 4
        mask = torch.zeros(len(index), self.size, self.size, dtype=torch.uint8)
        for row, i in enumerate(index.tolist()):
            draw = torch.Generator().manual_seed(1_000_003 * self.seed + i)
            for k, (y, x) in enumerate(torch.randint(free, (2, 2), generator=draw).tolist()):
                mask[row, y : y + edge, x : x + edge] = k + 1
        mask = mask.to(self.device)
        colours = torch.tensor([[0, 0, 0], [230, 60, 60], [60, 200, 90]], dtype=torch.uint8)
        image = colours.to(self.device)[mask.long()].movedim(-1, 1).contiguous()
        present = torch.stack([(mask == k + 1).flatten(1).any(1) for k in range(2)], 1)
        return Sample(image, mask, {}, present, index)


class SquaresDiscovery(Discovery):
    """Find the squares by reconstructing the image."""

    name, title = "squares", "Squares"
    about = "Two coloured squares, found by reconstructing images through slots."
    max_objects = 2
    data = ImageData(train_size=4096, test_size=512, size=32)
    model = ImageModel(n_slots=3, channels=16, slot_dim=32, mlp_dim=64)
    quick = (800, 1024)


register_variant(Variant("SA-top2", TopKSettings, "#1b9e77"))
register_world("squares", Squares, description="two coloured squares")
register_task(SquaresDiscovery)

if __name__ == "__main__":
    main()
