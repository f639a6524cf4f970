"""The CPU's path by scalings, against float64 in the log domain; and that nothing disturbs it."""

import importlib
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.functional import jacobian
from torch.utils.checkpoint import checkpoint

from slotmesh.ops import EntropyObjective, mesh, sinkhorn
from slotmesh.ops import _scaling as scaling
from slotmesh.ops._blocked import flat_batch
from slotmesh.ops._problem import problem as checked_problem
from slotmesh.ops.mesh.cpu import EntropyDescent, _derive
from slotmesh.ops.mesh.naive import objective_gradient
from slotmesh.ops.sinkhorn.cpu import cpu_sinkhorn
from slotmesh.ops.sinkhorn.naive import solve

from ._reference import close, generator, gradients, leaf, masses, problem, randn

cpu = importlib.import_module("slotmesh.ops.sinkhorn.cpu")

F32, F64 = torch.float32, torch.float64
# As a share of the size of what is expected; numbers here are of the order of 1.
VALUES, GRADIENTS = 1e-5, 1e-4

seeds = st.integers(0, 10**6)
slot_counts = st.sampled_from([1, 2, 3, 5, 8, 11, 32, 40])
input_counts = st.sampled_from([1, 2, 3, 7, 20, 60])
spreads = st.sampled_from([0.0, 0.1, 1.0, 5.0, 20.0, 100.0, 1e3, 1e4])


def distance(name, actual, expected):
    """Norm of the difference over that of what is expected; infinities in the same places."""
    actual, expected = actual.detach().double(), expected.detach().double()
    finite = expected.isfinite()
    assert (actual.isfinite() == finite).all()
    assert (actual[~finite] == expected[~finite]).all()
    actual, expected = actual[finite], expected[finite]
    # Potentials and errors move with the rounding of the masses, which adds up over iterations.
    usual = 1.0 if name in ("u", "v", "marginal_error") else 1e-2
    size = max(float(expected.norm()), usual * expected.numel() ** 0.5, 1e-30)
    return float((actual - expected).norm()) / size


def run(op, backend, dtype, leaves, through, options):
    """Results and gradients by every leaf, by name."""
    given = {name: x.to(dtype).clone().requires_grad_() for name, x in leaves.items()}
    call = dict(given)
    if "u" in call:
        u = call.pop("u")
        call["init"] = (u, u.new_zeros(call["cost"].shape[-1]))
    moved = {k: x.to(dtype) if k == "noise" else x for k, x in options.items()}
    t = op(**call, **moved, backend=backend)
    loss = 0.0
    for i, name in enumerate(through):
        out = getattr(t, name)
        weights = randn(*out.shape, seed=i, dtype=dtype)
        loss = loss + (torch.where(out.isfinite(), out, 0.0) * weights).sum()
    found = torch.autograd.grad(loss, list(given.values()), materialize_grads=True)
    names = ("plan", "u", "v", "cost", "marginal_error")
    values = {name: getattr(t, name) for name in names}
    return values, dict(zip(given, found, strict=True))


def compare(op, leaves, through=("plan", "u", "v"), **options):
    """Held to the truth, or to ten times the distance that float32 keeps in the log domain.

    Where that is far off, as long steps along a short gradient take rounding anywhere, anything
    finite will do.
    """
    fast, plain, truth = (
        run(op, backend, dtype, leaves, through, options)
        for backend, dtype in (("cpu", F32), ("torch", F32), ("torch", F64))
    )
    checks = [
        (name, limit, distance(name, ours[name], x), distance(name, log_domain[name], x))
        for limit, ours, log_domain, right in zip(
            (VALUES, GRADIENTS), fast, plain, truth, strict=True
        )
        for name, x in right.items()
    ]
    if max(usual for *_, usual in checks) < 1e-3:
        for name, limit, far, usual in checks:
            # The gradient of a hard plan is a rounded zero, and long steps show it in the cost.
            lr = options.get("lr", 5.0) if name in ("cost", "v") else 0.0
            assert far <= max(limit * max(1.0, lr), 10 * usual) or lr > 5, (name, far, usual)


