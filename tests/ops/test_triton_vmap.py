"""Kernels inside torch.func.vmap against a loop of their own calls."""

from typing import Any

import pytest
import torch
from torch import Tensor

from slotmesh.ops import _fused, mesh, sinkhorn

from ._reference import close, randn

F32 = torch.float32
OPTIONS = [
    (sinkhorn, {}),
    (sinkhorn, {"grad": "implicit"}),
    (mesh, {"noise": 0.0, "n_steps": 1}),
    (mesh, {"noise": 0.0, "n_steps": 1, "potentials": "reuse"}),
    (mesh, {"noise": 0.0, "n_steps": 1, "grad": "implicit"}),
]


def results_of(op: Any, options: Any) -> Any:
    def call(cost: Tensor, *masses: Tensor) -> tuple[Tensor, ...]:
        t = op(cost, *masses, n_iters=2, backend="triton", **options)
        return t.plan, t.u, t.v, t.cost, t.marginal_error, t.n_iters

    return call


def compare(found: tuple[Tensor, ...], loop: list[tuple[Tensor, ...]], *leaves: Tensor) -> None:
    """The same results, and gradients of the plan."""
    expected = [torch.stack(x) for x in zip(*loop, strict=True)]
    for x, y in zip(found, expected, strict=True):
        close(x, y, 1e-5)
    weight = randn(*found[0].shape, seed=9, dtype=F32).to(found[0].device)
    grads = [torch.autograd.grad((x[0] * weight).sum(), leaves) for x in (found, expected)]
    for x, y in zip(*grads, strict=True):
        close(x, y, 1e-5)


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_vmap_is_a_loop(device: str, op: Any, options: Any) -> None:
    """Over another dimension than the first, with masses of their own and shared ones."""
    call = results_of(op, options)
    cost = randn(2, 3, 4, 17, seed=0, dtype=F32).to(device).requires_grad_()
    a = randn(3, 4, seed=1, dtype=F32).softmax(-1).to(device).requires_grad_()
    b = randn(17, seed=2, dtype=F32).softmax(-1).to(device).requires_grad_()
    found = torch.vmap(call, in_dims=(1, 0, None))(cost, a, b)
    compare(found, [call(cost[:, i], a[i], b) for i in range(3)], cost, a, b)


def test_nested_vmap_of_many_small_matrices(device: str) -> None:
    call = results_of(sinkhorn, {})
    assert _fused.small_group(3, 5, _fused.SolverSettings(n_iters=1)) > 1
    cost = randn(2, 3, 3, 5, seed=3, dtype=F32).to(device).requires_grad_()
    found = torch.vmap(torch.vmap(call))(cost)
    loop = [
        tuple(torch.stack(x) for x in zip(*(call(y) for y in one), strict=True)) for one in cost
    ]
    compare(found, loop, cost)


def test_vmap_runs_one_kernel(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from slotmesh.ops._triton import launch

    started: list[tuple[int, ...]] = []
    forward = launch.forward

    def noted(operands: Any, *rest: Any) -> None:
        started.append(tuple(operands.cost.shape))
        forward(operands, *rest)

    monkeypatch.setattr(launch, "forward", noted)
    cost = randn(3, 4, 17, seed=4, dtype=F32).to(device)
    torch.vmap(lambda c: sinkhorn(c, backend="triton").plan)(cost)
    assert started == [(3, 4, 17)]


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_several_gradients_of_one_plan_at_once(device: str, op: Any, options: Any) -> None:
    """Backward passes inside vmap, whose forward pass was outside."""
    cost = randn(2, 4, 17, seed=5, dtype=F32).to(device).requires_grad_()
    plan = op(cost, n_iters=2, backend="triton", **options).plan
    weights = randn(3, *plan.shape, seed=6, dtype=F32).to(device)

    def pulled(weight: Tensor) -> Tensor:
        return torch.autograd.grad(plan, cost, weight, retain_graph=True)[0]

    close(torch.vmap(pulled)(weights), torch.stack([pulled(x) for x in weights]), 1e-5)
