"""Many iterations of large matrices in C, which are cut into pieces."""

import importlib

import pytest
import torch

from slotmesh.ops import Transport, sinkhorn

from ._compiled import needs_c
from ._reference import close, gradients, leaf, problem, randn

cpu = importlib.import_module("slotmesh.ops._cpu")

pytestmark = needs_c

F32, F64 = torch.float32, torch.float64


def test_potentials_that_move_far_stay_in_c(monkeypatch):
    """Each iteration moves the potential of a slot by the logarithm of its mass."""
    mass = torch.tensor([1.4, 0.6]).repeat(50)
    cost = 60.0 * (1.0 - torch.eye(100))
    expected = sinkhorn(cost.double(), mass.double(), n_iters=60)
    assert expected.u.min() < -20
    monkeypatch.setattr(cpu, "solve", None)  # of the log domain
    tracked = leaf(cost)
    t = sinkhorn(tracked, mass, n_iters=60, backend="cpu")
    assert t.n_iters == 60
    close(t.plan.double(), expected.plan, 1e-5)
    close(t.u.double(), expected.u, 1e-3)
    assert gradients(t.plan, [tracked])[0].isfinite().all()


@pytest.mark.parametrize("grad", ["unroll", "implicit"])
@pytest.mark.parametrize("shape", [(2, 96, 100), (4700, 2), (100, 120)])
def test_results_are_those_of_one_piece(grad, shape):
    *batch, m, _ = shape
    given = problem(*shape, seed=0)
    tau, start = 1.0 + randn(*batch, seed=3).square(), randn(*batch, m, seed=4)

    def run(dtype: torch.dtype, backend: str) -> tuple[Transport, tuple[torch.Tensor, ...]]:
        leaves = [leaf(x.to(dtype)) for x in (*given, tau, start)]
        cost, a, b, temperature, u = leaves
        t = sinkhorn(
            *(cost, a, b),
            n_iters=45,
            temperature=temperature,
            init=(u, torch.zeros_like(b)),
            grad=grad,
            backend=backend,
        )
        wanted = leaves if grad == "unroll" else leaves[:4]
        return t, gradients(t.plan, wanted)

    found, grads = run(F32, "cpu")
    expected, exact = run(F64, "torch")
    for name in ("plan", "u", "v", "n_iters"):
        close(getattr(found, name).double(), getattr(expected, name).double(), 1e-4)
    for x, y in zip(grads, exact, strict=True):
        close(x.double(), y, 1e-3 * max(1.0, y.abs().max().item()))


def test_inside_vmap():
    cost = randn(2, 3, 96, 97, seed=0, dtype=F32)
    expected = sinkhorn(cost, n_iters=45, backend="cpu").plan
    for dim in (0, 1):
        found = torch.vmap(
            lambda x: sinkhorn(x, n_iters=45, backend="cpu").plan, in_dims=dim, out_dims=dim
        )(cost)
        assert torch.equal(found, expected)


def test_pieces_are_all_iterations():
    settings = cpu.SolverSettings(n_iters=1)
    for total in (1, 19, 20, 21, 95, 100, 1001):
        pieces = cpu._pieces(settings._replace(n_iters=total), cpu.LARGE)
        assert sum(pieces) == total
        assert max(pieces) <= cpu.PIECE
        assert cpu._pieces(settings._replace(n_iters=total), cpu.LARGE - 1) == [total]