def random_problem(m, n, seed, spread, marginals, empty, masked, warm, heated):
    """Leaves and options of two problems in one batch."""
    leaves = {"cost": spread * randn(2, m, n, seed=seed)}
    leaves["cost"][1, 0] += 30.0
    options = {}
    slots = inputs = torch.tensor(True)
    if masked:
        slots, inputs = randn(2, m, seed=seed + 1) > -0.5, randn(2, n, seed=seed + 2) > -0.5
        slots[:, 0] = inputs[:, -1] = True
        options = {"slot_mask": slots, "input_mask": inputs}
    if marginals:
        a, b = (masses(2, k, seed=seed + k, total=m) + 1e-2 for k in (m, n))
        if empty:
            a[0, 1:2] = b[1, :1] = 0.0
            if n == 1:
                b[1] = 1.0
        a, b = a * slots, b * inputs
        leaves |= {"a": a, "b": b * (a.sum(-1) / b.sum(-1))[:, None]}
    if warm:
        leaves["u"] = 3 * randn(2, m, seed=seed + 3)
    if heated:
        leaves["temperature"] = torch.tensor([0.5, 2.0], dtype=F64)
    return leaves, options


@settings(max_examples=3 * settings().max_examples)
@given(
    m=slot_counts,
    n=input_counts,
    seed=seeds,
    spread=spreads,
    lr=st.sampled_from([0.0, 0.1, 1.0, 5.0, 50.0]),
    n_steps=st.sampled_from([0, 1, 2, 4]),
    n_iters=st.sampled_from([1, 2, 5]),
    potentials=st.sampled_from(["detach", "fresh"]),
    kinds=st.tuples(*[st.booleans()] * 4),
    through=st.sampled_from([("plan",), ("plan", "u", "v"), ("plan", "cost"), ("v",)]),
)
def test_mesh(m, n, seed, spread, lr, n_steps, n_iters, potentials, kinds, through):
    marginals, empty, masked, heated = kinds
    leaves, options = random_problem(
        m, n, seed, spread, marginals, empty, masked, warm=False, heated=heated
    )
    compare(
        mesh,
        leaves,
        through,
        noise=0.1 * randn(2, m, n, seed=seed + 9),
        lr=lr,
        n_steps=n_steps,
        n_iters=n_iters,
        potentials=potentials,
        **options,
    )


@settings(max_examples=2 * settings().max_examples)
@given(
    m=slot_counts,
    n=input_counts,
    seed=seeds,
    spread=spreads,
    n_iters=st.sampled_from([1, 2, 5, 20]),
    kinds=st.tuples(*[st.booleans()] * 5),
)
def test_sinkhorn(m, n, seed, spread, n_iters, kinds):
    leaves, options = random_problem(m, n, seed, spread, *kinds)
    compare(sinkhorn, leaves, n_iters=n_iters, **options)


@pytest.mark.parametrize(("m", "n"), [(5, 105), (11, 1024), (6, 4096), (11, 4096), (7, 50_000)])
def test_defaults_at_the_sizes_of_the_paper(m, n):
    """Wider than one product, too: sums over many inputs are cut."""
    compare(
        mesh,
        {"cost": 2 * randn(2, m, n, seed=0)},
        ("plan",),
        noise=1e-3 * randn(2, m, n, seed=1),
        n_steps=2,
    )


def test_ties_as_precise_as_in_the_log_domain():
    """All is noise there, a thousandth of what is rounded."""
    compare(mesh, {"cost": torch.zeros(4, 7, 50)}, noise=1e-3 * randn(4, 7, 50, seed=0))


def test_step_and_masks():
    masks = {
        "slot_mask": torch.tensor([[True] * 5, [True, False] * 2 + [True]]),
        "input_mask": torch.tensor([[True] * 9, [True, True, False] * 3]),
    }
    noise = 0.1 * randn(2, 5, 9, seed=1)
    leaves = {"cost": randn(2, 5, 9, seed=0)}
    compare(mesh, leaves, step=0.2, noise=noise, **masks)
    t = mesh(leaves["cost"].float(), step=0.2, noise=noise, backend="cpu", **masks)
    padding = ~(masks["slot_mask"][:, :, None] & masks["input_mask"][:, None])
    assert not t.plan[padding].any()
    assert not t.cost[padding].any()


