"""What matching layers need: allowed pairs, dustbins, partial and unbalanced plans, log plans."""

import math
import warnings

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from slotmesh import emd, mesh, sinkhorn
from slotmesh.nn import Sinkhorn
from slotmesh.ops import assign, set_value_checks

from ._compiled import needs_c
from ._reference import close, generator, leaf, masses, randn

seeds = st.integers(0, 10**6)
sizes = st.tuples(st.integers(2, 6), st.integers(2, 6))
BACKENDS = ["torch", pytest.param("cpu", marks=needs_c)]


def some_pairs(m, n, seed, batch=()):
    """A random mask under which some plan with equal masses exists: that of a plan is kept."""
    mask = torch.rand(*batch, m, n, generator=generator(seed)) < 0.5
    plan = emd(randn(*batch, m, n, seed=seed + 1), backend="pot").plan
    return mask | (plan > 0)


# Allowed pairs


@settings(max_examples=15)
@given(size=sizes, seed=seeds, temperature=st.sampled_from([0.5, 1.0]))
def test_allowed_pairs_are_an_infinite_cost_for_the_others(size, seed, temperature):
    """Against POT with a kernel that is exactly 0 there."""
    mask, cost = some_pairs(*size, seed), randn(*size, seed=seed + 2)
    m, n = size
    t = sinkhorn(cost, pair_mask=mask, temperature=temperature, n_iters=100)
    kernel = np.where(mask.numpy(), np.exp(-cost.numpy() / temperature), 0.0)
    u, v = np.ones(m), np.ones(n)
    for _ in range(100):
        v = (m / n) / (kernel.T @ u)
        u = 1 / (kernel @ v)
    close(t.plan, u[:, None] * kernel * v, 1e-9)
    assert (t.plan[~mask] == 0).all()
    assert (t.cost[~mask] == torch.inf).all()
    assert torch.equal(t.cost[mask], cost[mask])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", [sinkhorn, mesh])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_pairs_that_are_not_allowed_may_have_any_cost(op, backend, scale):
    """And get no gradient, on every backend."""
    mask = some_pairs(4, 6, seed=0, batch=(3,))
    clean = scale * randn(3, 4, 6, seed=1, dtype=torch.float32)
    noise = {"noise": 1e-3 * randn(3, 4, 6, seed=2, dtype=torch.float32)} if op is mesh else {}
    found = []
    for spoiled in (0.0, 1e6, math.nan, -math.inf):
        cost = leaf(torch.where(mask, clean, spoiled))
        t = op(cost, pair_mask=mask, backend=backend, **noise)
        (gradient,) = torch.autograd.grad((t.plan * clean).sum(), cost)
        assert (t.plan[~mask] == 0).all()
        assert (gradient[~mask] == 0).all()
        assert gradient.isfinite().all()
        close(t.plan.sum(-1), np.ones((3, 4)), 1e-5)
        found.append((t.plan, gradient))
    for plan, gradient in found[1:]:
        assert torch.equal(plan, found[0][0])
        assert torch.equal(gradient, found[0][1])
    exact = op(
        torch.where(mask, clean, 0.0).double(),
        pair_mask=mask,
        backend="torch",
        **{k: x.double() for k, x in noise.items()},
    )
    if scale == 1.0:
        close(found[0][0].double(), exact.plan, 1e-4)


def test_allowed_pairs_and_dustbins_in_the_kernel(device):
    mask, cost = some_pairs(3, 5, seed=0), randn(3, 5, seed=1, dtype=torch.float32)
    for options in ({"pair_mask": mask}, {"dustbin": 0.5}):
        expected = sinkhorn(cost.double(), **options).plan
        moved = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in options.items()}
        found = sinkhorn(cost.to(device), **moved, backend="triton").plan
        close(found.cpu().double(), expected, 1e-5)


def test_costs_far_apart_do_not_make_other_pairs_attractive():
    """Rows and columns that are expensive as a whole, whose potentials make up for it."""
    rows, columns = torch.zeros(5), torch.zeros(5)
    rows[1], columns[2] = 1e4, 1e4
    cost = rows[:, None] + columns + randn(5, 5, seed=0, dtype=torch.float32)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[1, 2] = False
    t = sinkhorn(cost.double(), pair_mask=mask, n_iters=500)
    close(t.plan.sum(-2), np.ones(5), 1e-6)
    assert t.plan[1, 2] == 0


