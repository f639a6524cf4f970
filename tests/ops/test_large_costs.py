"""Costs that are many times the temperature: how exact Sinkhorn is, and what is beyond that."""

import mpmath
import pytest
import torch

from slotmesh.ops import mesh, sinkhorn

from ._compiled import needs_c
from ._reference import randn

F32, F64 = torch.float32, torch.float64
BACKENDS = ["torch", pytest.param("cpu", marks=needs_c)]
N_ITERS = 3


def exact_plan(kernel, m, n):
    """Sinkhorn's plan (m, n) of numbers with 60 digits, uniform masses."""
    exponentials = [[mpmath.exp(x) for x in row] for row in kernel]
    v = []
    u = [mpmath.mpf(1)] * m
    for _ in range(N_ITERS):
        v = [
            mpmath.mpf(m) / n / mpmath.fsum(exponentials[i][j] * u[i] for i in range(m))
            for j in range(n)
        ]
        u = [1 / mpmath.fsum(exponentials[i][j] * v[j] for j in range(n)) for i in range(m)]
    return [[u[i] * exponentials[i][j] * v[j] for j in range(n)] for i in range(m)]


def exactly(cost, weights, tau):
    """The plan (m, n), and the derivative of its weighted sum by cost / tau, as differences."""
    m, n = cost.shape
    with mpmath.workdps(60):
        tau = mpmath.mpf(tau)
        kernel = [[-mpmath.mpf(x) / tau for x in row] for row in cost.double().tolist()]
        w = weights.double().tolist()

        def value(plan):
            return mpmath.fsum(w[i][j] * plan[i][j] for i in range(m) for j in range(n))

        plan = exact_plan(kernel, m, n)
        base, h = value(plan), mpmath.mpf(10) ** -30
        slope = torch.empty(m, n, dtype=F64)
        for i in range(m):
            for j in range(n):
                kernel[i][j] -= h
                slope[i, j] = float((value(exact_plan(kernel, m, n)) - base) / h)
                kernel[i][j] += h
        return torch.tensor([[float(x) for x in row] for row in plan], dtype=F64), slope


@pytest.mark.parametrize(
    ("backend", "dtype", "scale"),
    [
        *(("torch", F32, scale) for scale in (1.0, 1e2, 1e4)),
        *(pytest.param("cpu", F32, scale, marks=needs_c) for scale in (1.0, 1e2, 1e4)),
        *(("torch", F64, scale) for scale in (1.0, 1e4, 1e8, 1e12)),
    ],
)
def test_error_is_that_of_the_exponents(backend, dtype, scale):
    """A few units in the last place of the largest cost over the temperature, and no more."""
    worst = 0.0
    for seed in range(3):
        # Some costs close to others, so that plan and gradient are more than zeros and ones.
        cost = randn(3, 4, seed=seed, dtype=dtype).round() + randn(3, 4, seed=seed + 9) / scale
        cost = cost.to(dtype)
        weights = randn(3, 4, seed=seed + 99, dtype=dtype)
        tau = 1.0 / scale
        plan, slope = exactly(cost, weights, tau)
        tracked = cost.clone().requires_grad_()
        t = sinkhorn(tracked, temperature=tau, n_iters=N_ITERS, backend=backend)
        (gradient,) = torch.autograd.grad((t.plan * weights).sum(), tracked)
        assert slope.abs().max() > 1e-3
        for x, y in ((t.plan.detach(), plan), (gradient * tau, slope)):
            worst = max(worst, float((x.double() - y).abs().max()))
    size = 10.0 + scale * 3.0
    assert worst <= 4 * torch.finfo(dtype).eps * size


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1e6, 1e8, 1e10, 1e30])
def test_gradients_beyond_stay_bounded(backend, scale):
    """What flows back is shared out in every half-step, so it cannot grow."""
    cost, weights = (randn(20, 4, 9, seed=s, dtype=F32) for s in (0, 1))
    for op, options in ((sinkhorn, {}), (sinkhorn, {"n_iters": 50}), (mesh, {"noise": 0.0})):
        tracked = (scale * cost).requires_grad_()
        t = op(tracked, backend=backend, **options)
        (gradient,) = torch.autograd.grad((t.plan * weights).sum(), tracked)
        n_iters = int(t.n_iters[0])
        most = 2 * 4 * weights.abs().amax((-2, -1)) * (1 + 2 * n_iters)
        assert (gradient.abs().sum((-2, -1)) <= 1.01 * most).all()


@pytest.mark.parametrize("potentials", ["detach", "fresh"])
@pytest.mark.parametrize("scale", [1e6, 1e8, 1e10, 1e30])
def test_unrolled_descent_beyond_stays_finite(scale, potentials):
    cost, weights = (randn(20, 4, 9, seed=s, dtype=F32) for s in (0, 1))
    tracked = (scale * cost).requires_grad_()
    grad = "truncated" if potentials == "detach" else "unroll"
    t = mesh(tracked, lr=5.0, noise=0.0, grad=grad, potentials=potentials)
    (gradient,) = torch.autograd.grad((t.plan * weights).sum(), tracked)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e8])
def test_converged_is_not_claimed_without_being_so(backend, scale):
    cost = scale * randn(50, 4, 9, seed=0, dtype=F32)
    for op, options in ((sinkhorn, {}), (sinkhorn, {"n_iters": 200}), (mesh, {})):
        t = op(cost, backend=backend, **options)
        plan = t.plan.double()
        wrong = (plan.sum(-1) - 1).abs().sum(-1) + (plan.sum(-2) - 4 / 9).abs().sum(-1)
        assert torch.equal(t.converged, wrong / 4 <= 1e-3) or (wrong / 4 - 1e-3).abs().min() < 1e-5
    assert scale == 1.0 or not t.converged.all()
