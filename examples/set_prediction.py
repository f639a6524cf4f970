"""
Set prediction
==============

A network predicts a *set* of boxes, in no particular order. As in DETR, ``assign`` first matches
each true box with one prediction; the loss then compares the pairs and trains the remaining
predictions to say "no object". **You should see** one box around each square, on images that were
not used for training. On a GPU, the matching does not synchronise with the CPU: the training loop
would raise an error.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slotmesh.ops import assign

STEPS, SIZE, MOST, QUERIES = 800, 24, 3, 6
device = "cuda" if torch.cuda.is_available() else "cpu"


def scenes(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images, boxes (left, top, right, bottom) from 0 to 1, and which of the boxes are real."""
    corner = torch.rand(n, MOST, 2, device=device) * 0.7
    boxes = torch.cat([corner, corner + 0.3], -1)
    real = torch.arange(MOST, device=device) < torch.randint(1, MOST + 1, (n, 1), device=device)
    x = (torch.arange(SIZE, device=device) + 0.5) / SIZE
    inside = (x > boxes[..., :2, None]) & (x < boxes[..., 2:, None])
    pixels = inside[..., 1, :, None] & inside[..., 0, None, :] & real[..., None, None]
    colours = 0.3 + 0.7 * torch.rand(n, MOST, 3, 1, 1, device=device)
    return (pixels[:, :, None] * colours).amax(1), boxes, real


def set_loss(boxes: Tensor, logits: Tensor, target: Tensor, real: Tensor) -> Tensor:
    """Match true boxes with predictions, then compare the pairs."""
    cost = torch.cdist(target, boxes, p=1) - logits.sigmoid()[:, None]  # true boxes x predictions
    partner = assign(cost, slot_mask=real).clamp_min(0)  # padding has the partner -1
    paired = boxes.gather(1, partner[..., None].expand_as(target))
    distance = ((paired - target).abs().sum(-1) * real).sum() / real.sum()
    found = torch.zeros_like(logits).scatter_reduce(1, partner, real.float(), "amax")
    return distance + F.binary_cross_entropy_with_logits(logits, found)


def predict(images: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes ``(n, queries, 4)``, and the logits of whether each contains an object."""
    out = model(images).unflatten(-1, (QUERIES, 5))
    return out[..., :4].sigmoid(), out[..., 4]


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 32, 5, 2, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU())
model += nn.Sequential(nn.Flatten(), nn.Linear(32 * (SIZE // 4) ** 2, 256), nn.ReLU())
model = model.append(nn.Linear(256, QUERIES * 5)).to(device)
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
for step in range(STEPS):
    if device == "cuda" and step == 1:
        torch.cuda.set_sync_debug_mode("error")  # a copy to the CPU is an error from here on
    images, target, real = scenes(64)
    loss = set_loss(*predict(images), target, real)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if device == "cuda":
    torch.cuda.set_sync_debug_mode("default")

# %%
# New images, and the boxes with a score above 0.5:

images, target, real = scenes(256)
with torch.no_grad():
    boxes, logits = (x.cpu() for x in predict(images))
counted = ((logits > 0).sum(1) == real.sum(1).cpu()).float().mean().item()
print(f"The number of boxes is right in {counted:.0%} of 256 images.")
figure, axes = plt.subplots(1, 6, figsize=(9, 1.6), layout="constrained")
for ax, image, some, score in zip(axes, images.cpu(), boxes, logits, strict=False):
    ax.imshow(image.movedim(0, -1).numpy(), extent=(0, 1, 1, 0))
    for left, top, right, bottom in some[score > 0].tolist():
        ax.add_patch(plt.Rectangle((left, top), right - left, bottom - top, fill=False, ec="w"))
    ax.axis("off")
plt.show()
