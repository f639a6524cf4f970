"""
Your own images
===============

Draw a few coloured shapes, save them in a folder, and segment them without labels, with weights
that come with slotmesh. **You should see** each shape in its own slot. For other kinds of images,
train a model on them: ``model = slotmesh.fit("photos", n_slots=7)`` accepts a folder, a list, a
tensor or a dataset.
"""

import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageDraw

from slotmesh.metrics import fg_ari
from slotmesh.models import ObjectDiscovery
from slotmesh.training.weights import find

COLOURS = ((220, 60, 60), (70, 190, 90), (70, 110, 220), (230, 190, 60), (190, 80, 200))


def draw() -> tuple[Image.Image, Image.Image]:
    """A picture of three shapes on grey, and a mask with their numbers."""
    picture, mask = Image.new("RGB", (64, 64), (96, 96, 96)), Image.new("L", (64, 64))
    turn = random.uniform(0, 2 * math.pi)
    for number, colour in enumerate(random.sample(COLOURS, 3), 1):
        angle = turn + number * 2 * math.pi / 3
        x, y, r = 32 + 16 * math.cos(angle), 32 + 16 * math.sin(angle), random.uniform(6, 9)
        shape = random.choice(("ellipse", "rectangle"))
        for image, ink in ((picture, colour), (mask, number)):
            getattr(ImageDraw.Draw(image), shape)((x - r, y - r, x + r, y + r), fill=ink)
    return picture, mask


random.seed(0)
drawn = [draw() for _ in range(16)]
model = ObjectDiscovery.from_pretrained(find("multi-dsprites-sa-mesh"))
with TemporaryDirectory() as folder:
    paths = [Path(folder) / f"{i}.png" for i in range(len(drawn))]
    for path, (picture, _) in zip(paths, drawn, strict=True):
        picture.save(path)
    found = [model.segment(path) for path in paths]

# %%
# The image, its segments in colour, and the image multiplied by the mask of each slot:

figure, axes = plt.subplots(4, 1, figsize=(8, 4.2), layout="constrained")
for ax, one in zip(axes, found, strict=False):
    ax.imshow(one.picture())
    ax.axis("off")
plt.show()

# %%
# FG-ARI measures whether pixels of the same shape are grouped together: 0 is chance, 1 is perfect.

scores = [
    fg_ari(one.labels.numpy(), np.asarray(mask), n_slots=6, n_objects=3)
    for one, (_, mask) in zip(found, drawn, strict=True)
]
print(f"{sum(map(float, scores)) / len(scores):.2f}")
