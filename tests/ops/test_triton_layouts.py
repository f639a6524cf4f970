"""Kernels take tensors as they lie: strides, offsets, empty batches; the rest is an error."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from slotmesh.ops import _fused, assign, emd, mesh, sinkhorn
from slotmesh.ops._distance import distances
from slotmesh.ops.logit import logits

from ._reference import masses, randn

F32 = torch.float32
OPS: dict[str, Callable[..., Any]] = {"sinkhorn": sinkhorn, "mesh": mesh, "emd": emd}
BACKENDS = {
    "sinkhorn": ("auto", "torch", "triton", "cpu"),
    "mesh": ("auto", "torch", "triton", "cpu"),
    "emd": ("auto", "pot", "triton"),
    "assign": ("auto", "scipy", "triton"),
}


def transposed(x: Tensor) -> Tensor:
    """The same numbers, last dimension not the fastest."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1)


def shifted(x: Tensor) -> Tensor:
    """The same numbers, at an address that no vector of them may start at."""
    return torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape)


def sparse(x: Tensor) -> Tensor:
    """The same numbers, with others between them."""
    return torch.stack((x, torch.ones_like(x)), -1)[..., 0]


LAYOUTS = {f.__name__: f for f in (transposed, shifted, sparse)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_any_layout(device: str, name: str, layout: str) -> None:
    change = LAYOUTS[layout]
    cost = randn(2, 3, 10, seed=1, dtype=F32).to(device)
    a, b = (masses(2, n, seed=n, total=3, dtype=F32).to(device) for n in (3, 10))
    slots = torch.tensor([[True, True, False], [True] * 3], device=device)
    inputs = torch.arange(10, device=device) < 9
    args = [cost, torch.where(slots, a, 0), b * inputs]
    args[2] = args[2] * (args[1].sum(-1) / args[2].sum(-1))[:, None]
    options: dict[str, Any] = {"slot_mask": slots, "input_mask": inputs.expand(2, 10)}
    if name != "emd":
        options["temperature"] = torch.tensor([0.5, 1.0], device=device)
    if name == "mesh":
        options["noise"] = 0.1 * cost.sin()
    if name == "sinkhorn":
        options["init"] = (a, b)
    counts = {"sinkhorn": {"n_iters": 2}, "mesh": {"n_iters": 2, "n_steps": 1}}.get(name, {})
    results = []
    for how in (lambda x: x, change):
        leaf = how(cost).detach().requires_grad_()
        moved = {k: tuple(map(how, v)) if k == "init" else how(v) for k, v in options.items()}
        t = OPS[name](leaf, *(how(x) for x in args[1:]), backend="triton", **moved, **counts)
        found = [t.plan, t.u, t.v, t.marginal_error]
        if name != "emd":
            found += torch.autograd.grad((t.plan * how(cost.cos())).sum(), leaf)
        results.append(found)
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_of_the_others(device: str, layout: str) -> None:
    change = LAYOUTS[layout]
    cost = randn(2, 4, 5, seed=2, dtype=F32).to(device)
    slots = torch.tensor([True, False, True, True], device=device).expand(2, 4)
    pairs = [
        assign(how(cost), slot_mask=how(slots), backend="triton") for how in (Tensor.clone, change)
    ]
    assert torch.equal(*pairs)
    queries, keys = (randn(2, n, 7, seed=n, dtype=F32).to(device) for n in (3, 9))
    layer = [randn(*s, seed=3, dtype=F32).to(device) for s in ((6, 7), (6,), (6,))]
    results = []
    for how in (Tensor.clone, change):
        leaves = [how(x).detach().requires_grad_() for x in (queries, keys, *layer)]
        found = [distances(*leaves[:2], False), logits(leaves[1], *leaves[2:])]
        grads = torch.autograd.grad(sum(x.sin().sum() for x in found), leaves)  # pyright: ignore
        results.append([*found, *grads])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", sorted({b for all_of in BACKENDS.values() for b in all_of}))
@pytest.mark.parametrize("batch", [(0,), (2, 0)], ids=str)
def test_an_empty_batch(device: str, batch: tuple[int, ...], backend: str) -> None:
    if device == "cuda" and backend == "cpu":
        pytest.skip("not for tensors there")
    mask = torch.ones(*batch, 5, dtype=torch.bool, device=device)
    for name, op in OPS.items():
        if backend in BACKENDS[name]:
            cost = torch.zeros(*batch, 3, 5, device=device, requires_grad=True)
            for options in ({}, {"input_mask": mask, "a": torch.ones(3, device=device)}):
                t = op(cost, backend=backend, **options)
                assert t.plan.shape == (*batch, 3, 5)
                assert t.u.shape == (*batch, 3)
                assert t.marginal_error.shape == batch
                if name != "emd":
                    assert torch.autograd.grad(t.plan.sum(), cost)[0].shape == cost.shape
    if backend in BACKENDS["assign"]:
        assert assign(torch.zeros(*batch, 3, 5, device=device), backend=backend).shape == (
            *batch,
            3,
        )


@pytest.mark.parametrize("shape", [(2, 0, 4), (2, 3, 0), (0, 0), (0, 3, 0)], ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_no_rows_or_columns(device: str, name: str, shape: tuple[int, ...]) -> None:
    op = {**OPS, "assign": assign}[name]
    for backend in BACKENDS[name]:
        with pytest.raises(ValueError, match=rf"{name}: cost has shape .* one row and one column"):
            op(torch.zeros(shape, device=device), backend=backend)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_kernel_asked_for_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    op = {**OPS, "assign": assign}[name]
    with pytest.raises(
        ValueError, match=rf"^{name}: backend is 'triton', .* cost is on cpu, and the"
    ):
        op(torch.zeros(2, 3), backend="triton")


@pytest.mark.parametrize("op", [sinkhorn, mesh])
def test_more_iterations_than_a_kernel_counts(
    device: str, op: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fused, "MOST_RECORDED", 3 * 4 * 5)
    cost = torch.rand(4, 6, device=device)
    assert op(cost, n_iters=5, backend="triton").plan.isfinite().all()
    with pytest.raises(ValueError, match="n_iters is 6, and the kernels take at most 5 with 4 slo"):
        op(cost, n_iters=6, backend="triton")
    assert op(cost, n_iters=6).plan.isfinite().all()
