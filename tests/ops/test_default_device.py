"""Results are where the cost is, whatever device torch makes new tensors on."""

from functools import partial

import pytest
import torch

from slotmesh import emd, mesh, sinkhorn
from slotmesh.ops import assign

SLOTS = torch.tensor([True, True, False])
PAIRS = torch.ones(3, 5, dtype=torch.bool)
OPS = {
    "assign": assign,
    "assign with a mask": partial(assign, slot_mask=SLOTS),
    "assign with pairs": partial(assign, pair_mask=PAIRS),
    "assign by SciPy": partial(assign, backend="scipy"),
    "emd": emd,
    "emd with a mask": partial(emd, slot_mask=SLOTS),
    "emd of one mass": partial(emd, a=torch.tensor([1.0, 2.0, 3.0])),
    "emd by POT": partial(emd, backend="pot"),
    "sinkhorn": sinkhorn,
    "sinkhorn in torch": partial(sinkhorn, backend="torch", tol=1e-3, grad="implicit"),
    "sinkhorn with dustbins": partial(sinkhorn, dustbin=1.0, pair_mask=PAIRS),
    "sinkhorn of a share": partial(sinkhorn, share=0.5),
    "mesh": partial(mesh, noise=0.0),
    "mesh with a mask": partial(mesh, noise=0.0, slot_mask=SLOTS),
    "mesh in torch": partial(mesh, noise=0.0, slot_mask=SLOTS, grad="unroll"),
}


@pytest.mark.parametrize("name", OPS)
def test_another_default_device(name: str) -> None:
    cost = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0))
    expected = OPS[name](cost)
    with torch.device("meta"):
        found = OPS[name](cost)
    if name.startswith("assign"):
        found, expected = (found,), (expected,)
    for x, y in zip(found, expected, strict=True):
        assert x.device == y.device
        assert torch.equal(x, y)


@pytest.mark.parametrize("op", [sinkhorn, mesh])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_gradients_with_another_default_device(op, size: float) -> None:
    cost = size * torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0))
    with torch.device("meta"):
        leaf = cost.requires_grad_()
        op(leaf, slot_mask=SLOTS).plan.square().sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.device == cost.device
