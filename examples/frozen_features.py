"""
Slots on frozen features
========================

Only the direction of the stripes tells which pixels of an image belong together. A frozen module
measures it, and slots learn, without labels, to reconstruct its features instead of pixels. **You
should see** each disc in its own slot. For photographs, use a pretrained vision transformer as the
frozen module, such as ``FrozenFeatures("facebook/dinov2-small")``.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slotmesh.metrics import fg_ari, fg_miou
from slotmesh.models import FeatureDiscovery
from slotmesh.nn import FrozenFeatures

SIDE, STEPS = 64, 700
ANGLES = torch.arange(4) * math.pi / 4
y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")


def waves(angle: Tensor, phase: Tensor | float, x: Tensor, y: Tensor) -> Tensor:
    """Stripes 5 pixels apart, one picture per angle."""
    angle = angle[:, None, None]
    return torch.cos((x * angle.cos() + y * angle.sin()) * 2 * math.pi / 5 + phase)


def draw(n: int) -> tuple[Tensor, Tensor]:
    """Pictures of three striped discs on noise, and masks with their numbers."""
    image, mask = torch.zeros(n, SIDE, SIDE), torch.zeros(n, SIDE, SIDE, dtype=torch.int64)
    turn, kinds = 2 * math.pi * torch.rand(n, 1, 1), torch.rand(n, 4).argsort(-1)
    for k in range(3):
        angle = turn + k * 2 * math.pi / 3
        cx, cy = (SIDE / 2 + 18 * f(angle) + torch.randn(n, 1, 1) for f in (torch.cos, torch.sin))
        inside = (x - cx) ** 2 + (y - cy) ** 2 < (9 + 4 * torch.rand(n, 1, 1)) ** 2
        stripes = waves(ANGLES[kinds[:, k]], 2 * math.pi * torch.rand(n, 1, 1), x, y)
        image, mask = torch.where(inside, stripes, image), torch.where(inside, k + 1, mask)
    image = (image / 2 + 0.5 + 0.1 * torch.randn_like(image)).clamp(0, 1)
    return image[:, None].expand(-1, 3, -1, -1), mask


class Stripes(nn.Module):
    """Contrast, strength of stripes of four directions, and place of each patch of 8 x 8 pixels."""

    def forward(self, image: Tensor) -> Tensor:
        gray = image.mean(1, keepdim=True) - 0.5
        y, x = torch.meshgrid(torch.arange(-6.0, 7), torch.arange(-6.0, 7), indexing="ij")
        both = torch.stack([waves(ANGLES, 0, x, y), waves(ANGLES, math.pi / 2, x, y)], 1)
        filters = both * torch.exp(-(x**2 + y**2) / 12) / 10
        seen = F.conv2d(gray, filters.flatten(0, 1)[:, None], padding=6).unflatten(1, (4, 2))
        found = torch.cat([3 - 20 * gray.square(), 6 * seen.norm(dim=2) - 0.6], 1)
        at = torch.linspace(-1, 1, SIDE // 8) * math.pi / 2
        waved = torch.stack([at.sin(), at.cos(), (2 * at).sin(), (2 * at).cos()]) / 2
        place = torch.cat(torch.broadcast_tensors(waved[:, None, :], waved[:, :, None]))
        return torch.cat([F.avg_pool2d(found, 8), place.expand(len(image), -1, -1, -1)], 1)


torch.manual_seed(0)
images, _ = draw(2000)
frozen = FrozenFeatures(Stripes(), resolution=SIDE, mean=(0, 0, 0), std=(1, 1, 1))
features = frozen(images)  # computed once, as the module is frozen
model = FeatureDiscovery(frozen, n_slots=4, slot_dim=32, mlp_dim=64, hidden=(256,))
optimiser = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, STEPS, pct_start=0.1)
for _ in range(STEPS):
    out = model(features=features[torch.randint(len(features), (16,))], enlarge=False)
    optimiser.zero_grad()
    F.mse_loss(out.reconstruction, out.features).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    schedule.step()

# %%
# New images, their segments in colour, and each image multiplied by the mask of each slot:

model.eval()
images, truth = draw(64)
figure, axes = plt.subplots(4, 1, figsize=(8, 5), layout="constrained")
for ax, image in zip(axes, images, strict=False):
    ax.imshow(model.segment(image).picture())
    ax.axis("off")
plt.show()

# %%
# FG-ARI measures whether pixels of the same disc are grouped together, FG-mIoU how well masks match
# the discs. Quarters of the image are a blind baseline, which ignores what the image shows.

quarters = ((x >= SIDE // 2) + 2 * (y >= SIDE // 2)).expand_as(truth)
with torch.no_grad():
    ways = {"slots": model(images).masks.argmax(1), "quarters": quarters}
for name, labels in ways.items():
    ari, miou = (f(labels, truth, n_slots=4, n_objects=3).mean() for f in (fg_ari, fg_miou))
    print(f"{name}: FG-ARI {ari:.2f}, FG-mIoU {miou:.2f}")