def test_a_mask_of_everything_changes_nothing():
    cost = randn(2, 3, 4, seed=0)
    mask = torch.ones(3, 4, dtype=torch.bool)
    for op in (sinkhorn, lambda *x, **y: mesh(*x, noise=0.0, **y)):
        for x, y in zip(op(cost, pair_mask=mask), op(cost), strict=True):
            assert torch.equal(x, y)


def test_elements_without_an_allowed_pair():
    cost, mask = randn(4, 5, seed=0), torch.ones(4, 5, dtype=torch.bool)
    mask[2] = False
    for op in (sinkhorn, mesh):
        with pytest.raises(ValueError, match=r"no pair for 1 slots with mass \(the first is \[2\]"):
            op(cost, pair_mask=mask)
        with pytest.raises(ValueError, match="no pair for 1 inputs with mass"):
            op(cost.mT, pair_mask=mask.mT)
    # Padding and elements without mass need none, nor does anything beside a dustbin.
    real = torch.tensor([True, True, False, True])
    padded = sinkhorn(cost, slot_mask=real, pair_mask=mask, n_iters=50).plan
    close(padded[real], sinkhorn(cost[real], n_iters=50).plan, 1e-12)
    a = torch.tensor([1.0, 2.0, 0.0, 1.0], dtype=torch.float64)
    close(sinkhorn(cost, a, pair_mask=mask).plan.sum(-1), a, 1e-12)
    close(sinkhorn(cost, pair_mask=mask, dustbin=0.0, n_iters=50).plan[2, -1], 1.0, 1e-12)
    # Where values are not checked, as on a GPU, they count as padding.
    before = set_value_checks("never")
    try:
        close(sinkhorn(cost, pair_mask=mask, n_iters=50).plan, padded, 1e-12)
    finally:
        set_value_checks(before)


@settings(max_examples=40)
@given(size=sizes, seed=seeds, maximize=st.booleans(), full=st.booleans())
def test_assignments_of_allowed_pairs(size, seed, maximize, full):
    """As many pairs as possible; at the cost that SciPy finds where all can be matched."""
    m, n = size
    mask = torch.rand(m, n, generator=generator(seed)) < 0.5
    cost = randn(m, n, seed=seed + 1)
    if full:
        rows, columns = linear_sum_assignment(cost.numpy())
        mask[rows, columns] = True
    partner = assign(torch.where(mask, cost, math.nan), pair_mask=mask, maximize=maximize)
    matched = (partner >= 0).nonzero().squeeze(-1)
    assert mask[matched, partner[matched]].all()
    assert len(set(partner[matched].tolist())) == len(matched)
    most = (maximum_bipartite_matching(csr_matrix(mask.numpy())) >= 0).sum()
    assert len(matched) == most
    if full:
        big = -np.inf if maximize else np.inf
        forbidden = np.where(mask.numpy(), cost.numpy(), big)
        rows, columns = linear_sum_assignment(forbidden, maximize=maximize)
        close(cost[matched, partner[matched]].sum(), forbidden[rows, columns].sum(), 1e-12)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (torch.ones(3, 4), "pair_mask has dtype torch.float32, expected a boolean tensor"),
        (torch.ones(4, 3) > 0, r"pair_mask has shape \(4, 3\), expected \(..., 3, 4\)"),
        (torch.ones(5, 3, 4) > 0, "do not broadcast with the batch dimensions"),
        ([[True]], "pair_mask is a list, expected a boolean tensor"),
    ],
)
@pytest.mark.parametrize("op", [sinkhorn, mesh, assign])
def test_masks_that_do_not_fit(op, mask, says):
    with pytest.raises(ValueError, match=f"{op.__name__}: .*{says}|{op.__name__}: {says}"):
        op(torch.zeros(2, 3, 4), pair_mask=mask)


