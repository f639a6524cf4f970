"""The figure on the page "How MESH works": one cost matrix, step by step."""

import torch
from matplotlib.figure import Figure

from slotmesh.ops import mesh
from slotmesh.report.figures import heat_map, panels


def draw_descent(n_steps: int = 4, lr: float = 3.0, seed: int = 0) -> Figure:
    """Draw the adjusted cost (top) and the plan (bottom) after 0, 1, ... MESH steps.

    Slots 1 and 2 are equal and close to inputs 1 and 2; slot 3 is close to input 3.
    """
    cost = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, 3.0], [3.0, 3.0, 0.0]])
    noise = 1e-3 * torch.randn(cost.shape, generator=torch.Generator().manual_seed(seed))
    figure, (above, below) = panels(9.2, 3.9, 2, n_steps + 1)
    slots, inputs = ["x", "x", "y"], ["α", "β", "γ"]
    for step, (top, bottom) in enumerate(zip(above, below, strict=True)):
        t = mesh(cost, lr=lr, n_steps=step, noise=noise)
        shown = t.cost - t.cost.min()
        heat_map(top, shown, rows=slots, columns=inputs, most=9, number="{:.1f}", colours="Greys")
        top.set_title("noise only" if step == 0 else f"after step {step}", fontsize=10)
        heat_map(bottom, t.plan, rows=slots, columns=inputs)
        bottom.set_xlabel(f"entropy {abs(t.entropy().item()):.2f}")
    above[0].set_ylabel("cost")
    below[0].set_ylabel("plan")
    return figure
