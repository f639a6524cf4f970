"""Sinkhorn: its fixed point, every iteration before it, tolerance, marginals, temperature."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.ops import Transport, sinkhorn

from ._reference import close, gradients, leaf, masses, numpy_sinkhorn, problem, randn

sizes = st.integers(1, 6)
seeds = st.integers(0, 10**6)


@given(m=sizes, n=sizes, seed=seeds, temperature=st.floats(0.7, 5.0))
def test_converges_to_the_plan_of_POT(m, n, seed, temperature):
    cost, a, b = problem(m, n, seed=seed)
    t = sinkhorn(cost, a, b, n_iters=600, tol=1e-9, temperature=temperature)
    assert t.converged
    expected = ot.sinkhorn(
        a.numpy(),
        b.numpy(),
        cost.numpy(),
        reg=temperature,
        method="sinkhorn_log",
        stopThr=1e-10,
        numItermax=5000,
    )
    close(t.plan, expected, 1e-6)


@given(
    m=sizes,
    n=sizes,
    seed=seeds,
    n_iters=st.integers(1, 6),
    temperature=st.floats(0.1, 10.0),
    warm=st.booleans(),
)
def test_every_iteration_equals_numpy(m, n, seed, n_iters, temperature, warm):
    cost, a, b = problem(m, n, seed=seed)
    u = randn(m, seed=seed + 1) if warm else None
    t = sinkhorn(
        cost,
        a,
        b,
        n_iters=n_iters,
        temperature=temperature,
        init=None if u is None else (u, torch.zeros(n, dtype=cost.dtype)),
    )
    plan, log_u, log_v = numpy_sinkhorn(cost, a, b, n_iters, temperature, u)
    close(t.plan, plan, 1e-12)
    # Potentials grow like cost / temperature, and their rounding with them.
    close(t.u, log_u, 1e-12, 1e-13)
    close(t.v, log_v, 1e-12, 1e-13)
    assert t.n_iters.item() == n_iters


@given(m=sizes, n=sizes, seed=seeds, temperature=st.floats(0.2, 10.0), tol=st.booleans())
def test_potentials_reproduce_the_plan(m, n, seed, temperature, tol):
    cost, a, b = problem(2, m, n, seed=seed)
    t = sinkhorn(cost, a, b, n_iters=7, temperature=temperature, tol=1e-3 if tol else None)
    close((t.u[..., None] + t.v[..., None, :] - cost / temperature).exp(), t.plan, 1e-12)
    assert t.cost is cost


def test_continues_from_an_earlier_result():
    cost, a, b = problem(3, 4, 5, seed=0)
    first = sinkhorn(cost, a, b, n_iters=2)
    second = sinkhorn(cost, a, b, n_iters=3, init=(first.u, first.v))
    close(second.plan, sinkhorn(cost, a, b, n_iters=5).plan, 1e-14)


def test_only_u_of_the_start_matters():
    cost, a, b = problem(4, 5, seed=0)
    u = randn(4, seed=3)
    plans = [sinkhorn(cost, a, b, n_iters=1, init=(u, randn(5, seed=s))).plan for s in (1, 2)]
    assert torch.equal(*plans)


@given(m=sizes, n=sizes, seed=seeds)
def test_slot_sums_are_exact_and_the_error_is_the_inputs(m, n, seed):
    cost, a, b = problem(m, n, seed=seed)
    t = sinkhorn(cost, a, b, n_iters=1)
    close(t.plan.sum(-1), a, 1e-14 * m)
    plan = t.plan.numpy()
    wrong = np.abs(plan.sum(1) - a.numpy()).sum() + np.abs(plan.sum(0) - b.numpy()).sum()
    close(t.marginal_error, wrong / a.numpy().sum(), 1e-14)


def test_equal_slots_get_equal_rows():
    cost = randn(1, 5, seed=0).expand(3, 5)
    plan = sinkhorn(cost, n_iters=10, temperature=0.05).plan
    close(plan, plan[:1].expand(3, 5), 1e-15)


# Tolerance


@given(seed=seeds, exponent=st.floats(-8.0, -2.0))
def test_tolerance_is_judged_for_each_batch_element(seed, exponent):
    """Each element stops at its own first iteration within ``tol``, as if it were alone."""
    tol, most = 10.0**exponent, 25
    cost, a, b = problem(4, 3, 5, seed=seed)
    # Hard, ordinary, easy and trivial: they need different numbers of iterations.
    cost = cost * torch.tensor([6.0, 1.0, 0.1, 0.0], dtype=cost.dtype)[:, None, None]
    t = sinkhorn(cost, a, b, n_iters=most, tol=tol)
    assert t.n_iters[-1] < t.n_iters[0]
    for i in range(4):
        one, count = (cost[i], a[i], b[i]), int(t.n_iters[i])
        alone = sinkhorn(*one, n_iters=most, tol=tol)
        assert alone.n_iters == count
        assert alone.converged == t.converged[i]
        close(t.plan[i], alone.plan, 1e-14)

        fixed = sinkhorn(*one, n_iters=count)
        close(t.plan[i], fixed.plan, 1e-14)
        close(t.u[i], fixed.u, 1e-12)
        close(t.v[i], fixed.v, 1e-12)

        error = (fixed.plan.sum(0) - b[i]).abs().sum() / b[i].sum()
        close(t.marginal_error[i], error, 1e-13)
        assert bool(t.converged[i]) == bool(error <= tol)
        assert bool(t.converged[i]) or count == most
        if count > 1:
            assert sinkhorn(*one, n_iters=count - 1).marginal_error > tol


def test_partners_do_not_change_a_tolerance_run():
    cost, a, b = problem(3, 4, 5, seed=1)
    other = cost.clone()
    other[1:] *= 50
    first, second = (sinkhorn(c, a, b, n_iters=40, tol=1e-6) for c in (cost, other))
    assert not torch.equal(first.n_iters[1:], second.n_iters[1:])
    for x, y in zip(first, second, strict=True):
        assert torch.equal(x[0], y[0])


def test_tolerance_never_reached_is_reported():
    cost, a, b = problem(4, 5, seed=0)
    t = sinkhorn(20 * cost, a, b, n_iters=3, tol=1e-9)
    assert t.n_iters == 3
    assert not t.converged
    assert t.marginal_error > 1e-9


def test_gradient_with_a_tolerance_is_that_of_the_iterations_taken():
    cost, a, b = problem(2, 3, 4, seed=5)
    leaves = [leaf(x) for x in (cost, a, b)]
    t = sinkhorn(*leaves, n_iters=50, tol=1e-4)
    actual = gradients(t.plan, leaves, allow_unused=True)
    weights = randn(2, 3, 4, seed=104729)
    for i in range(2):
        alone = [leaf(x[i]) for x in (cost, a, b)]
        plan = sinkhorn(*alone, n_iters=int(t.n_iters[i])).plan
        expected = torch.autograd.grad((plan * weights[i]).sum(), alone)
        for x, y in zip(actual, expected, strict=True):
            close(x[i], y, 1e-12)


@pytest.mark.parametrize("mass", [0.0, 1e-40])
def test_tolerance_is_reached_with_an_input_of_no_mass(mass):
    cost = randn(3, 4, seed=0, dtype=torch.float32)
    t = sinkhorn(cost, b=torch.tensor([1.0, 1.0, 1.0, mass]), n_iters=100, tol=1e-3)
    without = sinkhorn(cost[:, :3], b=torch.ones(3), n_iters=100, tol=1e-3)
    assert t.n_iters == without.n_iters < 100
    assert t.converged


@pytest.mark.parametrize(("tol", "expected"), [(None, True), (1e-9, False)])
def test_converged_without_tolerance_means_a_thousandth(tol, expected):
    cost, a, b = problem(3, 4, seed=0)
    error = 1.0
    count = 0
    while error > 1e-3:
        count += 1
        error = sinkhorn(cost, a, b, n_iters=count).marginal_error.item()
        assert bool(sinkhorn(cost, a, b, n_iters=count).converged) == (error <= 1e-3)
    assert bool(sinkhorn(cost, a, b, n_iters=count, tol=tol).converged) == expected


# Marginals


def test_default_marginals_give_each_slot_one_unit():
    t = sinkhorn(randn(3, 5, seed=0), n_iters=200)
    close(t.plan.sum(-1), np.ones(3), 1e-12)
    close(t.plan.sum(-2), np.full(5, 3 / 5), 1e-9)


def test_default_marginals_are_uniform_over_real_elements():
    slot_mask = torch.tensor([True, False, True])
    input_mask = torch.tensor([True, True, False, True, True])
    t = sinkhorn(randn(3, 5, seed=0), n_iters=200, slot_mask=slot_mask, input_mask=input_mask)
    close(t.plan.sum(-1), slot_mask.double(), 1e-12)
    close(t.plan.sum(-2), input_mask * 0.5, 1e-9)


def test_one_given_marginal_sets_the_total_of_the_other():
    cost, a, b = problem(3, 5, seed=0)
    a, b = 1.7 * a / a.sum(), 0.4 * b / b.sum()
    only_a, only_b = sinkhorn(cost, a=a, n_iters=300), sinkhorn(cost, b=b, n_iters=300)
    close(only_a.plan.sum(-1), a, 1e-12)
    close(only_a.plan.sum(-2), np.full(5, 1.7 / 5), 1e-9)
    close(only_b.plan.sum(-1), np.full(3, 0.4 / 3), 1e-12)
    close(only_b.plan.sum(-2), b, 1e-9)


def test_one_given_marginal_and_the_other_side_masked():
    cost, a, b = problem(3, 5, seed=0)
    input_mask = torch.tensor([True, True, False, True, True])
    t = sinkhorn(cost, a=a, input_mask=input_mask, n_iters=300)
    close(t.plan.sum(-2), input_mask * (a.sum() / 4), 1e-9)
    slot_mask = torch.tensor([True, False, True])
    t = sinkhorn(cost, b=b, slot_mask=slot_mask, n_iters=300)
    close(t.plan.sum(-1), slot_mask * (b.sum() / 2), 1e-12)


@pytest.mark.parametrize("batch", [(), (2,), (2, 1, 3)])
def test_batch_shapes(batch):
    cost, a, b = problem(*batch, 3, 4, seed=0)
    t = sinkhorn(cost, a, b)
    assert t.plan.shape == (*batch, 3, 4)
    assert t.u.shape == (*batch, 3)
    assert t.v.shape == (*batch, 4)
    assert t.marginal_error.shape == t.n_iters.shape == t.converged.shape == batch
    assert t.entropy().shape == batch
    flat = sinkhorn(cost.reshape(-1, 3, 4), a.reshape(-1, 3), b.reshape(-1, 4))
    close(t.plan.reshape(-1, 3, 4), flat.plan, 1e-14)


def test_marginals_and_masks_broadcast_over_the_batch():
    cost = randn(2, 3, 4, seed=0)
    a = masses(3, seed=1, total=3.0)
    mask = torch.tensor([[True] * 4, [True, True, True, False]])[:, None].expand(2, 2, 4)
    t = sinkhorn(cost[:, None], a, input_mask=mask[:, :1])
    for i in range(2):
        close(t.plan[i, 0], sinkhorn(cost[i], a, input_mask=mask[i, 0]).plan, 1e-14)
    many = sinkhorn(cost[0], masses(5, 3, seed=2, total=3.0))
    assert many.plan.shape == (5, 3, 4)


def test_an_empty_batch_is_fine():
    t = sinkhorn(torch.zeros(0, 3, 4), tol=1e-3)
    assert t.plan.shape == (0, 3, 4)
    assert t.converged.shape == (0,)


# Temperature


@given(seed=seeds)
def test_temperature_for_each_batch_element(seed):
    cost, a, b = problem(3, 4, 5, seed=seed)
    temperature = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)
    t = sinkhorn(cost, a, b, temperature=temperature)
    for i in range(3):
        plan, *_ = numpy_sinkhorn(cost[i], a[i], b[i], 5, float(temperature[i]))
        close(t.plan[i], plan, 1e-12)


def test_temperature_broadcasts_over_batch_dimensions():
    cost = randn(2, 3, 4, 5, seed=0)
    temperature = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    close(
        sinkhorn(cost, temperature=temperature).plan,
        torch.stack([sinkhorn(cost[i], temperature=float(temperature[i])).plan for i in range(2)]),
        1e-14,
    )
    close(
        sinkhorn(cost, temperature=torch.tensor(0.5)).plan,
        sinkhorn(cost, temperature=0.5).plan,
        1e-14,
    )


# Gradients


@pytest.mark.parametrize(("m", "n"), [(2, 4), (3, 3), (4, 2), (1, 3), (3, 1)])
@pytest.mark.parametrize("n_iters", [1, 3])
def test_gradcheck_of_the_unrolled_iterations(m, n, n_iters):
    def plan(cost, log_a, log_b, log_temperature, u):
        t = sinkhorn(
            cost,
            m * log_a.softmax(-1),
            m * log_b.softmax(-1),
            temperature=log_temperature.exp(),
            n_iters=n_iters,
            init=(u, torch.zeros_like(log_b)),
        )
        return t.plan, t.u, t.v

    inputs = [randn(*s, seed=i) for i, s in enumerate([(2, m, n), (2, m), (2, n), (2,), (2, m)])]
    assert torch.autograd.gradcheck(plan, [leaf(x) for x in inputs])


def test_default_marginals_pass_the_gradient_of_the_given_one():
    cost, a, b = problem(3, 4, seed=0)
    inputs = [leaf(x) for x in (cost, a)]
    assert torch.autograd.gradcheck(lambda c, a: sinkhorn(c, a).plan, inputs)
    inputs = [leaf(x) for x in (cost, b)]
    assert torch.autograd.gradcheck(lambda c, b: sinkhorn(c, b=b).plan, inputs)


def test_no_default_of_a_transport_is_a_tensor() -> None:
    """torch.compile of torch 2.11 cannot take one over into a graph."""
    assert not any(isinstance(x, torch.Tensor) for x in Transport._field_defaults.values())
