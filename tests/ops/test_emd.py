"""Exact transport against POT and a general linear programming solver."""

import threading
import warnings
from functools import partial

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from torch._subclasses.fake_tensor import FakeTensorMode

from slotmesh.ops import _fused, emd
from slotmesh.ops.emd.cpu import emd_batch

from ._reference import close, generator, leaf, masses, operators_of, problem, randn

sizes = st.integers(1, 6)
seeds = st.integers(0, 10**6)
shapes = st.tuples(st.integers(1, 5), st.integers(1, 5))


def least_cost(cost, a, b):
    """The optimum by simplex or interior point, as HiGHS likes: nothing about transport."""
    m, n = cost.shape
    rows = np.kron(np.eye(m), np.ones(n))
    columns = np.kron(np.ones(m), np.eye(n))
    # The last constraint follows from the others; left in, rounding could make them contradict.
    return linprog(
        cost.numpy().ravel(),
        A_eq=np.vstack([rows, columns])[:-1],
        b_eq=np.concatenate([a.numpy(), b.numpy()])[:-1],
        method="highs",
    ).fun


def check_optimal(cost, a, b, t, atol=1e-9):
    """Feasible, a vertex, and proved optimal by its own duals."""
    m, n = cost.shape
    assert (t.plan >= 0).all()
    close(t.plan.sum(-1), a, atol)
    close(t.plan.sum(-2), b, atol)
    assert int((t.plan > 0).sum()) <= m + n - 1
    slack = cost - t.u[:, None] - t.v
    assert slack.min() > -atol
    assert (slack * t.plan).abs().max() < atol
    close((t.plan * cost).sum(), t.u @ a + t.v @ b, atol * 10)
    assert t.converged
    assert t.n_iters == 0
    close(t.marginal_error, 0.0, 1e-12)


@given(m=sizes, n=sizes, seed=seeds)
def test_random_problems(m, n, seed):
    cost, a, b = problem(m, n, seed=seed)
    t = emd(cost, a, b)
    check_optimal(cost, a, b, t)
    best = (t.plan * cost).sum()
    close(best, least_cost(cost, a, b), 1e-9)
    # POT by itself gives up on costs below -1.
    plan = ot.emd(a.numpy(), b.numpy(), (cost - cost.min()).numpy())
    close(best, (plan * cost.numpy()).sum(), 1e-9)


@given(cost=shapes.flatmap(lambda s: arrays(np.int64, s, elements=st.integers(0, 2))))
def test_ties(cost):
    """Whole-number costs from a small set, all-equal ones among them, and uniform marginals."""
    cost = torch.from_numpy(cost).double()
    m, n = cost.shape
    a, b = torch.ones(m, dtype=torch.float64), torch.full((n,), m / n, dtype=torch.float64)
    t = emd(cost)
    check_optimal(cost, a, b, t)
    close((t.plan * cost).sum(), least_cost(cost, a, b), 1e-9)


@pytest.mark.parametrize(("m", "n"), [(2, 2), (4, 4), (3, 5), (5, 3), (1, 4), (4, 1)])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_all_equal_costs(m, n, value):
    cost = torch.full((m, n), value, dtype=torch.float64)
    t = emd(cost)
    a, b = torch.ones(m, dtype=torch.float64), torch.full((n,), m / n, dtype=torch.float64)
    check_optimal(cost, a, b, t)
    if m == n:
        assert sorted(t.plan.argmax(-1).tolist()) == list(range(m))
    assert torch.equal(t.plan, emd(cost).plan)


@given(
    m=sizes,
    n=sizes,
    seed=seeds,
    zero_slots=st.integers(0, 3),
    zero_inputs=st.integers(0, 3),
)
def test_duals_are_feasible_where_there_is_no_mass(m, n, seed, zero_slots, zero_inputs):
    cost, a, b = problem(m, n, seed=seed)
    a[1 : 1 + zero_slots] = 0
    b[1 : 1 + zero_inputs] = 0
    b = b * (a.sum() / b.sum())
    t = emd(cost, a, b)
    check_optimal(cost, a, b, t)
    assert not t.plan[a == 0].any()
    assert not t.plan[:, b == 0].any()


