"""
Keypoint matching with dustbins
===============================

Two views show the same points, rotated and shifted; a third of the points in each view is missing
from the other. ``sinkhorn`` with a dustbin matches descriptors and leaves points without a partner
unmatched. **You should see** green lines between corresponding points, with almost no errors, and
unmatched points in grey. Without dustbins, every point must be matched; wrong matches are red.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from slotmesh import sinkhorn
from slotmesh.ops import pairwise_cost

BOTH, ALONE, SIZE = 20, 10, 32
torch.manual_seed(0)
points = torch.rand(BOTH + 2 * ALONE, 2)
turn = torch.tensor([[0.9, -0.44], [0.44, 0.9]])
left = torch.cat([points[:BOTH], points[BOTH : BOTH + ALONE]])
right = torch.cat([points[:BOTH], points[BOTH + ALONE :]]) @ turn.mT + torch.tensor([1.7, 0.0])
described = torch.randn(BOTH + 2 * ALONE, SIZE)  # what a network says about each point
one = torch.cat([described[:BOTH], described[BOTH : BOTH + ALONE]])
two = torch.cat([described[:BOTH], described[BOTH + ALONE :]])
cost = pairwise_cost(one + 0.5 * torch.randn_like(one), two + 0.5 * torch.randn_like(two))


def partners(plan: Tensor) -> Tensor:
    """The partner of each point on the left, or -1 if most of its mass is in the dustbin."""
    best = plan.argmax(1)
    return torch.where(best < len(right), best, -1)


with_bins = sinkhorn(cost, dustbin=6.0, n_iters=50, temperature=0.3).plan
without = sinkhorn(cost, n_iters=50, temperature=0.3).plan
matches = {"with dustbins": partners(with_bins[:-1]), "without": partners(without)}

# %%
# Points 0 to 19 are in both views:

truth = torch.where(torch.arange(len(left)) < BOTH, torch.arange(len(left)), -1)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for ax, (name, partner) in zip(axes, matches.items(), strict=True):
    for i, j in enumerate(partner.tolist()):
        if j >= 0:
            x, y = torch.stack([left[i], right[j]]).mT.tolist()
            ax.plot(x, y, lw=1, color="#3a9d5d" if truth[i] == j else "#d64545")
    ax.plot(*left.mT.numpy(), "o", *right.mT.numpy(), "o", color="0.5", ms=4)
    ax.set_title(f"{name}: {(partner == truth).float().mean():.0%} right")
    ax.axis("off")
plt.show()
