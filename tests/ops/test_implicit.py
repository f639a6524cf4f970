"""The implicit gradient of a converged Sinkhorn plan."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.ops import sinkhorn

from ._reference import close, gradients, leaf, problem, randn

SHAPES = [(2, 5), (5, 2), (4, 4), (1, 3), (3, 1), (1, 1)]


def converged(cost, a=None, b=None, **options):
    t = sinkhorn(cost, a, b, n_iters=100, grad="implicit", **options)
    assert t.marginal_error.max() < 1e-9
    return t.plan


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_finite_differences_agree(m, n):
    def plan(cost, log_a, log_b, log_temperature):
        return converged(
            cost,
            m * log_a.softmax(-1),
            m * log_b.softmax(-1),
            temperature=log_temperature.exp(),
        )

    inputs = [randn(m, n, seed=0), randn(m, seed=1), randn(n, seed=2), torch.tensor(0.3).double()]
    assert torch.autograd.gradcheck(plan, [leaf(x) for x in inputs], atol=1e-5)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_unrolled_gradient_agrees_at_convergence(m, n):
    """By a and b too, where the constraints alone leave a constant open that moves between them."""
    cost, a, b = problem(3, m, n, seed=4)
    found = []
    for grad in ("implicit", "unroll"):
        leaves = [leaf(x) for x in (cost / 2, a, b)]
        found.append(gradients(sinkhorn(*leaves, n_iters=150, grad=grad).plan, leaves))
    for implicit, unrolled in zip(*found, strict=True):
        close(implicit, unrolled, 1e-9)


def test_values_are_those_of_the_iterations():
    cost, a, b = problem(2, 3, 4, seed=0)
    implicit = sinkhorn(cost, a, b, n_iters=3, grad="implicit")
    unrolled = sinkhorn(cost, a, b, n_iters=3)
    for x, y in zip(implicit, unrolled, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("total", [1e-6, 1.0, 1e6])
def test_gradient_follows_the_total_mass(total):
    cost, a, b = problem(3, 5, seed=0)
    one = gradients(converged(c := leaf(cost), a, b), [c])[0]
    scaled = gradients(converged(c := leaf(cost), total * a, total * b), [c])[0]
    close(scaled / total, one, 1e-9)


@given(seed=st.integers(0, 10**6), temperature=st.sampled_from([1.0, 0.1, 0.01, 1e-4]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nearly_hard_plans_have_finite_gradients(dtype, seed, temperature):
    leaves = [leaf(x) for x in problem(4, 6, seed=seed, dtype=dtype)]
    plan = sinkhorn(*leaves, n_iters=50, temperature=temperature, grad="implicit").plan
    for x, gradient in zip(leaves, gradients(plan, leaves), strict=True):
        assert gradient.dtype == dtype
        assert gradient.shape == x.shape
        assert gradient.isfinite().all()


def test_hard_plan_is_constant_in_the_cost():
    cost = leaf(1 - torch.eye(4, dtype=torch.float64))
    plan = sinkhorn(cost, temperature=1e-3, grad="implicit").plan
    close(plan, torch.eye(4), 1e-12)
    close(gradients(plan, [cost])[0], torch.zeros(4, 4), 1e-6)


@given(seed=st.integers(0, 10**6))
def test_float32_agrees_with_float64(seed):
    found = []
    for dtype in (torch.float32, torch.float64):
        cost, a, b = (x.to(dtype) for x in problem(3, 6, seed=seed, dtype=torch.float32))
        cost = leaf(cost / 2)
        t = sinkhorn(cost, a, b, n_iters=100, grad="implicit")
        found.append(gradients(t.plan, [cost])[0])
    close(found[0].double(), found[1], 1e-4)


def test_potentials_carry_no_gradient():
    cost, a, b = problem(3, 4, seed=0)
    t = sinkhorn(leaf(cost), leaf(a), leaf(b), grad="implicit")
    assert t.plan.requires_grad
    assert not t.u.requires_grad
    assert not t.v.requires_grad


def test_memory_does_not_grow_with_iterations():
    def kept(n_iters, grad):
        entries = []

        def keep(x):
            entries.append(x.numel())
            return x

        cost = leaf(randn(3, 40, seed=0))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            sinkhorn(cost, n_iters=n_iters, grad=grad)
        return sum(entries)

    assert kept(2, "implicit") == kept(50, "implicit")
    assert kept(2, "unroll") < kept(50, "unroll")


def test_second_derivative():
    """The backward pass is itself made of differentiable operations."""
    cost, a, b = problem(2, 3, seed=1)
    assert torch.autograd.gradgradcheck(lambda c: converged(c, a, b), [leaf(cost)])
