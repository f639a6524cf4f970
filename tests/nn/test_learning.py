"""SA-MESH learns: random objects among empty inputs, each slot one of them."""

import pytest
import torch

from slotmesh import SlotAttention
from slotmesh.nn import LearnedGaussian, Mesh
from slotmesh.ops import assign, pairwise_cost

OBJECTS, EMPTY, DIM = 5, 10, 8


def scenes(size, rng):
    """Objects in random places among zeros, and the objects alone."""
    objects = torch.randn(size, OBJECTS, DIM, generator=rng)
    inputs = torch.cat((objects, torch.zeros(size, EMPTY, DIM)), 1)
    order = torch.rand(size, OBJECTS + EMPTY, generator=rng).argsort(-1)
    return inputs.gather(1, order.unsqueeze(-1).expand_as(inputs)), objects


def matched_error(slots, objects):
    """Mean squared error under the best matching."""
    with torch.no_grad():
        partner = assign(pairwise_cost(slots, objects, "sqeuclidean"))
    return (slots - objects.gather(1, partner.unsqueeze(-1).expand_as(objects))).square().mean()


@pytest.mark.slow
def test_sa_mesh_with_implicit_differentiation_learns_to_find_objects():
    rng = torch.Generator().manual_seed(0)
    module = SlotAttention(
        DIM, DIM, OBJECTS, Mesh(lr=5.0, n_steps=2), 2, init=LearnedGaussian(), implicit=True
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=5e-3)
    for _ in range(200):
        inputs, objects = scenes(32, rng)
        loss = matched_error(module(inputs, generator=rng).slots, objects)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
        optimizer.step()
    inputs, objects = scenes(256, rng)
    with torch.no_grad():
        error = matched_error(module(inputs, generator=rng).slots, objects).item()
        nothing = matched_error(torch.zeros_like(objects), objects).item()
    assert abs(nothing - 1.0) < 0.05
    # LayerNorm takes each object's mean and norm away: about 0.19 is the least possible error.
    assert error < 0.4 * nothing
