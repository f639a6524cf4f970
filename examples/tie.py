"""
A tie, broken step by step
==========================

Slots 1 and 2 are equal: both are close to inputs A and B. Sinkhorn gives each of them half of both
inputs. MESH lowers the entropy of the plan by changing the costs a little at a time. **You should
see** the clear case, slot 3 with input C, settle first; then the two equal slots separate, with one
input each.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.animation import FuncAnimation

from slotmesh import mesh, sinkhorn

cost = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
noise = 1e-3 * torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
plans = [mesh(cost, lr=0.7, n_steps=steps, n_iters=50, noise=noise).plan for steps in range(13)]
entropies = torch.stack([-(p * p.clamp_min(1e-30).log()).sum() for p in plans])

# %%
# The plan after each step, and its entropy:

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
picture = left.imshow(plans[0].numpy(), cmap="viridis", vmin=0, vmax=1)
left.set(xticks=range(3), xticklabels="ABC", yticks=range(3), yticklabels="123")
left.set(xlabel="input", ylabel="slot")
(line,) = right.plot([], [], "o-")
right.axhline(sinkhorn(cost, n_iters=50).entropy(), color="0.5", ls=":", label="Sinkhorn")
right.set(xlim=(-0.5, 12.5), ylim=(-0.1, 3), xlabel="MESH step", ylabel="entropy of the plan")
right.legend(frameon=False)


def draw(step: int) -> None:
    """Show the plan after this many steps."""
    step = min(step, len(plans) - 1)
    picture.set_data(plans[step].numpy())
    line.set_data(range(step + 1), entropies[: step + 1].numpy())
    left.set_title(f"{step} steps")


animation = FuncAnimation(figure, draw, frames=len(plans) + 5, interval=500)
plt.show()
