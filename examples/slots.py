"""
Slots in ten lines
==================

Slot attention turns a set of inputs into a few slots. Here, all slots start out equal. **You should
see** seven equal rows with softmax, because equal slots stay equal and share every input. With
MESH, each slot takes different inputs.
"""

import matplotlib.pyplot as plt
import torch

from slotmesh import SlotAttention
from slotmesh.nn import Mesh, SharedSlot, Softmax

torch.manual_seed(0)
inputs = torch.randn(56, 32)
attention, slots = {}, {}
for transport in (Softmax(), Mesh()):
    module = SlotAttention(32, 32, n_slots=7, transport=transport, init=SharedSlot())
    with torch.no_grad():
        out = module(inputs)
    name = type(transport).__name__
    attention[name], slots[name] = out.attention, out.slots

# %%
# The attention of both, before any training. Rows are slots; columns are inputs, sorted by the slot
# that attends to them most.

figure, axes = plt.subplots(2, 1, figsize=(7, 3.2), layout="constrained")
for ax, (name, weights) in zip(axes, attention.items(), strict=True):
    order = weights.argmax(0).argsort(stable=True)
    ax.imshow(weights[:, order].numpy(), cmap="viridis", aspect="auto", vmin=0)
    ax.set(title=name, ylabel="slot", xticks=[], yticks=[])
axes[-1].set_xlabel("input")
plt.show()

# %%
# The distance between the two closest of the seven slots:

for name, vectors in slots.items():
    print(f"{name:>7}: {torch.pdist(vectors).min():.3f}")
