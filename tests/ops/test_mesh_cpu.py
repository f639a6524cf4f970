"""The CPU's path, in C, against float64 in the log domain: values and every gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.ops import mesh, sinkhorn
from slotmesh.ops._cpu import sound

from ._compiled import needs_c
from ._reference import close, leaf, masses, randn

pytestmark = needs_c

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


@given(
    op=st.sampled_from([mesh, sinkhorn]),
    m=slot_counts,
    n=input_counts,
    seed=seeds,
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    kinds=st.tuples(*[st.booleans()] * 5),
)
def test_implicit(op, m, n, seed, spread, kinds):
    leaves, options = random_problem(m, n, seed, spread, *kinds)
    if op is mesh:
        leaves.pop("u", None)
        options |= {"noise": 0.1 * randn(2, m, n, seed=seed + 9), "lr": 1.0}
    compare(op, leaves, ("plan", "cost"), grad="implicit", **options)


@pytest.mark.parametrize(("m", "n"), [(5, 105), (11, 1024), (6, 4096), (11, 4096), (7, 50_000)])
def test_defaults_at_the_sizes_of_the_paper(m, n):
    compare(
        mesh,
        {"cost": 2 * randn(2, m, n, seed=0)},
        ("plan",),
        noise=1e-3 * randn(2, m, n, seed=1),
        n_steps=2,
    )


def test_ties_are_more_precise_than_in_the_log_domain():
    """All is noise there, a thousandth of what is rounded."""
    noise = 1e-3 * randn(16, 7, 50, seed=0)
    fast, plain, truth = (
        mesh(torch.zeros(16, 7, 50, dtype=dtype), noise=noise.to(dtype), backend=backend).plan
        for backend, dtype in (("cpu", F32), ("torch", F32), ("torch", F64))
    )
    assert distance("plan", fast, truth) < distance("plan", plain, truth)


def clusters(m, n, height, seed):
    """A cost whose plan is hard: who does not belong together is so far apart."""
    together = torch.arange(m)[:, None] % min(m, n) == torch.arange(n) % min(m, n)
    return height * (~together).double() + 0.1 * randn(4, m, n, seed=seed)


@pytest.mark.parametrize(("m", "n"), [(5, 20), (20, 5), (6, 6)])
@pytest.mark.parametrize("height", [8.0, 15.0])
def test_gradients_of_hard_plans(m, n, height):
    """They are tiny differences of terms that cancel."""
    cost, weights = clusters(m, n, height, seed=0), randn(4, m, n, seed=2)
    found = []
    for backend, dtype in (("cpu", F32), ("torch", F64)):
        tracked = leaf(cost.to(dtype))
        plan = sinkhorn(tracked, backend=backend).plan
        found.append(torch.autograd.grad(plan, tracked, weights.to(dtype))[0].double())
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()


@pytest.mark.parametrize(("m", "n"), [(5, 20), (20, 5), (6, 6)])
@pytest.mark.parametrize(("height", "n_steps"), [(8.0, 1), (15.0, 1), (60.0, 4)])
def test_costs_of_hard_plans(m, n, height, n_steps):
    """From 60 on nothing is left of the gradient, and the cost stays."""
    cost = clusters(m, n, height, seed=0)
    changed = [
        mesh(cost.to(dtype), lr=1.0, noise=0.0, n_steps=n_steps, backend=backend).cost.double()
        for backend, dtype in (("cpu", F32), ("torch", F64))
    ]
    close(changed[0], changed[1], 1e-4)
    if height == 60:
        close(changed[1], cost, 1e-6)


def test_slots_of_hardly_any_mass():
    """What E has lost would be all that they have."""
    a = torch.tensor([1.0, 1e-12, 1.0])
    b = torch.full((4,), a.sum().item() / 4)
    assert sound(a[None], b[None], None).tolist() == [False]
    assert sound(a.clamp(min=1e-3)[None], b[None], None).tolist() == [True]
    cost = randn(3, 4, seed=0) + 50 * (torch.arange(3) == 1)[:, None]
    compare(sinkhorn, {"cost": cost, "a": a.double(), "b": b.double()}, n_iters=3)


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
