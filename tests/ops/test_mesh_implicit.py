"""The gradient of MESH's plan as of one that has converged."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.ops import mesh, sinkhorn

from ._reference import close, generator, gradients, leaf, problem, randn

POTENTIALS = ["detach", "fresh"]


@pytest.mark.parametrize("potentials", POTENTIALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_those_of_any_gradient(potentials, dtype):
    args, noise = problem(2, 3, 7, seed=0, dtype=dtype), randn(2, 3, 7, seed=1, dtype=dtype)
    options = {"noise": 0.1 * noise, "lr": 1.0, "potentials": potentials}
    for x, y in zip(mesh(*args, **options, grad="implicit"), mesh(*args, **options), strict=True):
        close(x, y, 1e-5 if dtype == torch.float32 else 0.0)


@pytest.mark.parametrize("potentials", POTENTIALS)
def test_is_that_of_sinkhorn_on_the_changed_cost(potentials):
    leaves = [leaf(x) for x in (*problem(2, 3, 7, seed=2), torch.tensor(0.7).double())]
    options = {"n_steps": 3, "n_iters": 300, "lr": 1.0, "potentials": potentials}
    noise = 0.1 * randn(2, 3, 7, seed=3)
    t = mesh(*leaves[:3], noise=noise, temperature=leaves[3], grad="implicit", **options)
    found = gradients(t.plan, leaves)
    cost = leaves[0] + (t.cost - leaves[0]).detach()
    plan = sinkhorn(cost, *leaves[1:3], n_iters=300, temperature=leaves[3]).plan
    for x, y in zip(found, gradients(plan, leaves), strict=True):
        close(x, y, 1e-6)


def test_finite_differences_agree_where_nothing_is_changed():
    def plan(cost, log_a, log_b):
        marginals = 3 * log_a.softmax(-1), 3 * log_b.softmax(-1)
        return mesh(cost, *marginals, n_steps=0, n_iters=100, noise=0.0, grad="implicit").plan

    inputs = [randn(3, 5, seed=4), randn(3, seed=5), randn(5, seed=6)]
    assert torch.autograd.gradcheck(plan, [leaf(x) for x in inputs], atol=1e-5)


def length(grad_cost, plan):
    """The norm in which the gradient of a plan by its cost is a projection."""
    return (grad_cost.square() / plan).sum().sqrt()


@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.1, 3.0, 10.0]),
    potentials=st.sampled_from(POTENTIALS),
    n_iters=st.integers(1, 5),
)
def test_is_never_longer_than_what_came(seed, spread, potentials, n_iters):
    """However hard the plan is, and whether it has converged or not."""
    cost, a, b = problem(4, 9, seed=seed)
    cost, into = leaf(spread * cost), randn(4, 9, seed=seed + 1)
    t = mesh(
        cost,
        a,
        b,
        lr=3.0,
        n_iters=n_iters,
        potentials=potentials,
        grad="implicit",
        generator=generator(seed),
    )
    (grad_cost,) = torch.autograd.grad(t.plan, cost, into)
    for dim in (0, 1):  # no plan changes where all costs of a slot or an input do alike
        close(grad_cost.sum(dim), torch.zeros(9 if dim == 0 else 4), 1e-9)
    plan = t.plan.detach().clamp(min=1e-300)
    assert length(grad_cost, plan) <= (plan * into.square()).sum().sqrt() * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_carries_a_gradient(dtype):
    cost = leaf(randn(3, 5, seed=7, dtype=dtype))
    t = mesh(cost, noise=0.0, grad="implicit")
    assert t.plan.requires_grad
    assert not t.u.requires_grad
    assert not t.v.requires_grad
    into = randn(3, 5, seed=8, dtype=dtype)
    close(torch.autograd.grad(t.cost, cost, into)[0], into, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_where_nothing_goes_does_not_count(dtype):
    """By C in float32 and by torch in float64; nothing goes to padding."""
    cost, into = (randn(2, 3, 7, seed=k, dtype=dtype) for k in (9, 10))
    slots, inputs = torch.tensor([True, True, False]), torch.arange(7) < 5
    found = []
    for padding in (0.0, torch.nan, torch.inf):
        x = leaf(cost)
        t = mesh(x, noise=0.0, slot_mask=slots, input_mask=inputs, grad="implicit")
        weights = torch.where(slots[:, None] & inputs, into, padding)
        found.append(torch.autograd.grad(t.plan, x, weights)[0])
    assert found[0].isfinite().all()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
