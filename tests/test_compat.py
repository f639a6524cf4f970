"""slotmesh.compat against the formulas of the paper, written out in the authors' layout."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from slotmesh.compat import minimize_entropy_of_sinkhorn, sinkhorn

NAMES = ("result", "u", "v")


def reference_sinkhorn(
    cost: Tensor, a: Tensor, b: Tensor, n: int = 5, tau: float = 1.0, v: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    log_kernel = -cost / tau
    v = torch.zeros_like(b) if v is None else v
    u = torch.zeros_like(a)
    for _ in range(n):
        u = a.clamp(min=1e-30).log() - (log_kernel + v[:, None, :]).logsumexp(2)
        v = b.clamp(min=1e-30).log() - (log_kernel + u[:, :, None]).logsumexp(1)
    return (log_kernel + u[:, :, None] + v[:, None, :]).exp(), u, v


def reference_mesh(
    cost: Tensor,
    a: Tensor,
    b: Tensor,
    noise: Tensor,
    lr: float | Tensor,
    steps: int,
    n: int,
    reuse: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    cost = cost + 1e-3 * noise
    u: Tensor | None = None
    v: Tensor | None = None
    for _ in range(steps):
        with torch.enable_grad():
            current = cost if cost.requires_grad else cost.detach().requires_grad_()
            plan, u, v = reference_sinkhorn(current, a, b, n, v=v if reuse else None)
            objective = torch.special.entr(plan).sum()
            [grad] = torch.autograd.grad(objective, current, retain_graph=True)
        cost = cost - lr * grad / grad.flatten(1).norm(dim=1)[:, None, None]
    return (cost, u, v) if reuse else (cost, None, None)


def problem(dtype: torch.dtype, seed: int = 0, uneven: bool = False) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    cost = torch.rand(3, 9, 4, dtype=torch.float64, generator=rng)
    a = torch.rand(3, 9, dtype=torch.float64, generator=rng).softmax(-1)
    b = torch.rand(3, 4, dtype=torch.float64, generator=rng).softmax(-1)
    if uneven:
        a = 2.5 * a
    noise = torch.randn(3, 9, 4, dtype=torch.float64, generator=rng)
    return tuple(x.to(dtype) for x in (cost, a, b, noise))


def close(actual: Tensor | None, expected: Tensor | None, name: str, tol: float = 1e-6) -> None:
    assert (actual is None) == (expected is None), name
    if actual is not None and expected is not None:
        torch.testing.assert_close(actual.double(), expected.double(), rtol=tol, atol=tol)


@pytest.mark.parametrize("uneven", [False, True], ids=["even", "uneven"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_sinkhorn(uneven: bool, warm: bool, tau: float) -> None:
    cost, a, b, _ = problem(torch.float64, uneven=uneven)
    v = torch.linspace(-1, 1, 4, dtype=torch.float64).expand(3, 4) if warm else None
    expected = reference_sinkhorn(cost, a, b, 7, tau, v)
    found = sinkhorn(cost, a, b, n_sh_iters=7, temperature=tau, u=None, v=v)
    for name, x, y in zip(NAMES, found, expected, strict=True):
        close(x, y, name)


def test_sinkhorn_without_mass() -> None:
    cost, a, b, _ = problem(torch.float64)
    a[:, 2] = 0.0
    for name, x, y in zip(NAMES, sinkhorn(cost, a, b), reference_sinkhorn(cost, a, b), strict=True):
        close(x, y, name)


@pytest.mark.parametrize("factor", [0.2, 1.0, 1.3, 5.0])
def test_potentials_without_mass(factor: float) -> None:
    """The smallest mass is that of the authors, whatever the totals are."""
    cost, a, b, noise = problem(torch.float64)
    a = factor * a
    a[:, 2] = 0.0
    expected = reference_sinkhorn(cost, a, b)
    for name, x, y in zip(NAMES, sinkhorn(cost, a, b), expected, strict=True):
        close(x, y, name)
    expected = reference_mesh(cost, a, b, noise, 1.0, 2, 3, True)
    found = minimize_entropy_of_sinkhorn(cost, a, b, noise, n_mesh_iters=2, n_sh_iters=3)
    for name, x, y in zip(NAMES, found, expected, strict=True):
        close(x, y, name)


@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "fresh"])
@pytest.mark.parametrize("uneven", [False, True], ids=["even", "uneven"])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_mesh(reuse: bool, uneven: bool, steps: int) -> None:
    cost, a, b, noise = problem(torch.float64, uneven=uneven)
    expected = reference_mesh(cost, a, b, noise, 1.0, steps, 5, reuse and steps > 0)
    found = minimize_entropy_of_sinkhorn(cost, a, b, noise, 1.0, steps, 5, reuse)
    for name, x, y in zip(NAMES, found, expected, strict=True):
        close(x, y, name)


def test_float32_takes_the_fast_path() -> None:
    cost, a, b, noise = problem(torch.float32)
    exact = [x.double() for x in (cost, a, b, noise)]
    expected = reference_mesh(*exact, lr=0.5, steps=4, n=5, reuse=True)
    found = minimize_entropy_of_sinkhorn(cost, a, b, noise, mesh_lr=0.5)
    for name, x, y in zip(NAMES, found, expected, strict=True):
        close(x, y, name, 1e-4)  # MESH amplifies the rounding of single precision


@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "fresh"])
def test_gradients_are_the_authors(reuse: bool) -> None:
    """By costs, masses and a learned lambda, through the last Sinkhorn."""

    def loss(adjust, transport, *given: Tensor) -> list[Tensor]:
        cost, a, b, lr = (x.detach().clone().requires_grad_() for x in given)
        adjusted, u, v = adjust(cost, a, b, lr)
        plan = transport(adjusted, a, b, u, v)
        weight = torch.linspace(-1, 2, plan.numel(), dtype=plan.dtype).view_as(plan)
        return list(torch.autograd.grad((plan * weight).sum(), (cost, a, b, lr)))

    cost, a, b, noise = problem(torch.float64, seed=3)
    lr = torch.tensor(0.7, dtype=torch.float64)
    ours = loss(
        lambda c, a, b, lr: minimize_entropy_of_sinkhorn(c, a, b, noise, lr, 4, 5, reuse),
        lambda c, a, b, u, v: sinkhorn(c, a, b, u=u, v=v)[0],
        *(cost, a, b, lr),
    )
    theirs = loss(
        lambda c, a, b, lr: reference_mesh(c, a, b, noise, lr, 4, 5, reuse),
        lambda c, a, b, u, v: reference_sinkhorn(c, a, b, v=v)[0],
        *(cost, a, b, lr),
    )
    names = ("cost", "a", "b", "lr")
    # A learned lambda reaches reused potentials too in the authors' code.
    n = 3 if reuse else 4
    for name, x, y in zip(names[:n], ours[:n], theirs[:n], strict=True):
        close(x, y, name)


def test_a_temperature_can_be_learned() -> None:
    cost, a, b, _ = problem(torch.float64)
    taus = [torch.tensor(0.5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    plan = sinkhorn(cost, a, b, temperature=taus[0])[0]
    expected = reference_sinkhorn(cost, a, b, tau=taus[1])[0]  # type: ignore[arg-type]
    weight = torch.randn(plan.shape, generator=torch.Generator().manual_seed(0)).double()
    found = [
        torch.autograd.grad((p * weight).sum(), t)[0]
        for p, t in ((plan, taus[0]), (expected, taus[1]))
    ]
    close(found[0], found[1], "temperature")


def test_a_learned_step_of_zero() -> None:
    cost, a, b, noise = problem(torch.float64)
    lr = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    moved = minimize_entropy_of_sinkhorn(cost, a, b, noise, mesh_lr=lr)[0]
    close(moved, cost + 1e-3 * noise, "cost", 1e-12)
    (found,) = torch.autograd.grad((moved * noise).sum(), lr)
    (expected,) = torch.autograd.grad(
        (reference_mesh(cost, a, b, noise, lr, 4, 5, False)[0] * noise).sum(), lr
    )
    assert abs(found - expected) < 0.01 * abs(expected)
    with pytest.raises(ValueError, match=r"mesh_lr is -0\.1, expected a finite number"):
        minimize_entropy_of_sinkhorn(cost, a, b, noise, mesh_lr=-0.1)


def test_noise_is_drawn() -> None:
    cost, a, b, _ = problem(torch.float64)
    torch.manual_seed(0)
    drawn = minimize_entropy_of_sinkhorn(cost, a, b)[0]
    torch.manual_seed(0)
    given = minimize_entropy_of_sinkhorn(cost, a, b, torch.randn_like(cost))[0]
    assert torch.equal(drawn, given)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"C": [[[1.0]]]}, r"C is a list, expected a tensor \(batch, inputs n, slots m\)"),
        ({"C": torch.ones(2, 4, 3).long()}, r"C has dtype torch.int64, expected a floating-point"),
        ({"C": torch.ones(4, 3)}, r"C has shape \(4, 3\), expected \(batch, inputs n, slots m\)"),
        ({"C": torch.ones(5, 2, 4, 3)}, r"C has shape \(5, 2, 4, 3\), expected \(batch, inp"),
        ({"C": torch.full((2, 4, 3), torch.nan)}, r"C has 24 entries that are not finite"),
        ({"a": 0.25}, r"a is a float, expected a floating-point tensor \(..., 4\)"),
        ({"a": torch.ones(2, 3)}, r"a has shape \(2, 3\), expected \(..., 4\) to fit C of shape"),
        (
            {"a": torch.ones(5, 4)},
            r"a has shape \(5, 4\), expected one that broadcasts",
        ),
        ({"b": torch.ones(2, 4)}, r"b has shape \(2, 4\), expected \(..., 3\) to fit C of shape"),
        ({"b": torch.ones(2, 3, device="meta")}, r"b is on meta, expected cpu, where C is"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    given = {"C": torch.ones(2, 4, 3), "a": torch.ones(2, 4) / 4, "b": torch.ones(2, 3) / 3}
    cost, a, b = (given | wrong).values()
    for function, name in ((sinkhorn, "C"), (minimize_entropy_of_sinkhorn, "C_0")):
        said = re.sub(r"\bC\b", name, message)
        with pytest.raises(ValueError, match=f"^{function.__name__}: {said}"):
            function(cost, a, b)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_clamp": None}, "min_clamp is None, expected a finite number of at least 0"),
        ({"n_sh_iters": 0}, "n_sh_iters is 0, expected a whole number of at least 1"),
        ({"v": [0.0]}, r"v is a list, expected a floating-point tensor \(..., 3\)"),
        ({"v": torch.zeros(2, 4)}, r"v has shape \(2, 4\), expected \(..., 3\) to fit C"),
    ],
)
def test_wrong_options_of_sinkhorn(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^sinkhorn: {message}"):
        sinkhorn(torch.ones(2, 4, 3), torch.ones(2, 4) / 4, torch.ones(2, 3) / 3, **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"noise": "0"}, "noise is '0', expected a finite number"),
        (
            {"noise": torch.ones(2, 3, 4)},
            r"noise has shape \(2, 3, 4\) and dtype torch.float32",
        ),
        (
            {"noise": torch.ones(2, 4, 3).bool()},
            "noise has shape .* and dtype torch.bool",
        ),
        ({"mesh_lr": "fast"}, "mesh_lr is 'fast', expected a finite number of at least 0"),
        ({"mesh_lr": torch.ones(2)}, r"mesh_lr has shape \(2,\), expected one number"),
        ({"n_mesh_iters": -1}, "n_mesh_iters is -1, expected a whole number of at least 0"),
        ({"n_sh_iters": 2.5}, "n_sh_iters is 2.5, expected a whole number of at least 1"),
    ],
)
def test_wrong_options_of_mesh(wrong: dict[str, Any], message: str) -> None:
    given = (torch.ones(2, 4, 3), torch.ones(2, 4) / 4, torch.ones(2, 3) / 3)
    with pytest.raises(ValueError, match=f"^minimize_entropy_of_sinkhorn: {message}"):
        minimize_entropy_of_sinkhorn(*given, **wrong)


def test_noise_can_be_a_number() -> None:
    a, b = torch.ones(1, 4) / 4, torch.ones(1, 3) / 3
    cost = torch.rand(1, 4, 3, generator=torch.Generator().manual_seed(0))
    without = minimize_entropy_of_sinkhorn(cost, a, b, noise=0)[0]  # type: ignore[arg-type]
    zeros = minimize_entropy_of_sinkhorn(cost, a, b, noise=torch.zeros(1, 4, 3))[0]
    assert torch.equal(without, zeros)
