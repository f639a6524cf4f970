"""The implicit gradient in C against the pure-torch truth in float64."""

import importlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.ops import _native, sinkhorn
from slotmesh.ops._cpu import Batch

from ._compiled import needs_c
from ._kernels import near
from ._reference import close, leaf, randn

pytestmark = needs_c

F32 = torch.float32
# The package has a function of the module's name.
truth = importlib.import_module("slotmesh.ops._implicit").plan_adjoint


def in_c(plan, grad, tau=1.0):
    """Gradients by cost, a, b and tau."""
    batch, m, n = plan.shape
    cost = randn(batch, m, n, seed=0, dtype=F32)
    problem = Batch(cost, plan.new_ones(batch, m), plan.new_ones(batch, n), None, tau, 0.0, None)
    like = (cost, problem.a, problem.b, plan.new_ones(batch, 1, 1))
    into = _native.NativeGradients(*(torch.full_like(x, torch.nan) for x in like), None)
    _native.adjoint(problem, plan, grad, into)
    return into[:4], cost


def compare(plan, grad, tau=1.0, names=("cost", "a", "b", "tau")):
    found, cost = in_c(plan, grad, tau)
    kernel, a, b = truth(plan.double(), grad.double())
    grad_cost = -kernel / tau
    grad_tau = -(grad_cost * cost).sum((-2, -1), keepdim=True) / tau
    expected = {"cost": grad_cost, "a": a, "b": b, "tau": grad_tau}
    for x, (name, y) in zip(found, expected.items(), strict=True):
        if name in names:
            near(x, y, 1e-5, name)


@given(
    m=st.sampled_from([1, 2, 3, 5, 11, 32, 33, 64, 100]),
    n=st.sampled_from([1, 2, 7, 8, 9, 33, 64, 65, 130]),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.1, 2.0, 10.0]),
    tau=st.sampled_from([0.3, 1.0, 5.0]),
    empty=st.booleans(),
)
def test_agrees(m, n, seed, spread, tau, empty):
    plan = (spread * randn(2, m, n, seed=seed, dtype=F32)).softmax(-1)
    if empty:
        plan[0, m // 2] = 0
        plan[1, :, n // 2] = 0
    # Of parts that share next to nothing the gradients of masses are anything, as below.
    names = ("cost", "tau") if spread > 2 else ("cost", "a", "b", "tau")
    compare(plan, randn(2, m, n, seed=seed + 1, dtype=F32), tau, names)


def test_parts_that_share_nothing_or_next_to_it():
    blocks = torch.block_diag(torch.full((2, 3), 0.2), torch.full((2, 4), 0.3))[None]
    grad = randn(1, 4, 7, seed=6, dtype=F32)
    # A constant may move between masses of the same part: their gradients are anything.
    compare(blocks, grad, names=("cost", "tau"))
    compare(blocks + 1e-6 * randn(1, 4, 7, seed=5, dtype=F32).abs(), grad)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 30.0])
@pytest.mark.parametrize(("m", "n"), [(96, 96), (130, 257)])
def test_many_slots_with_and_without_a_system(m, n, spread):
    """Conjugate gradients where they converge, and elimination where a plan is nearly one-hot."""
    plan = (spread * randn(2, m, n, seed=m, dtype=F32)).softmax(-1)
    plan[0, 3] = plan[1, :, 5] = 0
    names = ("cost", "tau") if spread > 2 else ("cost", "a", "b", "tau")
    compare(plan, randn(2, m, n, seed=8, dtype=F32), 0.7, names)


def test_nan_among_many_slots_stays_in_its_element():
    plan, grad = (randn(2, 100, 100, seed=k, dtype=F32).softmax(-1) for k in (1, 2))
    clean, _ = in_c(plan, grad)
    grad[1, 2, 3] = torch.nan
    found, _ = in_c(plan, grad)
    assert torch.equal(found[0][0], clean[0][0])
    assert found[0][1].isnan().any()


def test_a_gradient_where_nothing_goes_does_not_count():
    plan = randn(2, 3, 9, seed=1, dtype=F32).softmax(-1)
    plan[:, 1] = plan[:, :, 2:4] = 0
    grad = randn(2, 3, 9, seed=2, dtype=F32)
    clean, _ = in_c(plan, grad)
    grad[plan == 0] = torch.nan
    for x, y in zip(in_c(plan, grad)[0], clean, strict=True):
        assert torch.equal(x, y)


def test_nan_stays_in_its_element():
    plan, grad = (randn(3, 4, 9, seed=k, dtype=F32).softmax(-1) for k in (1, 2))
    clean, _ = in_c(plan, grad)
    grad[1, 2, 3] = torch.nan
    for x, y in zip(in_c(plan, grad)[0], clean, strict=True):
        assert torch.equal(x[0], y[0])
        assert torch.equal(x[2], y[2])
        assert x[1].isnan().any()


def test_does_not_depend_on_the_batch_or_on_threads():
    plan, grad = (randn(8, 6, 4096, seed=k, dtype=F32).softmax(-1) for k in (3, 4))
    whole, _ = in_c(plan, grad)  # enough for several threads
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone, _ = in_c(plan, grad)
    finally:
        torch.set_num_threads(before)
    one, _ = in_c(plan[5:6], grad[5:6])
    for x, y, z in zip(whole[:3], alone, one, strict=False):
        assert torch.equal(x, y)
        assert torch.equal(x[5:6], z)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 7, 3)])
def test_derivatives_of_second_order(shape):
    """By torch, as are plans with more slots than inputs."""
    cost = randn(*shape, seed=7)
    found = []
    for backend, dtype in (("cpu", F32), ("torch", torch.float64)):
        x = leaf(cost.to(dtype))
        plan = sinkhorn(x, n_iters=50, grad="implicit", backend=backend).plan
        (first,) = torch.autograd.grad(plan.square().sum(), x, create_graph=True)
        found.append((first.detach(), *torch.autograd.grad(first.square().sum(), x)))
    for ours, right in zip(*found, strict=True):
        close(ours.double(), right, 1e-4)
