"""
Your own images
===============

``slotmesh.fit`` takes a folder of images, a list, a tensor or a dataset, and returns a model that
finds objects in them without labels. Here the images are drawn: two squares on black. **You
should see**, on an image that was not trained on, each square in a slot of its own. (Black costs
nothing to reconstruct, so the slots share the ground.)
"""

import matplotlib.pyplot as plt
import torch

import slotmesh
from slotmesh.metrics import fg_ari

STEPS = 500


def squares(n: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of a red and a green square, and which pixel belongs to which."""
    corner = torch.randint(size - size // 4, (n, 2, 2, 1))
    at = torch.arange(size)
    inside = (at >= corner) & (at < corner + size // 4)
    red, green = (inside[:, :, 0, :, None] & inside[:, :, 1, None, :]).unbind(1)
    labels = torch.where(green, 2, red.long())
    colours = torch.tensor([[0, 0, 0], [230, 60, 60], [60, 200, 90]], dtype=torch.uint8)
    return colours[labels].movedim(-1, 1), labels


torch.manual_seed(0)
images, _ = squares(600)  # or: images = "photos", the name of a folder
model = slotmesh.fit(images, n_slots=3, steps=STEPS, progress=False)

# %%
# Four new images: the image, its segments in colour, and the image through the mask of each slot.

new, labels = squares(16)
found = [model.segment(image) for image in new]
figure, axes = plt.subplots(4, 1, figsize=(6, 4.8), layout="constrained")
for ax, one in zip(axes, found, strict=False):
    ax.imshow(one.picture())
    ax.axis("off")
plt.show()

# %%
# FG-ARI, whether pixels of the squares are together or apart as they should be (0 is chance):

predicted = torch.stack([one.labels for one in found])
score = fg_ari(predicted, labels, n_slots=3, n_objects=2)
print(f"{score.nanmean():.2f}")
