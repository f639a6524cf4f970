"""Kernels against the truth: the same call in float32 by triton and in float64 by torch."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from slotmesh.ops import Transport, _fused, mesh

from ._reference import close

# As a share of the size of what is expected.
VALUES, GRADIENTS = 1e-5, 1e-4


def near(actual: Tensor, expected: Tensor, share: float, what: str, least: float = 1e-2) -> None:
    """Equal up to ``share`` of the norm; infinities in the same places, NaN nowhere.

    Numbers here are of the order of 1: those that vanish do so up to rounding, so the norm counts
    as that of numbers of size ``least`` at least.
    """
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    assert actual.shape == expected.shape, what
    finite = expected.isfinite()
    assert (actual.isfinite() == finite).all(), f"{what}: {actual} is not {expected}"
    assert (actual[~finite] == expected[~finite]).all(), what
    actual, expected = actual[finite], expected[finite]
    most = share * max(float(expected.norm()), least * expected.numel() ** 0.5)
    assert float((actual - expected).norm()) <= most, f"{what}: {actual} is not {expected}"


def both(
    op: Callable[..., Transport],
    device: str,
    leaves: dict[str, Tensor],
    *,
    through: tuple[str, ...] = ("plan", "u", "v"),
    values: float = VALUES,
    gradients: float = GRADIENTS,
    **options: Any,
) -> Transport:
    """Compare values, and gradients by every leaf; returns what the kernel gave.

    Args:
        op: ``sinkhorn`` or ``mesh``.
        device: Where the kernel runs.
        leaves: Arguments by name to differentiate by, in the dtype that the kernel gets. ``u`` is
            the warm start.
        through: Results that the gradient goes through; infinite ones do not count.
        values: Share of the norm by which results may differ.
        gradients: The same for gradients.
        options: Other arguments; tensors go to the device.
    """
    results = []
    for backend in ("triton", "torch"):
        where = device if backend == "triton" else "cpu"
        given: dict[str, Any] = {}
        for name, leaf in leaves.items():
            x = leaf.detach().to(where)
            given[name] = (x if backend == "triton" else x.double()).requires_grad_()
        call = {k: v.to(where) if isinstance(v, Tensor) else v for k, v in options.items()} | given
        if "u" in call:
            u = call.pop("u")
            call["init"] = (u, torch.zeros(call["cost"].shape[-1:], dtype=u.dtype, device=where))
        t = op(backend=backend, **call)
        assert t.cost is call["cost"] or op is mesh
        loss = torch.zeros((), dtype=torch.float64, device=where)
        for i, name in enumerate(through):
            out = getattr(t, name)
            weight = torch.randn(
                out.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64
            ).to(out.dtype)
            finite = torch.where(out.isfinite(), out, 0.0)
            loss = loss + (finite * weight.to(where)).double().sum()
        grads = torch.autograd.grad(loss, list(given.values()))
        for x, grad in zip(given.values(), grads, strict=True):
            assert grad.dtype == x.dtype
        results.append((t, dict(zip(given, grads, strict=True))))
    (kernel, kernel_grads), (truth, truth_grads) = results
    near(kernel.plan, truth.plan, values, "plan")
    for name in ("u", "v"):
        # Logarithms: what counts is how much they change their exponentials.
        near(getattr(kernel, name), getattr(truth, name), values, name, 1.0)
    if op is mesh:
        near(kernel.cost, truth.cost, values, "cost")
    near(kernel.temperature, truth.temperature, 1e-6, "temperature")
    assert kernel.temperature.requires_grad == truth.temperature.requires_grad
    close(kernel.marginal_error.cpu(), truth.marginal_error, max(1e-6, values))
    assert (kernel.n_iters.cpu() == truth.n_iters).all()
    assert kernel.n_iters.dtype == truth.n_iters.dtype
    assert kernel.converged.dtype == truth.converged.dtype
    for name, grad in kernel_grads.items():
        near(grad, truth_grads[name], gradients, f"gradient by {name}")
    return kernel


def blocks_of(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut matrices into narrow blocks, so that a kernel has to walk over several."""
    from slotmesh.ops._triton import launch

    choose = launch.choose

    def narrow(batch: int, m: int, n: int, processors: int) -> Any:
        cut = choose(batch, m, n, processors)
        return launch.Cut(cut.M, columns, cut.split, 1)

    monkeypatch.setattr(launch, "choose", narrow)
    monkeypatch.setattr(_fused, "SMALL", 0)


def storing(stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store the exponentials of all blocks from one iteration to the next, or of none."""
    from slotmesh.ops._triton import launch

    monkeypatch.setattr(launch, "_storing_pays", lambda *_: stored)
    # Launches that were chosen before are not used.
    monkeypatch.setattr(launch, "_launch", lru_cache(launch._launch.__wrapped__))


def record_moves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count, for each call of the kernel from now on, in how many iterations a slot's u changes."""
    from slotmesh.ops._triton import launch

    forward = launch.forward
    found: list[int] = []

    def counted(operands: Any, settings: Any, results: Any) -> None:
        forward(operands, settings, results)
        u = results.trace[..., : settings.n_iters, :]
        found.append(int((u[..., 1:, :] != u[..., :-1, :]).any(-1).sum()))

    monkeypatch.setattr(launch, "forward", counted)
    return found


def same_captured(eager: tuple[Tensor, ...], run: Callable[[], tuple[Tensor, ...]]) -> None:
    """A run gives the same when a CUDA graph of it is replayed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for x in captured:
        x.zero_()
    graph.replay()
    for x, y in zip(captured, eager, strict=True):
        close(x, y, 1e-6)
