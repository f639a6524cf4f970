"""sinkhorn and mesh inside torch.func against a Python loop, in torch and in C."""

import pytest
import torch

from slotmesh import mesh, sinkhorn

from ._compiled import needs_c
from ._reference import close, randn

BACKENDS = ["torch", pytest.param("cpu", marks=needs_c)]
OPTIONS = [
    (sinkhorn, {}),
    (sinkhorn, {"grad": "implicit", "n_iters": 50}),
    (mesh, {"noise": 0.0}),
    (mesh, {"noise": 0.0, "grad": "implicit"}),
]
F32 = torch.float32


def plan_of(op, backend, options):
    return lambda cost, *masses: op(cost, *masses, backend=backend, **options).plan


def gradients(loss, *leaves):
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("op", "options"), OPTIONS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_vmap_is_a_loop_over_any_dimension(op, options, backend, dim):
    plan = plan_of(op, backend, options)
    cost = randn(3, 2, 4, 5, seed=0, dtype=F32).movedim(0, dim).contiguous().requires_grad_()
    weight = randn(3, 2, 4, 5, seed=1, dtype=F32)
    found = torch.vmap(plan, in_dims=dim)(cost)
    expected = torch.stack([plan(one) for one in cost.movedim(dim, 0)])
    close(found, expected, 1e-6)
    pairs = zip(
        gradients((found * weight).sum(), cost),
        gradients((expected * weight).sum(), cost),
        strict=True,
    )
    for x, y in pairs:
        close(x, y, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_nested_vmap_with_what_is_shared(op, options, backend):
    """Costs over both, masses over one, and masses of inputs over none."""
    plan = plan_of(op, backend, options)
    cost = randn(3, 2, 4, 5, seed=0, dtype=F32).requires_grad_()
    a = randn(2, 4, seed=1, dtype=F32).softmax(-1).requires_grad_()
    b = randn(5, seed=2, dtype=F32).softmax(-1).requires_grad_()
    inner = torch.vmap(plan, in_dims=(0, 0, None))
    found = torch.vmap(inner, in_dims=(0, None, None))(cost, a, b)
    expected = torch.stack(
        [torch.stack([plan(cost[i, j], a[j], b) for j in range(2)]) for i in range(3)]
    )
    close(found, expected, 1e-6)
    weight = randn(3, 2, 4, 5, seed=3, dtype=F32)
    pairs = zip(
        gradients((found * weight).sum(), cost, a, b),
        gradients((expected * weight).sum(), cost, a, b),
        strict=True,
    )
    for x, y in pairs:
        close(x, y, 1e-4)


@needs_c
def test_vmap_runs_in_c_and_one_element_stays_by_itself(monkeypatch):
    """An element that C leaves to the log domain, and masks and temperatures over the batch."""
    from slotmesh.ops import _native as native

    solved = []
    solve = native.solve
    monkeypatch.setattr(native, "solve", lambda *x: solved.append(len(x[0].cost)) or solve(*x))
    cost = randn(3, 4, 5, seed=0, dtype=F32)
    cost[1] *= 300
    real = torch.tensor([[True] * 4, [True, True, False, True], [True, False, False, True]])
    tau = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)

    def plan(cost, mask, tau):
        return sinkhorn(cost, slot_mask=mask, temperature=tau).plan

    found = torch.vmap(plan)(cost, real, tau)
    assert solved == [3]
    expected = torch.stack([plan(*one) for one in zip(cost, real, tau, strict=True)])
    close(found, expected, 1e-5)
    for x, y in zip(
        gradients(found.square().sum(), tau), gradients(expected.square().sum(), tau), strict=True
    ):
        close(x, y, 1e-3)


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_gradients_inside_vmap_and_jacobians(op, options):
    """By torch, whatever the backend would be outside."""
    plan = plan_of(op, "auto", options)
    cost, weight = randn(3, 4, 5, seed=0, dtype=F32), randn(4, 5, seed=1, dtype=F32)

    def loss(one):
        return (plan(one) * weight).sum()

    found = torch.vmap(torch.func.grad(loss))(cost)
    for one, gradient in zip(cost, found, strict=True):
        leaf = one.clone().requires_grad_()
        close(gradient, gradients(loss(leaf), leaf)[0], 1e-4)
    jacobian = torch.func.jacrev(loss)(cost[0])
    close(jacobian, found[0], 1e-5)
    rows = torch.func.jacrev(plan)(cost[0])
    close((rows * weight[:, :, None, None]).sum((0, 1)), found[0], 1e-4)


# Of torch's GRU cell, which has no batching rule.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_stacked_models_need_no_code_of_their_own():
    """Several slot attentions as one, by torch.func."""
    from slotmesh import SlotAttention
    from slotmesh.nn import FixedGaussian, Mesh

    models = [
        SlotAttention(6, 5, 3, Mesh(noise=0.0), init=FixedGaussian(), n_iters=2) for _ in range(2)
    ]
    parameters, buffers = torch.func.stack_module_state(models)
    inputs, slots = randn(2, 4, 7, 6, seed=0, dtype=F32), randn(4, 3, 5, seed=1, dtype=F32)

    def run(parameters, buffers, inputs):
        state = (parameters, buffers)
        return torch.func.functional_call(models[0], state, (inputs,), {"slots": slots}).slots

    found = torch.vmap(run)(parameters, buffers, inputs)
    for model, one, expected in zip(models, inputs, found, strict=True):
        close(model(one, slots=slots).slots, expected, 1e-4)
