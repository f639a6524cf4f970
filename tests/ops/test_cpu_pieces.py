"""In C: iterations whose scalings leave their range, which are tried again in pieces."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from slotmesh.ops import Transport, sinkhorn

from ._compiled import needs_c
from ._reference import close, gradients, leaf, masses, randn

cpu = importlib.import_module("slotmesh.ops._cpu")

pytestmark = needs_c

F32, F64 = torch.float32, torch.float64
N = 60


def far(size: int) -> tuple[Tensor, Tensor]:
    """Cost and masses with which each iteration moves a potential by the logarithm of its mass."""
    mass = torch.tensor([1.4, 0.6], dtype=F64).repeat(size // 2)
    return 60.0 * (1.0 - torch.eye(size, dtype=F64)), mass


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Iterations of every call of the C."""
    found: list[int] = []
    solve = cpu.native.solve

    def counted(batch: Any, changed: Any, start: Any, settings: Any, outputs: Any) -> Tensor:
        found.append(settings.n_iters)
        return solve(batch, changed, start, settings, outputs)

    monkeypatch.setattr(cpu.native, "solve", counted)
    return found


@pytest.mark.parametrize("size", [10, 100])
def test_potentials_that_move_far_stay_in_c(
    size: int, tries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cost, mass = far(size)
    expected = sinkhorn(cost, mass, n_iters=N)
    assert expected.u.min() < -20
    monkeypatch.setattr(cpu, "solve", None)  # of the log domain
    tracked = leaf(cost.to(F32))
    t = sinkhorn(tracked, mass.to(F32), n_iters=N, backend="cpu")
    assert tries == [N, cpu.PIECE, cpu.PIECE, cpu.PIECE]
    assert t.n_iters == N
    close(t.plan.double(), expected.plan, 1e-5)
    close(t.u.double(), expected.u, 1e-3)
    assert gradients(t.plan, [tracked])[0].isfinite().all()


@pytest.mark.parametrize("grad", ["unroll", "implicit"])
@pytest.mark.parametrize("n_iters", [N - 1, N + 1])
def test_gradients_through_pieces(grad: str, n_iters: int, tries: list[int]) -> None:
    """Of a batch whose first element needs pieces and whose second does not."""
    cost, mass = far(12)
    given = (
        torch.stack((cost + 0.1 * randn(12, 12, seed=0), randn(12, 12, seed=1))),
        torch.stack((mass, masses(12, seed=2, total=12))),
        masses(2, 12, seed=3, total=12),
        1.0 + 0.1 * randn(2, seed=4).square(),
        randn(2, 12, seed=5),
    )

    def run(dtype: torch.dtype, backend: str) -> tuple[Transport, tuple[Tensor, ...]]:
        leaves = [leaf(x.to(dtype)) for x in given]
        cost, a, b, temperature, u = leaves
        t = sinkhorn(
            *(cost, a, b),
            n_iters=n_iters,
            temperature=temperature,
            init=(u, torch.zeros_like(b)),
            grad=grad,
            backend=backend,
        )
        return t, gradients(t.plan, leaves if grad == "unroll" else leaves[:4])

    found, grads = run(F32, "cpu")
    assert cpu.PIECE in tries
    expected, exact = run(F64, "torch")
    for name in ("plan", "u", "v", "n_iters"):
        close(getattr(found, name).double(), getattr(expected, name).double(), 1e-3)
    for x, y in zip(grads, exact, strict=True):
        close(x.double(), y, 1e-2 * max(1.0, y.abs().max().item()))


def test_inside_vmap() -> None:
    cost, mass = far(12)
    costs = (cost + 0.1 * randn(2, 3, 12, 12, seed=0)).to(F32)

    def plan(x: Tensor) -> Tensor:
        return sinkhorn(x, mass.to(F32), n_iters=N, backend="cpu").plan

    expected = plan(costs)
    for dim in (0, 1):
        assert torch.equal(torch.vmap(plan, in_dims=dim, out_dims=dim)(costs), expected)
