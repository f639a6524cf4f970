"""The CPU's path, in C, in all that torch does with an operation, and when it is taken."""

import importlib
from functools import partial

import pytest
import torch
from torch.autograd.functional import jacobian
from torch.utils.checkpoint import checkpoint

from slotmesh.ops import EntropyObjective, mesh, sinkhorn
from slotmesh.ops._cpu import cpu_transport

from ._compiled import needs_c
from ._reference import close, gradients, leaf, problem, randn

pytestmark = needs_c

F32 = torch.float32

OPS = {
    "mesh": partial(mesh, lr=1.0, n_steps=2, n_iters=3, noise=1e-2 * randn(3, 4, seed=9)),
    "fresh": partial(mesh, lr=1.0, n_steps=2, n_iters=3, noise=0.0, potentials="fresh"),
    "implicit": partial(mesh, lr=1.0, n_steps=2, n_iters=9, noise=0.0, grad="implicit"),
    "sinkhorn": partial(sinkhorn, n_iters=3),
    "sinkhorn implicit": partial(sinkhorn, n_iters=9, grad="implicit"),
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


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_result_that_does_not_depend_on_everything(create_graph):
    """After one iteration v knows nothing of the masses of slots."""
    leaves = [leaf(x) for x in float32_problem()]
    v = sinkhorn(*leaves, n_iters=1, backend="cpu").v
    gradient = torch.autograd.grad(v.sum(), leaves, create_graph=create_graph)
    assert not gradient[1].any()
    assert gradient[2].all()


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
    # A plan may be changed in place: it is not what backward looks at, or else torch says so.
    scaled = again
    if "implicit" in name:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(plan(*leaves).mul_(2.0), leaves, weights)
    else:
        scaled = torch.autograd.grad(plan(*leaves).mul_(2.0), leaves, weights / 2)
    for i, x in enumerate(expected):
        assert torch.equal(x, again[i])
        assert torch.equal(x, kept[i])
        assert torch.equal(x, moved[i])
        close(scaled[i], x, 1e-6)


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

    def spy(*args, **options):
        calls.append(1)
        return cpu_transport(*args, **options)

    for name in ("slotmesh.ops.mesh", "slotmesh.ops.sinkhorn"):
        monkeypatch.setattr(importlib.import_module(name), "cpu_transport", spy)
    return calls


@pytest.mark.parametrize("op", [mesh, sinkhorn])
@pytest.mark.parametrize("dtype", [F32, torch.float16, torch.bfloat16])
def test_chosen_on_the_cpu(taken, op, dtype):
    cost = float32_problem()[0].to(dtype)
    assert op(cost, n_iters=5).plan.dtype == dtype
    assert op(cost, n_iters=5, backend="cpu").plan.dtype == dtype
    assert len(taken) == 2
    op(cost, n_iters=5, backend="torch")
    assert len(taken) == 2


NOT_FOR_IT = [
    (mesh, {"potentials": "reuse"}, "potentials is 'reuse'"),
    (mesh, {"grad": "unroll"}, "grad is 'unroll'"),
    (mesh, {"objective": EntropyObjective()}, "objective is given"),
    (sinkhorn, {"tol": 1e-3}, "tol is given"),
]


@pytest.mark.parametrize(("op", "options", "reason"), NOT_FOR_IT)
def test_options_it_does_not_know(taken, op, options, reason):
    cost = float32_problem()[0]
    assert op(cost, n_iters=5, **options).plan.isfinite().all()
    with pytest.raises(ValueError, match=rf"^{op.__name__}: backend is 'cpu', .*: {reason}\. Use"):
        op(cost, backend="cpu", **options)
    assert not taken


@pytest.mark.parametrize("op", [mesh, sinkhorn])
def test_where_it_does_not_work(taken, op):
    cost = float32_problem()[0]
    # Few steps, for all of them are traced below.
    options = {"noise": 0.0, "n_steps": 1} if op is mesh else {}
    options["n_iters"] = 2

    def by_name(c):
        return op(c, backend="cpu", **options).plan

    def auto(c):
        return op(c, **options).plan

    with pytest.raises(ValueError, match=r"dtype torch\.float64"):
        by_name(cost.double())
    with pytest.raises(ValueError, match="cost is on meta"):
        by_name(cost.to("meta"))
    with pytest.raises(ValueError, match=r"transform of torch\.func"):
        torch.func.grad(lambda c: by_name(c).sum())(cost)
    with pytest.raises(ValueError, match="forward-mode derivatives are on"):
        jvp(by_name, cost)
    auto(cost.double())
    auto(cost.to("meta"))
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
