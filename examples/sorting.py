"""
Learning to sort
================

A network looks at each number separately and predicts the cost of every position in the sorted
list. A transport turns the costs into a permutation, and the loss compares the permuted list with
the sorted one. Gumbel-Sinkhorn lowers a temperature during training: if it stays too high, the plan
stays soft; if it gets too low, the gradient vanishes. **You should see** that ``mesh``, with
nothing to anneal, gets several times closer to the sorted list at every length.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from slotmesh import mesh, sinkhorn

STEPS = 200
LENGTHS = (5, 10, 20)


def by_mesh(cost: Tensor, progress: float, noisy: bool) -> Tensor:
    """Return a plan that is nearly a permutation, from the first training step on."""
    return mesh(cost).plan


def annealed(end: float):
    """Gumbel-Sinkhorn (Mena et al. 2018) with a temperature that falls from 1 to ``end``."""

    def by_gumbel_sinkhorn(cost: Tensor, progress: float, noisy: bool) -> Tensor:
        gumbel = -torch.empty_like(cost).exponential_().log() if noisy else 0.0
        return sinkhorn(cost - gumbel, temperature=end**progress, n_iters=20).plan

    return by_gumbel_sinkhorn


def learn(transport, length: int) -> float:
    """Train on random lists; return the error on new ones, in gaps between neighbours."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    net.append(nn.Linear(64, length))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(STEPS):
        x = torch.rand(32, length, 1)
        plan = transport(net(x), step / STEPS, True)  # numbers x places
        loss = (plan.mT @ x - x.sort(1).values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = torch.rand(256, length, 1)
    with torch.no_grad():
        wrong = transport(net(x), 1.0, False).mT @ x - x.sort(1).values
    return length * wrong.abs().mean().item()


transports = {f"Gumbel-Sinkhorn to {end}": annealed(end) for end in (0.1, 0.3, 1.0)}
transports["MESH"] = by_mesh
errors = {name: [learn(t, length) for length in LENGTHS] for name, t in transports.items()}

# %%
# An error of 1 is the mean distance between neighbours in the sorted list:

figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, error in errors.items():
    ax.plot(LENGTHS, error, "o-", label=name, lw=3 if name == "MESH" else 1.5)
ax.set(xlabel="length of the list", ylabel="error of a number", xticks=LENGTHS, yscale="log")
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()
