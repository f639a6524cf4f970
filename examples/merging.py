"""
Merging two networks
====================

Two networks that are trained separately learn the same function, but their hidden units are in a
different order, so averaging their weights does not work. Units that respond alike to the same
inputs correspond to each other: ``assign`` or ``mesh`` pairs them by their correlation. **You
should see** the accuracy drop halfway along the straight line between the two networks, and stay
high once the units of the second network are permuted to match the first. (``mesh`` is
differentiable, so it can be used to learn the permutation.)
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slotmesh import mesh
from slotmesh.ops import assign

STEPS, WIDTH = 250, 256


def spirals(n: int) -> tuple[Tensor, Tensor]:
    """Points on three arms of a spiral, and their arm."""
    arm, radius = torch.randint(3, (n,)), torch.rand(n).sqrt()
    angle = 2 * torch.pi * (arm / 3 + 0.6 * radius) + 0.15 * torch.randn(n)
    return torch.stack([angle.cos(), angle.sin()], -1) * radius[:, None], arm


def layers(weights: list[Tensor], x: Tensor) -> list[Tensor]:
    """Two hidden layers and the output."""
    w1, b1, w2, b2, w3, b3 = weights
    first = F.linear(x, w1, b1).relu()
    second = F.linear(first, w2, b2).relu()
    return [first, second, F.linear(second, w3, b3)]


def train() -> list[Tensor]:
    """The weights and biases of a trained network."""
    sizes = (nn.Linear(2, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))
    weights = [p for layer in sizes for p in layer.parameters()]
    optimizer = torch.optim.Adam(weights, 3e-3)
    for _ in range(STEPS):
        points, arm = spirals(256)
        loss = F.cross_entropy(layers(weights, points)[-1], arm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach() for p in weights]


torch.manual_seed(0)
one, two, (points, arm) = train(), train(), spirals(2000)
responses = [[F.normalize(h - h.mean(0), dim=0) for h in layers(w, points)] for w in (one, two)]
costs = [-(mine.mT @ other) for mine, other in zip(*responses, strict=True)]
methods = {"assign": lambda c: F.one_hot(assign(c), WIDTH).float(), "MESH": lambda c: mesh(c).plan}
seconds = {"as trained": two}
for name, pair in methods.items():
    p, q, (w1, b1, w2, b2, w3, b3) = pair(costs[0]), pair(costs[1]), two
    seconds[name] = [p @ w1, p @ b1, q @ w2 @ p.mT, q @ b2, w3 @ q.mT, b3]

# %%
# Accuracy along the straight line from the first network to the second:

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
line, accuracy = torch.linspace(0, 1, 21), {}
for name, other in seconds.items():
    between = [[a + t * (b - a) for a, b in zip(one, other, strict=True)] for t in line]
    accuracy[name] = [
        (layers(w, points)[-1].argmax(1) == arm).float().mean().item() for w in between
    ]
    ax.plot(line.numpy(), accuracy[name], label=name)
ax.set(xlabel="share of the second network", ylabel="accuracy", ylim=(0.5, 1.02))
ax.legend(frameon=False)
plt.show()
