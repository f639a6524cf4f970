"""MESH without noise where all is tied: there is no way down, so no step and no slope of one."""

import pytest
import torch

from slotmesh.ops import mesh
from slotmesh.ops._naive import objective_gradient, start
from slotmesh.ops.objectives import EntropyObjective
from slotmesh.ops.problem import Given, problem

from ._compiled import needs_c
from ._reference import close, randn

KINDS = ["slots", "inputs", "both"]
F32, F64 = torch.float32, torch.float64


def tied(kind: str, m: int, n: int, scale: float, batch: int = 8) -> torch.Tensor:
    """Costs (batch, m, n) whose plan is the product of the masses: exact numbers, no rounding."""
    generator = torch.Generator().manual_seed(m * n)
    slots = torch.randint(-8, 9, (batch, m, 1), generator=generator) * scale
    inputs = torch.randint(-8, 9, (batch, 1, n), generator=generator) * scale
    if kind == "slots":
        return inputs.expand(batch, m, n)
    return slots.expand(batch, m, n) if kind == "inputs" else slots + inputs


def stays(t, cost):
    assert torch.equal(t.cost, cost)
    n = cost.shape[-1]
    # Potentials are rounded like the largest numbers that they are made of.
    assert (t.plan - 1 / n).abs().max() <= 1e-6 / n * (1 + cost.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.0, 0.125, 1.0, 64.0])
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("torch", F32), ("torch", F64), pytest.param("cpu", F32, marks=needs_c)],
)
def test_rounding_is_not_followed(kind, scale, backend, dtype):
    for m, n in [(2, 2), (3, 3), (7, 50)]:
        cost = tied(kind, m, n, scale).to(dtype)
        for n_iters in (2, 5):
            stays(mesh(cost, noise=0.0, n_iters=n_iters, backend=backend), cost)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_not_followed_by_the_kernel(device, kind):
    cost = tied(kind, 3, 9, 1.0, batch=2).to(device)
    stays(mesh(cost, noise=0.0, n_steps=2, backend="triton"), cost)


def unrolled(cost, dtype, **options):
    cost = cost.to(dtype).clone().requires_grad_()
    grad = "truncated" if options.get("potentials") == "detach" else "unroll"
    t = mesh(cost, lr=5.0, noise=0.0, grad=grad, backend="torch", **options)
    weights = randn(*cost.shape[-2:], seed=3, dtype=F64).to(dtype)
    return torch.autograd.grad((t.plan * weights).sum(), cost)[0]


@pytest.mark.parametrize("potentials", ["detach", "reuse", "fresh"])
@pytest.mark.parametrize(("m", "n"), [(3, 3), (7, 50), (5, 105)])
def test_unrolled_gradient_of_ties(m, n, potentials):
    """It was as large as float32 goes, and beyond that."""
    cost = tied("slots", m, n, 0.125)
    expected = unrolled(cost, F64, n_steps=6, potentials=potentials)
    assert 1e-3 < expected.abs().max() < 10.0
    close(unrolled(cost, F32, n_steps=6, potentials=potentials).double(), expected, 1e-4)


@pytest.mark.parametrize("distance", [1e-6, 1e-3, 1.0])
def test_unrolled_gradient_beside_ties(distance):
    """Against differences; the closer, the steeper."""
    cost = tied("slots", 3, 5, 0.125, batch=1)[0].double()
    cost = cost + distance * randn(3, 5, seed=1, dtype=F64)
    weights = randn(3, 5, seed=2, dtype=F64)
    options = {"noise": 0.0, "lr": 0.5, "n_steps": 3, "potentials": "fresh", "grad": "unroll"}

    def value(x):
        return (mesh(x, **options).plan * weights).sum(dim=(-2, -1))

    x = cost.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(x), x)
    h = 1e-4 * distance
    ways = h * torch.eye(15, dtype=F64).view(15, 3, 5)
    expected = ((value(cost + ways) - value(cost - ways)) / (2 * h)).view(3, 5)
    close(slope, expected, 1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("hardness", [1.0, 4.0, 12.0])
def test_gradient_of_nearly_hard_plans(hardness):
    """Its size is that of what is left to decide, not of the masses, whose rounding is no guide."""
    cost = hardness * (1 - torch.eye(4)) + 0.1 * randn(4, 4, seed=0, dtype=F32)

    def slope(x):
        task = problem(Given("mesh", x))
        return objective_gradient(-x, task, start(task, None), 5, EntropyObjective())[0].double()

    expected = slope(cost.double())
    close(slope(cost), expected, 1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("backend", ["torch", pytest.param("cpu", marks=needs_c)])
@pytest.mark.parametrize("common", [0.0, 1e2, 1e3])
def test_noise_breaks_ties_whatever_all_have_in_common(backend, common):
    """As long as float32 can tell the noise at all."""
    noise = 1e-3 * randn(20, 3, 3, seed=0, dtype=F32)
    plan = mesh(torch.full((20, 3, 3), common), noise=noise, n_steps=8, backend=backend).plan
    assert (plan.amax(-1) > 0.9).float().mean() > 0.8