def test_duals_without_any_mass_are_feasible_too():
    cost = randn(3, 4, seed=0)
    t = emd(cost, torch.zeros(3), torch.zeros(4))
    assert not t.plan.any()
    assert t.converged
    assert (cost - t.u[:, None] - t.v).min() >= 0


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e30])
def test_the_size_of_costs_does_not_matter(scale):
    """The simplex compares with absolute thresholds, which a caller must not notice."""
    cost, a, b = problem(6, 9, seed=0)
    expected, t = emd(cost, a, b), emd(scale * cost, a, b)
    close(t.plan, expected.plan, 1e-12)
    close(t.u[:, None] + t.v, scale * (expected.u[:, None] + expected.v), 1e-12 * scale)


@pytest.mark.parametrize("shift", [-1e3, -3.0, 3.0, 1e3])
def test_the_sign_of_costs_does_not_matter(shift):
    cost, a, b = problem(6, 9, seed=0)
    expected, t = emd(cost, a, b), emd(cost + shift, a, b)
    assert t.converged
    close(t.plan, expected.plan, 1e-12)
    close(t.u[:, None] + t.v, expected.u[:, None] + expected.v + shift, 1e-9)


@pytest.mark.parametrize("scale", [1e-25, 1e-9, 1e9, 1e25])
def test_the_size_of_masses_does_not_matter(scale):
    cost, a, b = problem(6, 9, seed=0)
    expected, t = emd(cost, a, b), emd(cost, scale * a, scale * b)
    assert t.converged
    close(t.plan / scale, expected.plan, 1e-12)


@given(seed=seeds)
def test_equals_solving_one_by_one(seed):
    cost, a, b = problem(2, 3, 4, 5, seed=seed)
    t = emd(cost, a, b)
    assert t.plan.shape == (2, 3, 4, 5)
    assert t.converged.shape == t.n_iters.shape == t.marginal_error.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one = emd(cost[i, j], a[i, j], b[i, j])
            for whole, part in zip(t, one, strict=True):
                assert torch.equal(whole[i, j], part)


def test_works_inside_vmap():
    cost, a, b = problem(3, 4, 5, seed=0)
    for x, y in zip(torch.vmap(emd)(cost, a, b), emd(cost, a, b), strict=True):
        close(x, y, 1e-12)
    shared = torch.vmap(lambda a, b: emd(cost[0], a, b).plan)(a, b)
    close(shared, emd(cost[0].expand(3, 4, 5), a, b).plan, 1e-12)
    nested = torch.vmap(torch.vmap(lambda c: emd(c).plan))(cost.expand(2, 3, 4, 5))
    close(nested, emd(cost).plan.expand(2, 3, 4, 5), 1e-12)


def test_operator_inside_vmap_over_any_dimension():
    cost, a, b = problem(6, 2, 4, 5, seed=0)
    solver = partial(emd_batch, backend="auto")
    expected = torch.vmap(solver)(cost, a, b)
    moved = cost.movedim(0, 3), a.movedim(0, 1), b.movedim(0, 2)
    for x, y in zip(torch.vmap(solver, in_dims=(3, 1, 2))(*moved), expected, strict=True):
        assert torch.equal(x, y)


def test_the_plan_carries_no_gradient_but_the_optimum_has_one():
    cost, a, b = (leaf(x) for x in problem(3, 4, seed=0))
    t = emd(cost, a, b)
    assert not any(x.requires_grad for x in (t.plan, t.u, t.v, t.marginal_error))
    (gradient,) = torch.autograd.grad((t.plan * cost).sum(), cost)
    assert torch.equal(gradient, t.plan)


