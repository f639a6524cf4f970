"""Assignment and exact transport in C against SciPy and POT, and against their own duals."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from slotmesh import emd
from slotmesh.ops import _native as native
from slotmesh.ops import assign, set_value_checks
from slotmesh.ops._native import exact
from slotmesh.ops.emd import cpu

from ._reference import close, generator

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason="no C library")

KINDS = ("uniform", "normal", "integers", "zeros and ones", "equal", "large", "few values")
kinds, seeds = st.sampled_from(KINDS), st.integers(0, 10**6)


def costs(kind, *shape, seed):
    random = generator(seed)
    if kind == "equal":
        return torch.full(shape, 3.0, dtype=torch.float64)
    if kind in ("integers", "zeros and ones"):
        highest = 10 if kind == "integers" else 2
        return torch.randint(0, highest, shape, generator=random).double()
    x = torch.randn(*shape, generator=random, dtype=torch.float64)
    if kind == "few values":  # ties that are no whole numbers
        return (x * 2).round() / 3
    return {"uniform": x.sigmoid(), "normal": x, "large": 1e9 * x}[kind]


def check_assignment(cost, partner, maximize=False):
    rows, columns = linear_sum_assignment(cost.numpy(), maximize=maximize)
    best = cost.numpy()[rows, columns].sum()
    matched = (partner >= 0).nonzero().squeeze(-1)
    assert len(matched) == len(set(partner[matched].tolist())) == min(cost.shape)
    total = cost[matched, partner[matched]].sum().item()
    assert abs(total - best) <= 1e-12 * cost.abs().sum().item()


@settings(max_examples=60)
@given(kind=kinds, m=st.integers(1, 30), n=st.integers(1, 30), seed=seeds, maximize=st.booleans())
def test_assignments_cost_what_those_of_scipy_cost(kind, m, n, seed, maximize):
    """A batch of problems per example: thousands of problems in all."""
    batch = costs(kind, 40, m, n, seed=seed)
    partners = assign(batch, maximize=maximize, backend="cpu")
    for cost, partner in zip(batch, partners, strict=True):
        check_assignment(cost, partner, maximize)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "n"), [(200, 200), (150, 211), (211, 150), (1, 300), (300, 1)])
def test_large_assignments(kind, m, n):
    cost = costs(kind, m, n, seed=0)
    check_assignment(cost, assign(cost, backend="cpu"))


def test_rows_that_outbid_each_other_by_very_little():
    """Everybody wants the same few columns, whose second best is nearly as good."""
    random = generator(0)
    cost = torch.ones(120, 120, dtype=torch.float64)
    cost[:, :3] = 1e-9 * torch.rand(120, 3, generator=random, dtype=torch.float64)
    cost[:, 3:] += 1e-9 * torch.rand(120, 117, generator=random, dtype=torch.float64)
    check_assignment(cost, assign(cost, backend="cpu"))


@settings(max_examples=60)
@given(kind=kinds, m=st.integers(1, 8), n=st.integers(1, 8), seed=seeds)
def test_padding_has_no_effect_on_assignments(kind, m, n, seed):
    random = generator(seed)
    cost = costs(kind, 20, m, n, seed=seed)
    slots, inputs = (torch.rand(20, size, generator=random) < 0.7 for size in (m, n))
    slots[:, 0] = inputs[:, 0] = True
    partners = assign(cost, slot_mask=slots, input_mask=inputs, backend="cpu")
    for one, row, column, partner in zip(cost, slots, inputs, partners, strict=True):
        assert (partner[~row] == -1).all()
        places = column.nonzero().squeeze(-1)
        inside = torch.tensor([-1 if j < 0 else int((places == j).nonzero()) for j in partner[row]])
        check_assignment(one[row][:, column], inside)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_costs_that_are_not_finite_are_an_error_even_unchecked(bad):
    cost = torch.zeros(3, 4, 4)
    cost[1, 2, 3] = bad
    before = set_value_checks("never")
    try:
        with pytest.raises(ValueError, match="not finite in 1 of 3 batch elements"):
            assign(cost, backend="cpu")
        # Padding may have any cost.
        real = torch.ones(3, 4, dtype=torch.bool)
        real[1, 2] = False
        assert assign(cost, slot_mask=real, backend="cpu")[1].tolist().count(-1) == 1
    finally:
        set_value_checks(before)


def masses(kind, *shape, seed):
    x = torch.randn(*shape, generator=generator(seed), dtype=torch.float64)
    if kind == "whole":
        return (x.abs() * 2).round() + 1.0
    return torch.ones_like(x) if kind == "equal" else (6 * x if kind == "uneven" else x).softmax(-1)


@settings(max_examples=100)
@given(
    kind=kinds,
    mass=st.sampled_from(("equal", "random", "uneven", "whole")),
    m=st.integers(1, 20),
    n=st.integers(1, 40),
    seed=seeds,
    empty=st.booleans(),
)
def test_transport_is_optimal_and_a_vertex(kind, mass, m, n, seed, empty):
    cost = costs(kind, 8, m, n, seed=seed)
    a, b = masses(mass, 8, m, seed=seed + 1), masses(mass, 8, n, seed=seed + 2)
    if empty:
        a[:, 1:][torch.rand(8, m - 1, generator=generator(seed)) < 0.3] = 0.0
    b = b * (a.sum(-1) / b.sum(-1)).unsqueeze(-1)
    t = emd(cost, a, b, backend="cpu")
    total, scale = a.sum(-1), cost.abs().amax((-2, -1)) + 1e-300
    assert t.converged.all()
    assert (t.plan >= 0).all()
    # Sums of plans that are so uneven are as exact as the whole mass is.
    assert ((t.plan.sum(-1) - a).abs().amax(-1) <= 1e-12 * total).all()
    assert ((t.plan.sum(-2) - b).abs().amax(-1) <= 1e-12 * total).all()
    assert ((t.plan > 0).sum((-2, -1)) <= m + n - 1).all()
    slack = cost - t.u.unsqueeze(-1) - t.v.unsqueeze(-2)
    assert (slack.amin((-2, -1)) >= -1e-12 * scale).all()
    assert ((slack * t.plan).abs().amax((-2, -1)) <= 1e-12 * scale * total).all()
    pot = emd(cost, a, b, backend="pot")
    values = [(x.plan * cost).sum((-2, -1)) for x in (t, pot)]
    assert ((values[0] - values[1]).abs() <= 1e-9 * scale * total).all()


def test_one_assignment_and_one_transport_agree():
    cost = costs("uniform", 100, 100, seed=0)
    plan = emd(cost).plan
    assert torch.equal(plan.argmax(-1), assign(cost))
    close(plan.sum(), 100.0, 1e-12)
    close(
        (plan * cost).sum(),
        (ot.emd(np.ones(100), np.ones(100), cost.numpy()) * cost.numpy()).sum(),
        1e-9,
    )


def test_which_solver_takes_which_problem(monkeypatch):
    """C takes small problems and assignments of any size, POT the rest."""
    asked = []
    monkeypatch.setattr(cpu, "solve_batch", lambda *args: asked.append("pot") or 1 / 0)
    emd(torch.rand(2, 5, 105))
    emd(torch.rand(100, 100))
    with pytest.raises(ZeroDivisionError):
        emd(torch.rand(5, 1000))
    with pytest.raises(ZeroDivisionError):
        emd(torch.rand(100, 100), torch.rand(100).softmax(-1))
    assert asked == ["pot", "pot"]


def test_what_c_gives_up_on_is_left_to_pot(monkeypatch):
    solve = exact.transport

    def tired(cost, a, b):
        *rest, _ = solve(cost, a, b)
        rest[0][1] = torch.nan
        return *rest, torch.tensor([True, False, True])

    monkeypatch.setattr(exact, "transport", tired)
    cost = costs("uniform", 3, 4, 6, seed=0)
    t, expected = emd(cost), emd(cost, backend="pot")
    assert t.converged.all()
    close(t.plan, expected.plan, 1e-12)


@pytest.mark.parametrize(("op", "other"), [(assign, "scipy"), (emd, "pot")])
def test_without_the_library(monkeypatch, op, other):
    monkeypatch.setattr(exact, "load", lambda: "no compiler")
    cost = costs("uniform", 3, 4, 6, seed=0)
    with pytest.raises(ValueError, match=f"{op.__name__}: backend is 'cpu'.*no compiler.*{other}"):
        op(cost, backend="cpu")
    found, expected = op(cost), op(cost, backend=other)
    assert torch.equal(*(x if op is assign else x.plan for x in (found, expected)))


@pytest.mark.parametrize("op", [assign, emd])
def test_threads_do_not_change_results(op):
    cost = costs("few values", 500, 7, 9, seed=0)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(op(cost, backend="cpu"))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(*(x if op is assign else x.plan for x in (found[0], other)))


@pytest.mark.parametrize("op", [assign, emd])
def test_an_eager_call_goes_straight_to_c(op):
    """Without an operator of torch, and with the same result."""
    cost = costs("normal", 3, 4, 6, seed=0).float()
    masses = () if op is assign else tuple(torch.full((3, k), 12 / k) for k in (4, 6))
    expected = op(cost, *masses, backend="scipy" if op is assign else "pot")
    # Without this argument torch 2.11 warns.
    with torch.profiler.profile(acc_events=True) as seen:
        found = op(cost, *masses)
    assert not [x.key for x in seen.key_averages() if x.key.startswith("slotmesh::")]
    for x, y in zip(*((t,) if op is assign else t for t in (found, expected)), strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        if op is assign:
            assert torch.equal(x, y)
    if op is emd:
        close(found.plan, expected.plan, 1e-6)
        close(found.marginal_error, expected.marginal_error, 1e-6)
        assert found.converged.all()


def test_what_is_unusual_goes_the_long_way():
    """Elements without mass, masses that broadcast, total masses that differ, bad numbers."""
    cost, b = costs("normal", 3, 4, 6, seed=1), torch.full((3, 6), 2.0)
    a = torch.tensor([[4.0, 0.0, 4.0, 4.0]]).expand(3, 4)
    for masses in ((a, b), (a[0], b[0]), (None, b)):
        t, expected = emd(cost, *masses), emd(cost, *masses, backend="pot")
        close(t.plan, expected.plan, 1e-9)
        assert (t.u[..., None] + t.v[..., None, :] <= cost + 1e-9).all()
    with pytest.raises(ValueError, match="different totals"):
        emd(cost, a.contiguous() + 0.1, b)
    for bad in (-1.0, torch.nan, torch.inf):
        wrong = b.clone()
        wrong[1, 2] = bad
        with pytest.raises(ValueError, match="b has"):
            emd(cost, torch.full((3, 4), 3.0), wrong)
    cost[2, 1, 1] = torch.nan
    for op in (assign, emd):
        with pytest.raises(ValueError, match="cost has 1 entries that are not finite"):
            op(cost)
