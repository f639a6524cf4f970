"""
Hyper-connections
=================

Hyper-connections widen the residual stream of a deep network to several streams, which every layer
mixes with its own matrix. A product of many such matrices can grow or shrink without bounds.
``sinkhorn`` makes each matrix doubly stochastic, and products of doubly stochastic matrices are
doubly stochastic again. **You should see** that over 64 layers, signals and gradients drift apart
by orders of magnitude with unconstrained matrices, but nearly keep their size with doubly
stochastic ones.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from slotmesh import sinkhorn

NETWORKS, DEPTH, STREAMS, SIZE = 20, 64, 4, 16


def free(scores: Tensor) -> Tensor:
    """Mix by the scores themselves."""
    return scores


def doubly_stochastic(scores: Tensor) -> Tensor:
    """Mix by the matrix with these scores whose rows and columns sum to 1."""
    return sinkhorn(-scores, temperature=0.25, n_iters=20).plan


def run(constraint) -> tuple[Tensor, Tensor]:
    """The size of the streams, and of the loss's gradient by them, after each layer."""
    mixing = constraint(torch.eye(STREAMS) + 0.3 * torch.randn(DEPTH, STREAMS, STREAMS))
    streams = torch.randn(32, STREAMS, SIZE, requires_grad=True)
    seen = [streams]
    for mix in mixing:
        layer = nn.Sequential(nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE), nn.GELU())
        read = seen[-1].mean(1, keepdim=True)
        seen.append(mix @ seen[-1] + layer(read) / DEPTH)
    gradients = torch.autograd.grad(seen[-1].square().mean().sqrt(), seen)
    size = [
        torch.stack([x.detach().square().mean().sqrt() for x in xs]) for xs in (seen, gradients)
    ]
    return size[0] / size[0][0], size[1] / size[1][-1]


torch.manual_seed(0)
sizes = {c.__name__: [run(c) for _ in range(NETWORKS)] for c in (free, doubly_stochastic)}

# %%
# One line per network, relative to the start of the signal: forward on the left, backward on the
# right.

figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
for i, (name, networks) in enumerate(sizes.items()):
    for network in networks:
        for ax, size in zip(axes, network, strict=True):
            ax.semilogy(size.numpy(), color=f"C{i}", lw=1, alpha=0.7)
    axes[0].plot([], color=f"C{i}", label=name.replace("_", " "))
axes[0].set(xlabel="layer", ylabel="relative size", title="streams")
axes[1].set(xlabel="layer", title="gradients")
axes[0].legend(frameon=False)
plt.show()

# %%
# The largest ratio between the two ends of a network:

for name, networks in sizes.items():
    print(f"{name:>17}: {max(s[-1].item() for s, _ in networks):8.1f} forward", end=", ")
    print(f"{max(g[0].item() for _, g in networks):8.1f} backward")