def test_rounded_marginals_never_raise():
    """Softmax in float32 misses its total by up to 1e-6, which POT alone does not accept."""
    batch, m, n = 300, 10, 1024
    random = generator(0)
    cost = torch.rand(batch, m, n, generator=random)
    a = m * torch.randn(batch, m, generator=random).softmax(-1)
    b = m * torch.randn(batch, n, generator=random).softmax(-1)
    assert ((a.double().sum(-1) - b.double().sum(-1)).abs() > 1e-7).any()
    t = emd(cost, a, b)
    assert t.converged.all()
    assert t.marginal_error.max() < 1e-12
    close(t.plan.sum(-1), a, 1e-5)
    close(t.plan.sum(-2), b, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_solved_in_float64(dtype):
    cost, a, b = problem(4, 6, seed=0, dtype=torch.float32)
    cost = cost.to(dtype)
    t, exact = emd(cost, a, b), emd(cost.double(), a, b)
    assert t.plan.dtype == dtype
    assert t.u.dtype == t.v.dtype == t.marginal_error.dtype == torch.float32
    assert torch.equal(t.plan, exact.plan.to(dtype))
    assert torch.equal(t.u, exact.u.float())
    assert torch.equal(t.v, exact.v.float())


def test_an_empty_batch_is_fine():
    t = emd(torch.zeros(0, 3, 4))
    assert t.plan.shape == (0, 3, 4)
    assert t.converged.shape == (0,)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_stopping_before_the_optimum_is_reported(monkeypatch, batch):
    """POT out of iterations: a warning for the batch, and converged says which."""
    simplex = ot.emd
    monkeypatch.setattr(ot, "emd", lambda *args, **kw: simplex(*args, **{**kw, "numItermax": 1}))
    cost = randn(*batch, 20, 30, seed=0)
    with pytest.warns(UserWarning, match=r"emd: \d of \d problems stopped before their optimum"):
        t = emd(cost, backend="pot")
    assert not t.converged.any()


def test_two_batches_at_once_leave_the_filters_of_warnings(monkeypatch):
    """A second batch starts while the first is solved, and ends after it."""
    simplex, solving = ot.emd, threading.Semaphore(0)
    second = threading.Thread(target=emd, args=(torch.zeros(2, 3),), kwargs={"backend": "pot"})
    first_ended = threading.Event()

    def solve(*args, **kw):
        if threading.current_thread() is second:
            solving.release()
            first_ended.wait(60)
        else:
            second.start()
            # It must not get so far, and has time to show that it does.
            solving.acquire(timeout=0.5)
        return simplex(*args, **kw)

    monkeypatch.setattr(ot, "emd", solve)
    before = list(warnings.filters)
    emd(torch.zeros(2, 3), backend="pot")
    first_ended.set()
    second.join()
    assert warnings.filters == before


@pytest.mark.slow
def test_large_problem():
    """Two slots and an image of inputs: sorting by the difference of costs is optimal."""
    n = 128 * 128
    cost = randn(2, n, seed=0)
    a = torch.tensor([0.75, 1.25], dtype=torch.float64)
    t = emd(cost, a)
    assert t.converged
    close(t.plan.sum(-1), a, 1e-9)
    close(t.plan.sum(-2), np.full(n, 2 / n), 1e-12)
    # Slot 0 takes the inputs that are cheapest for it compared with slot 1, until it is full.
    order = (cost[0] - cost[1]).argsort()
    share = (a[0] - torch.arange(n) * (2 / n)).clamp(0, 2 / n)
    best = (cost[0][order] * share).sum() + (cost[1][order] * (2 / n - share)).sum()
    close((t.plan * cost).sum(), best, 1e-9)


def test_one_marginal_given():
    a = masses(3, seed=0, total=2.0)
    plan = emd(randn(3, 5, seed=1), a).plan
    close(plan.sum(-1), a, 1e-12)
    close(plan.sum(-2), np.full(5, 2 / 5), 1e-12)


def test_chosen_solver(monkeypatch):
    """The kernel on a CUDA device where it fits, else C or POT; only by name on the CPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert operators_of(lambda: emd(randn(2, 3, 4, seed=0))) == ["emd"]
    with FakeTensorMode():  # a device that need not be there, whose values cannot be read
        on_gpu = {
            m: [torch.empty(2, *shape, device="cuda") for shape in ((m, 50), (m,), (50,))]
            for m in (32, 33)
        }
        monkeypatch.setattr(_fused, "_HAS_TRITON", True)
        assert operators_of(lambda: emd(*on_gpu[32])) == ["emd_small"]
        assert operators_of(lambda: emd(*on_gpu[33])) == ["emd"]
        assert operators_of(lambda: emd(*on_gpu[32], backend="pot")) == ["emd"]
        t = emd(*on_gpu[32])
        assert t.plan.device.type == t.converged.device.type == "cuda"
        monkeypatch.setattr(_fused, "_HAS_TRITON", False)
        assert operators_of(lambda: emd(*on_gpu[32])) == ["emd"]