# The formulas, in float64


def flat(cost, a, b, tau=1.0):
    task = checked_problem("mesh", cost, a, b, None, None)
    return flat_batch(task, task.cost, tau, given=True)


@pytest.mark.parametrize("by_product", [True, False])
@pytest.mark.parametrize(("m", "n", "n_iters"), [(3, 4, 3), (5, 2, 1), (4, 9, 4)])
def test_formulas(monkeypatch, by_product, m, n, n_iters):
    """All gradients through all results, by either way to sum."""
    if not by_product:
        monkeypatch.setattr(scaling, "MOST_SLOTS", 0)
    leaves = [leaf(x) for x in (*problem(2, m, n, seed=0), torch.tensor([0.5, 2.0], dtype=F64))]
    leaves.append(leaf(randn(2, m, seed=5)))
    found = []
    for fast in (True, False):
        cost, a, b, tau, u = leaves
        batch = flat(cost, a, b, tau[:, None, None])
        if fast:
            plan, potentials, _ = cpu_sinkhorn(batch, u, n_iters, (2,))
        else:
            plan, potentials = solve(batch.task(), batch.cost, batch.tau, u, n_iters)
        loss = sum(
            (x * randn(*x.shape, seed=i)).sum() for i, x in enumerate((plan, *potentials[:2]))
        )
        found.append((plan, *potentials[:2], *torch.autograd.grad(loss, leaves)))
    for x, y in zip(*found, strict=True):
        close(x, y, 1e-10)


@pytest.mark.parametrize("by_product", [True, False])
def test_derivative_of_the_entropy(monkeypatch, by_product):
    if not by_product:
        monkeypatch.setattr(scaling, "MOST_SLOTS", 0)
    cost, a, b = problem(3, 5, 7, seed=1)
    batch = flat(cost, a, b)
    u = randn(3, 5, seed=2)
    _, block = next(scaling.blocks(*batch[:4], 4))
    block.absorb(cost, 1.0, u)
    block.iterate()
    actual = torch.empty_like(cost)
    _derive(block, actual, has_zeros=False)
    expected, reached = objective_gradient(-cost, batch.task(), u, 4, EntropyObjective())
    close(actual, -expected, 1e-13)
    close(u + block.potentials()[0], reached, 1e-13)


def test_descent_in_float64():
    cost, a, b = problem(3, 5, 7, seed=1)
    batch = flat(cost, a, b)
    descent = EntropyDescent(2.0, 4, 5, fresh=False, has_zeros=False)
    plan, _, changed = cpu_sinkhorn(batch, None, 5, (3,), descent)
    expected = mesh(cost, a, b, lr=2.0, noise=0.0)
    close(plan, expected.plan, 1e-11)
    close(changed, expected.cost, 1e-11)


# Elements that scalings cannot solve


def test_hard_elements_alone_are_solved_in_the_log_domain(monkeypatch):
    cost = randn(5, 4, 9, seed=0, dtype=F32)
    cost[1, 2] += 100
    cost[3, 0] -= 1e5
    noise = 0.1 * randn(5, 4, 9, seed=1, dtype=F32)
    easy = mesh(cost[::2], noise=noise[::2], backend="cpu")
    solved = []

    def spy(task, *args):
        solved.append(task.cost.shape[0])
        return solve(task, *args)

    monkeypatch.setattr(cpu, "solve", spy)
    tracked = leaf(cost)
    t = mesh(tracked, noise=noise, backend="cpu")
    assert solved == [2]
    expected = mesh(cost[1::2], noise=noise[1::2], backend="torch")
    for x, y, z in zip(t, easy, expected, strict=True):
        assert torch.equal(x[::2], y)
        assert torch.equal(x[1::2], z)
    gradients(t.plan, [tracked])
    assert solved == [2, 2]