IMPOSSIBLE = torch.tensor([[1, 0, 0], [1, 0, 0], [1, 1, 1]]).bool()
"""Two slots have one input between them, which has room for one."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_iters", [100, 2000])
@pytest.mark.parametrize("options", [{}, {"grad": "implicit"}])
def test_pairs_that_cannot_carry_all_mass(backend, n_iters, options):
    """However many iterations there are: the error is that of the plan."""
    cost = torch.zeros(3, 3)
    t = sinkhorn(cost, pair_mask=IMPOSSIBLE, n_iters=n_iters, backend=backend, **options)
    wrong = (t.plan.sum(-1) - 1).abs().sum() + (t.plan.sum(-2) - 1).abs().sum()
    close(t.marginal_error, wrong / 3, 1e-3)
    assert t.marginal_error > 0.6
    assert not t.converged


@pytest.mark.parametrize(
    "options", [{"tol": 1e-6}, {"share": 1.0}, {"penalty": 1e4}, {"share": 1.0, "tol": 1e-6}]
)
def test_pairs_that_cannot_carry_all_mass_do_not_converge(options):
    t = sinkhorn(torch.zeros(3, 3), pair_mask=IMPOSSIBLE, n_iters=2000, **options)
    assert not t.converged
    e = 1e-6
    a, b = torch.tensor([1, 1, e]).double(), torch.tensor([e, 1, 1]).double()
    t = mesh(torch.zeros(3, 3).double(), a, b, pair_mask=IMPOSSIBLE)
    assert not t.converged


# Dustbins


def test_a_dustbin_that_half_precision_cannot_hold():
    cost = torch.rand(3, 3, generator=generator(0)).half()
    t = sinkhorn(cost, dustbin=1e5, n_iters=50)
    assert t.plan.dtype == torch.float16
    assert t.plan[:3, :3].sum() > 2.9


def superglue(scores, alpha, n_iters):
    """log_optimal_transport of SuperGlue, from its description: float64, one problem."""
    m, n = scores.shape
    bins = torch.full((m + 1, n + 1), 0.0, dtype=scores.dtype) + alpha
    couplings = torch.cat((torch.cat((scores, bins[:m, :1]), 1), bins[:1]), 0)
    norm = -math.log(m + n)
    log_mu = torch.tensor([norm] * m + [math.log(n) + norm], dtype=torch.float64)
    log_nu = torch.tensor([norm] * n + [math.log(m) + norm], dtype=torch.float64)
    u, v = torch.zeros(m + 1).double(), torch.zeros(n + 1).double()
    for _ in range(n_iters):
        v = log_nu - torch.logsumexp(couplings + u[:, None], 0)
        u = log_mu - torch.logsumexp(couplings + v, 1)
    return couplings + u[:, None] + v - norm


@settings(max_examples=20)
@given(size=sizes, seed=seeds, alpha=st.floats(-3, 3))
def test_dustbins_are_those_of_superglue(size, seed, alpha):
    scores, alpha = leaf(randn(*size, seed=seed)), leaf(torch.tensor(alpha, dtype=torch.float64))
    expected = superglue(scores, alpha, 7)
    log = sinkhorn(-scores, dustbin=-alpha, n_iters=7).log_plan
    close(log, expected, 1e-9)
    weight = randn(*log.shape, seed=seed + 1)
    for x, y in zip(
        torch.autograd.grad((log * weight).sum(), (scores, alpha)),
        torch.autograd.grad((expected * weight).sum(), (scores, alpha)),
        strict=True,
    ):
        close(x, y, 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dustbins_with_padding_masses_and_one_cost_each(backend):
    cost = randn(2, 3, 4, seed=0, dtype=torch.float32)
    real = torch.tensor([[True, True, False], [True, True, True]])
    price = torch.tensor([0.5, -0.5])
    t = sinkhorn(cost, dustbin=price, slot_mask=real, n_iters=100, backend=backend)
    assert t.plan.shape == (2, 4, 5)
    close(t.plan.sum(-1), np.array([[1, 1, 0, 4], [1, 1, 1, 4]]), 1e-4)
    close(t.plan.sum(-2), np.array([[1, 1, 1, 1, 2], [1, 1, 1, 1, 3]]), 1e-4)
    alone = sinkhorn(cost[0, :2], dustbin=0.5, n_iters=100, backend=backend)
    close(t.plan[0][[0, 1, 3]], alone.plan, 1e-5)
    # Masses whose totals differ.
    a, b = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([1.0, 0.0, 3.0, 0.25])
    t = sinkhorn(cost, a, b, dustbin=0.0, n_iters=200, backend=backend)
    close(t.plan.sum(-1), np.array([[0.5, 2, 1, 4.25]] * 2), 1e-4)
    close(t.plan.sum(-2), np.array([[1, 0, 3, 0.25, 3.5]] * 2), 1e-4)


def test_a_low_dustbin_cost_takes_everything_and_a_high_one_nothing():
    cost = randn(3, 3, seed=0)
    low, high = (sinkhorn(cost, dustbin=x, n_iters=500).plan for x in (-50.0, 50.0))
    assert low[:-1, :-1].sum() < 1e-6
    close(high[:-1, :-1], sinkhorn(cost, n_iters=500).plan, 1e-2)
    plan = mesh(cost, dustbin=1.0, noise=0.0).plan
    close(plan.sum(-1), np.array([1, 1, 1, 3]), 1e-6)


@pytest.mark.parametrize(
    ("dustbin", "says"),
    [
        (math.nan, "dustbin is nan, expected a finite number"),
        ("low", "dustbin is 'low', expected a finite number"),
        (True, "dustbin is True, expected a finite number"),
        (torch.zeros(3), r"dustbin is a tensor of shape \(3,\)"),
        (torch.zeros(2, dtype=torch.int64), "dtype torch.int64, expected floating point"),
        (torch.tensor([0.0, math.inf]), "dustbin has 1 entries that are not finite"),
    ],
)
def test_dustbins_that_do_not_fit(dustbin, says):
    for op in (sinkhorn, mesh):
        with pytest.raises(ValueError, match=f"{op.__name__}: {says}|{op.__name__}: .*{says}"):
            op(torch.zeros(2, 3, 4), dustbin=dustbin)


# Partial and unbalanced transport


@pytest.mark.parametrize("size", [(2, 2), (3, 5), (6, 4)])
@pytest.mark.parametrize(
    ("seed", "share", "temperature"), [(0, 0.1, 0.3), (1, 0.5, 0.3), (2, 0.5, 1.0), (3, 0.9, 1.0)]
)
def test_partial_transport_is_that_of_pot(size, seed, share, temperature):
    cost = randn(*size, seed=seed).sigmoid()
    a, b = masses(size[0], seed=seed + 1, total=2.0), masses(size[1], seed=seed + 2, total=3.0)
    t = sinkhorn(cost, a, b, share=share, temperature=temperature, n_iters=500)
    close(t.plan.sum(), 2.0 * share, 1e-9)
    assert (t.plan.sum(-1) <= a + 1e-6).all()
    assert (t.plan.sum(-2) <= b + 1e-6).all()
    assert t.marginal_error < 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = ot.partial.entropic_partial_wasserstein(
            *(x.numpy() for x in (a, b, cost)),
            temperature,
            2.0 * share,
            numItermax=5000,
            stopThr=1e-14,
        )
    close(t.plan, plan, 1e-6)


def test_partial_transport_at_low_temperature_is_the_exact_one():
    cost, a, b = (
        randn(4, 5, seed=0).sigmoid(),
        masses(4, seed=1, total=1.0),
        masses(5, seed=2, total=1.0),
    )
    t = sinkhorn(cost, a, b, share=0.6, temperature=0.01, n_iters=1000)
    best = ot.partial.partial_wasserstein(a.numpy(), b.numpy(), cost.numpy(), 0.6 * float(a.sum()))
    close((t.plan * cost).sum(), (best * cost.numpy()).sum(), 2e-2)


@pytest.mark.parametrize("size", [(2, 2), (3, 5)])
@pytest.mark.parametrize("penalty", [0.1, 3.0, (math.inf, 0.5), (0.5, math.inf), (0.2, 2.0)])
@pytest.mark.parametrize(("seed", "temperature"), [(0, 0.3), (1, 1.0)])
def test_unbalanced_transport_is_that_of_pot(size, seed, penalty, temperature):
    cost = randn(*size, seed=seed).sigmoid()
    a, b = masses(size[0], seed=seed + 1, total=2.0), masses(size[1], seed=seed + 2, total=3.0)
    t = sinkhorn(cost, a, b, penalty=penalty, temperature=temperature, n_iters=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = ot.unbalanced.sinkhorn_unbalanced(
            a.numpy(),
            b.numpy(),
            cost.numpy(),
            temperature,
            penalty,
            reg_type="entropy",
            numItermax=5000,
            stopThr=1e-15,
        )
    close(t.plan, plan, 1e-7)
    assert t.marginal_error < 1e-6


def test_a_high_penalty_and_a_whole_share_are_balanced_transport():
    cost, a, b = randn(3, 4, seed=0), masses(3, seed=1, total=1.0), masses(4, seed=2, total=1.0)
    expected = sinkhorn(cost, a, b, n_iters=500).plan
    close(sinkhorn(cost, a, b, penalty=1e5, n_iters=500).plan, expected, 1e-3)
    close(sinkhorn(cost, a, b, penalty=(math.inf, math.inf), n_iters=500).plan, expected, 1e-12)
    close(sinkhorn(cost, a, b, share=1.0, n_iters=500).plan, expected, 1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"penalty": (math.inf, 0.02), "temperature": 0.3},
        {"penalty": (1.0, 0.05)},
        {"share": 0.9},
    ],
)
def test_relaxed_transport_stops_once_it_is_within_the_tolerance(options):
    cost = 3 * torch.rand(20, 5, 7, generator=generator(0)).double()
    t = sinkhorn(cost, tol=1e-4, n_iters=5000, **options)
    assert t.converged.all()
    assert (t.marginal_error <= 1e-4).all()
    # Each element is as by itself, and one iteration less is not enough; with a share, sums are
    # right before the plan has come to rest.
    for k in range(3):
        n_iters = int(t.n_iters[k])
        same, less = (
            sinkhorn(cost[k], n_iters=max(1, n), **options) for n in (n_iters, n_iters - 1)
        )
        close(same.plan, t.plan[k], 1e-12)
        assert "share" in options or less.marginal_error > 1e-4


def test_an_infinite_penalty_may_be_of_numpy():
    cost = randn(3, 4, seed=0)
    for infinite in (np.float32("inf"), np.float64("inf")):
        t = sinkhorn(cost, penalty=(infinite, 1.0))
        close(t.plan, sinkhorn(cost, penalty=(math.inf, 1.0)).plan, 0)


def test_one_entry_in_closed_form():
    """minimise c p + tau p (log p - 1) + rho KL(p, a) + rho KL(p, b)."""
    c, tau, rho, a, b = 0.7, 0.5, 0.8, 2.0, 3.0
    expected = math.exp((rho * math.log(a * b) - c) / (tau + 2 * rho))
    one = torch.tensor([[c]], dtype=torch.float64)
    t = sinkhorn(
        one, torch.tensor([a]), torch.tensor([b]), penalty=rho, temperature=tau, n_iters=200
    )
    close(t.plan.item(), expected, 1e-6)
    close(sinkhorn(one, torch.tensor([a]), torch.tensor([b]), share=0.25).plan.item(), 0.5, 1e-9)


@pytest.mark.parametrize(
    "options", [{"share": 0.6}, {"penalty": 0.5}, {"penalty": (math.inf, 2.0)}]
)
def test_relaxed_gradients_masks_and_batches(options):
    cost = leaf(randn(2, 3, 4, seed=0))
    a, b = leaf(masses(3, seed=1, total=1.0)), leaf(masses(4, seed=2, total=1.0) * 2)
    tau = leaf(torch.tensor([0.5, 1.0], dtype=torch.float64))

    def plan(cost, a, b, tau):
        return sinkhorn(cost, a, b, temperature=tau, n_iters=8, **options).plan

    assert torch.autograd.gradcheck(plan, (cost, a, b, tau))
    real = torch.tensor([True, True, False])
    masked = sinkhorn(cost, slot_mask=real, n_iters=50, **options)
    close(masked.plan[:, :2], sinkhorn(cost[:, :2], n_iters=50, **options).plan, 1e-9)
    assert (masked.plan[:, 2] == 0).all()
    weight = torch.where(masked.log_plan.isfinite(), masked.log_plan, 0.0)
    assert torch.autograd.grad(weight.sum(), cost)[0].isfinite().all()
    stopped = sinkhorn(cost, n_iters=500, tol=1e-9, **options)
    assert (stopped.n_iters < 500).all()
    close(stopped.plan, sinkhorn(cost, n_iters=500, **options).plan, 1e-6)
    for i in range(2):  # each by itself
        assert stopped.n_iters[i] == sinkhorn(cost[i], n_iters=500, tol=1e-9, **options).n_iters


@pytest.mark.parametrize(
    "options", [{"share": 0.6}, {"penalty": 0.5}, {"penalty": (math.inf, 2.0)}]
)
def test_a_temperature_learns_beside_elements_without_mass(options):
    """Their potentials are infinite, and depend on no temperature."""
    cost, tau = leaf(randn(3, 4, seed=0)), leaf(torch.tensor(0.5, dtype=torch.float64))
    a, b = (masses(size, seed=size, total=1.0) for size in (3, 4))
    a[2] = b[0] = 0.0
    slots, inputs = a > 0, b > 0

    def potentials(cost, tau, **more):
        t = sinkhorn(cost, temperature=tau, n_iters=8, **options, **more)
        return t.plan, t.u[:2], t.v[1:]

    assert torch.autograd.gradcheck(lambda *x: potentials(*x, a=a, b=b), (cost, tau))
    masks = {"slot_mask": slots, "input_mask": inputs}
    assert torch.autograd.gradcheck(lambda *x: potentials(*x, **masks), (cost, tau))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"share": 1.5}, "share is 1.5, expected at most 1"),
        ({"share": 0.0}, "share is 0.0, expected a finite number above 0"),
        ({"penalty": -1.0}, "penalty is -1.0, expected a finite number above 0"),
        ({"penalty": (1.0, 1.0, 1.0)}, "penalty has 3 entries"),
        ({"share": 0.5, "penalty": 1.0}, "got both share=0.5 and penalty=1.0"),
        ({"share": 0.5, "grad": "implicit"}, "grad is 'implicit', expected 'unroll'"),
        ({"share": 0.5, "init": (torch.zeros(3), torch.zeros(4))}, "got both init and share"),
        ({"penalty": 1.0, "backend": "cpu"}, "backend is 'cpu'.*backend='torch', which supports"),
        ({"share": 0.5, "backend": "triton"}, "backend is 'triton'.*backend='torch'"),
    ],
)
def test_options_that_do_not_fit(options, says):
    with pytest.raises(ValueError, match=f"sinkhorn: {says}"):
        sinkhorn(torch.zeros(2, 3, 4), **options)
    if not {"init", "backend"} & set(options):
        with pytest.raises(ValueError, match=f"Sinkhorn: {says}"):
            Sinkhorn(**options)


# The logarithm of the plan


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", [sinkhorn, mesh])
def test_log_plans_are_finite_where_plans_underflow(op, backend):
    cost = leaf(200 * randn(3, 4, 6, seed=0, dtype=torch.float32))
    t = op(cost, backend=backend)
    assert (t.plan < 1e-20).any()
    assert t.log_plan.isfinite().all()
    assert torch.autograd.grad(t.log_plan.sum(), cost)[0].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_plans_are_the_logarithm(backend):
    cost = leaf(randn(2, 3, 4, seed=0, dtype=torch.float32))
    tau = leaf(torch.tensor([0.5, 2.0]))
    for op in (sinkhorn, lambda *x, **y: mesh(*x, noise=0.0, **y)):
        t = op(cost, temperature=tau, backend=backend)
        close(t.log_plan.exp(), t.plan, 1e-5)
        weight = randn(2, 3, 4, seed=1, dtype=torch.float32)
        found, expected = (
            torch.autograd.grad((x * weight).sum(), (cost, tau), retain_graph=True)
            for x in (t.log_plan, t.plan.log())
        )
        for x, y in zip(found, expected, strict=True):
            close(x, y, 1e-3)


def test_log_plans_of_everything_that_has_no_mass():
    cost = leaf(randn(3, 4, seed=0))
    real, a = torch.tensor([True, False, True]), torch.tensor([1.0, 1.0, 0.0]).double()
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[0, 1] = False
    log = sinkhorn(cost, a, slot_mask=real, pair_mask=mask).log_plan
    empty = torch.zeros(3, 4, dtype=torch.bool)
    empty[1:], empty[0, 1] = True, True
    assert (log.isinf() == empty).all()
    (gradient,) = torch.autograd.grad(log.sum(), cost)
    assert gradient.isfinite().all()
    # A slot without mass takes part in the first half-step, whose effect has worn off.
    assert (gradient[1] == 0).all()
    assert gradient[0, 1] == 0
    assert gradient[2].abs().max() < 1e-9


def test_log_plans_of_a_batch_element_without_mass():
    mass = torch.tensor([[0.0, 0, 0], [1, 1, 1]])
    log = sinkhorn(torch.rand(2, 3, 3, generator=generator(0)), mass, mass).log_plan
    assert (log[0] == -math.inf).all()
    assert log[1].isfinite().all()


def test_log_plans_of_exact_transport():
    t = emd(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    assert t.log_plan.tolist() == [[0.0, -math.inf], [-math.inf, 0.0]]


def test_log_plans_of_implicit_gradients_are_an_error_and_values_are_not():
    cost = leaf(randn(3, 4, seed=0))
    t = sinkhorn(cost, grad="implicit", n_iters=50)
    with pytest.raises(ValueError, match=r"log_plan: the potentials.*'unroll' for sinkhorn"):
        _ = t.log_plan
    with torch.no_grad():
        close(t.log_plan.exp(), t.plan.detach(), 1e-9)