def test_hopeless_blocks_are_given_up_at_once(monkeypatch):
    cost = randn(4, 3, 9, seed=0, dtype=F32)
    cost[:, 0] += 300
    count = []
    iterate = scaling.Scaling.iterate
    monkeypatch.setattr(
        scaling.Scaling, "iterate", lambda self: (count.append(1), iterate(self))[1]
    )
    t = mesh(cost, noise=0.0, backend="cpu")
    assert len(count) == 1
    close(t.plan, mesh(cost, noise=0.0, backend="torch").plan, 0.0)


def test_underflow_is_kept_out():
    """Numbers below the normal ones would take a hundred times as long."""
    cost = 200 * torch.rand(2, 5, 40, generator=generator(0))
    a, b = torch.ones(2, 5), torch.full((2, 40), 1 / 8)
    _, block = next(scaling.blocks(cost, a, b, None, 5))
    block.absorb(cost, 1.0, torch.zeros(2, 5))
    assert (block.kernel >= 1e-30).all()


# Independence


def both_ways(cost, noise, **options):
    tracked = leaf(cost)
    t = mesh(tracked, noise=noise, backend="cpu", **options)
    return t.plan, t.u, t.v, t.cost, *gradients(t.plan, [tracked])


@pytest.mark.parametrize(("m", "n"), [(5, 105), (11, 1024), (3, 7), (11, 4096)])
@pytest.mark.parametrize("hard", [False, True])
def test_partners_and_blocks_change_no_bit(monkeypatch, m, n, hard):
    cost, noise = (randn(5, m, n, seed=s, dtype=F32) for s in (0, 1))
    weights = randn(5, m, n, seed=104729, dtype=F32)
    if hard:
        cost[1, 0] += 1e3

    def both(rows):
        tracked = leaf(cost[rows])
        t = mesh(tracked, noise=1e-2 * noise[rows], n_steps=2, backend="cpu")
        (gradient,) = torch.autograd.grad(t.plan, tracked, weights[rows])
        return t.plan, t.u, t.v, t.cost, gradient

    together = both(slice(5))
    for rows in (slice(2, 3), slice(2, 5), slice(1, 3)):
        for whole, part in zip(together, both(rows), strict=True):
            assert torch.equal(whole[rows], part)
    monkeypatch.setattr(scaling, "BLOCK", 2 * m * n)
    for x, y in zip(together, both(slice(5)), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(("batch", "m", "n"), [(1, 6, 4096), (3, 11, 4096), (1, 11, 8192)])
def test_threads_change_no_bit(batch, m, n):
    cost, noise = (randn(batch, m, n, seed=s, dtype=F32) for s in (0, 1))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(both_ways(cost, 1e-2 * noise, n_steps=2))
    finally:
        torch.set_num_threads(before)
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("m", [2, 3, 5, 7, 11, 40])
@pytest.mark.parametrize("n", [3, 50, 105])
def test_equal_slots_stay_equal_without_noise(m, n):
    """A sum that is rounded otherwise for one slot would grow to a decision."""
    cost = randn(2, 1, n, seed=0, dtype=F32).expand(2, m, n)
    plan, u, _, changed, gradient = both_ways(cost, torch.zeros(1, 1))
    for x in (plan, u[..., None], changed):
        assert torch.equal(x, x[:, :1].expand_as(x))
    close(gradient.sum(-2), torch.zeros(2, n), 1e-6)


def test_nothing_to_decide_changes_nothing():
    for m, n in ((1, 9), (9, 1)):
        cost = randn(2, m, n, seed=0, dtype=F32)
        assert torch.equal(mesh(cost, noise=0.0, backend="cpu").cost, cost)
    cost = randn(2, 3, 9, seed=0, dtype=F32)
    mask = torch.tensor([[True, True, False], [False, True, False]])
    changed = mesh(cost, noise=0.0, slot_mask=mask, backend="cpu").cost
    assert torch.equal(changed[1, 1], cost[1, 1])
    assert not torch.equal(changed[0, :2], cost[0, :2])
    zeros = torch.zeros(2, 7, 50)
    assert torch.equal(mesh(zeros, noise=0.0, backend="cpu").cost, zeros)


def test_products_rounded_to_bfloat16_are_not_used(monkeypatch):
    cost, noise = (randn(4, 11, 600, seed=s, dtype=F32) for s in (0, 1))
    expected = both_ways(cost, 0.1 * noise)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        monkeypatch.setattr(torch, "bmm", None)
        found = both_ways(cost, 0.1 * noise)
    finally:
        torch.set_float32_matmul_precision(before)
    for x, y in zip(found, expected, strict=True):
        close(x, y, 1e-5, 1e-4)


# Everything else that torch does with an operation

OPS = {
    "mesh": partial(mesh, lr=1.0, n_steps=2, n_iters=3, noise=1e-2 * randn(3, 4, seed=9)),
    "fresh": partial(mesh, lr=1.0, n_steps=2, n_iters=3, noise=0.0, potentials="fresh"),
    "sinkhorn": partial(sinkhorn, n_iters=3),
}


def float32_problem():
    """Two elements, the second one hard."""
    cost, a, b = problem(2, 3, 4, seed=0, dtype=F32)
    cost[1, 0] += 300
    return cost, a, b


@pytest.mark.parametrize("name", OPS)
def test_derivatives_of_second_order(name):
    found = []
    for backend in ("cpu", "torch"):
        leaves = [leaf(x) for x in float32_problem()]
        t = OPS[name](*leaves, backend=backend)
        first = torch.autograd.grad(
            t.plan.sin().sum() + t.u.sum() + t.cost.cos().sum(), leaves, create_graph=True
        )
        second = torch.autograd.grad(sum(x.sin().sum() for x in first), leaves)
        found.append((*first, *second))
    for x, y in zip(*found, strict=True):
        close(x, y, 1e-5, 1e-4)


@pytest.mark.parametrize("name", OPS)
def test_marginals_that_depend_on_the_cost(name):
    found = []
    for backend in ("cpu", "torch"):
        cost = leaf(float32_problem()[0])
        plan = OPS[name](cost, a=3 * cost.mean(-1).softmax(-1), backend=backend).plan
        (first,) = torch.autograd.grad(plan.sin().sum(), cost, create_graph=True)
        found.append((first, *torch.autograd.grad(first.sin().sum(), cost)))
    for x, y in zip(*found, strict=True):
        close(x, y, 1e-5, 1e-4)


@pytest.mark.parametrize("name", OPS)
def test_batched_backward(name):
    cost, a, b = float32_problem()
    rows = [
        jacobian(lambda c: OPS[name](c, a, b, backend="cpu").plan, cost, vectorize=vectorize)
        for vectorize in (True, False)
    ]
    close(*rows, 1e-6)


@pytest.mark.parametrize("name", OPS)
def test_backward_twice_hooks_and_checkpoints(name):
    leaves = [leaf(x) for x in float32_problem()]
    weights = randn(2, 3, 4, seed=3, dtype=F32)

    def plan(*leaves):
        return OPS[name](*leaves, backend="cpu").plan

    once = plan(*leaves)
    expected = torch.autograd.grad(once, leaves, weights, retain_graph=True)
    again = torch.autograd.grad(once, leaves, weights)
    kept = torch.autograd.grad(checkpoint(plan, *leaves, use_reentrant=False), leaves, weights)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        hooked = plan(*leaves)
    moved = torch.autograd.grad(hooked, leaves, weights)
    # A plan may be changed in place: it is not what backward looks at.
    scaled = torch.autograd.grad(plan(*leaves).mul_(2.0), leaves, weights)
    for i, x in enumerate(expected):
        assert torch.equal(x, again[i])
        assert torch.equal(x, kept[i])
        assert torch.equal(x, moved[i])
        close(scaled[i], 2 * x, 1e-6)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_a_graph(name, mode):
    leaves = [leaf(x) for x in float32_problem()]
    expected = OPS[name](*leaves, backend="cpu")
    with mode():
        t = OPS[name](*leaves, backend="cpu")
        assert t.plan.grad_fn is None
        for x, y in zip(t, expected, strict=True):
            assert torch.equal(x, y)
    # What was made there can be used outside.
    again = leaf(t.plan.clone())
    assert gradients(OPS[name](again, backend="cpu").plan, [again])[0].isfinite().all()


@pytest.mark.parametrize("name", OPS)
def test_broadcasting_and_empty_batches(name):
    cost, a, b = problem(3, 4, seed=0, dtype=F32)
    t = OPS[name](cost.expand(2, 1, 3, 4), a.expand(5, 3), b, backend="cpu")
    alone = OPS[name](cost, a, b, backend="cpu")
    for x, y in zip(t[:3], alone[:3], strict=True):
        assert x.shape[:2] == (2, 5)
        assert torch.equal(x, y.expand_as(x))
    tracked = leaf(cost[None][:0])
    none = OPS[name](tracked, backend="cpu")
    assert none.plan.shape == (0, 3, 4)
    assert gradients(none.plan, [tracked])[0].shape == (0, 3, 4)


def test_other_default_devices():
    cost = float32_problem()[0]
    with torch.device("meta"):
        t = mesh(cost, noise=0.0, backend="cpu")
    assert {x.device.type for x in t} == {"cpu"}


# Which path is taken


@pytest.fixture
def taken(monkeypatch):
    calls = []

    def spy(*args):
        calls.append(1)
        return cpu_sinkhorn(*args)

    for name in ("slotmesh.ops.mesh", "slotmesh.ops.sinkhorn"):
        monkeypatch.setattr(importlib.import_module(name), "cpu_sinkhorn", spy)
    return calls


@pytest.mark.parametrize("op", [mesh, sinkhorn])
@pytest.mark.parametrize("dtype", [F32, torch.float16, torch.bfloat16])
def test_chosen_on_the_cpu(taken, op, dtype):
    cost = float32_problem()[0].to(dtype)
    assert op(cost).plan.dtype == dtype
    assert op(cost, backend="cpu").plan.dtype == dtype
    assert len(taken) == 2
    op(cost, backend="torch")
    assert len(taken) == 2


NOT_FOR_IT = [
    (mesh, {"potentials": "reuse"}, "potentials is 'reuse'"),
    (mesh, {"grad": "unroll"}, "grad is 'unroll'"),
    (mesh, {"objective": EntropyObjective()}, "objective is given"),
    (sinkhorn, {"tol": 1e-3}, "tol is given"),
    (sinkhorn, {"grad": "implicit"}, "grad is 'implicit'"),
]


@pytest.mark.parametrize(("op", "options", "reason"), NOT_FOR_IT)
def test_options_it_does_not_know(taken, op, options, reason):
    cost = float32_problem()[0]
    assert op(cost, **options).plan.isfinite().all()
    with pytest.raises(ValueError, match=rf"^{op.__name__}: backend is 'cpu', .*: {reason}\. Use"):
        op(cost, backend="cpu", **options)
    assert not taken


@pytest.mark.parametrize("op", [mesh, sinkhorn])
def test_where_it_does_not_work(taken, op):
    cost = float32_problem()[0]
    options = {"noise": 0.0} if op is mesh else {}

    def by_name(c):
        return op(c, backend="cpu", **options).plan

    def auto(c):
        return op(c, **options).plan

    with pytest.raises(ValueError, match=r"dtype torch\.float64"):
        by_name(cost.double())
    with pytest.raises(ValueError, match="cost is on meta"):
        by_name(cost.to("meta"))
    with pytest.raises(ValueError, match=r"transform of torch\.func"):
        torch.vmap(by_name)(cost)
    with pytest.raises(ValueError, match="forward-mode derivatives are on"):
        jvp(by_name, cost)
    auto(cost.double())
    auto(cost.to("meta"))
    torch.vmap(auto)(cost)
    torch.func.grad(lambda c: auto(c).sum())(cost)
    jvp(auto, cost)
    compiled = torch.compile(auto, fullgraph=True, backend="eager")
    close(compiled(cost), op(cost, backend="torch", **options).plan, 1e-6)
    assert not taken


def jvp(function, x):
    """One derivative in forward mode."""
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return torch.autograd.forward_ad.unpack_dual(function(dual)).tangent


def test_value_checks_still_speak():
    cost = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="noise has 6 entries that are not finite"):
        mesh(cost, noise=torch.full((2, 3), torch.inf), backend="cpu")
    with pytest.raises(ValueError, match=r"noise has .* entries that are not finite"):
        mesh(cost, noise=1e39, backend="cpu")
