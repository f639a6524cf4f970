"""Oracles and examples: Sinkhorn in NumPy, MESH by autograd, random transport problems."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def masses(*shape: int, seed: int, total: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uneven positive masses (..., size) that sum to ``total``."""
    return total * randn(*shape, seed=seed + 7919).softmax(-1).to(dtype)


def problem(
    *shape: int, seed: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Cost (*batch, m, n), a and b with total m."""
    *batch, m, n = shape
    cost = 2 * randn(*shape, seed=seed, dtype=dtype)
    a = masses(*batch, m, seed=2 * seed, total=m, dtype=dtype)
    b = masses(*batch, n, seed=2 * seed + 1, total=m, dtype=dtype)
    return cost, a, b


def numpy_sinkhorn(
    cost: Tensor,
    a: Tensor,
    b: Tensor,
    n_iters: int,
    temperature: float = 1.0,
    u: Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Plan, u and v of one matrix (m, n): inputs are scaled first, slots last."""
    kernel = -cost.detach().numpy() / temperature
    log_a, log_b = np.log(a.detach().numpy()), np.log(b.detach().numpy())
    log_u = np.zeros(len(log_a)) if u is None else u.detach().numpy()
    log_v = np.zeros(len(log_b))
    for _ in range(n_iters):
        for j in range(len(log_v)):
            log_v[j] = log_b[j] - logsumexp(kernel[:, j] + log_u)
        log_u = np.array([log_a[i] - logsumexp(kernel[i] + log_v) for i in range(len(log_a))])
    return np.exp(log_u[:, None] + log_v + kernel), log_u, log_v


def autograd_sinkhorn(
    cost: Tensor, a: Tensor, b: Tensor, u: Tensor, n_iters: int, temperature: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Plan and u of one matrix (m, n), all of it on the graph."""
    kernel = -cost / temperature
    v = torch.zeros_like(b)
    for _ in range(n_iters):
        v = b.log() - torch.logsumexp(kernel + u[:, None], 0)
        u = a.log() - torch.logsumexp(kernel + v, 1)
    return (u[:, None] + v + kernel).exp(), u


def plan_entropy(plan: Tensor) -> Tensor:
    return -(plan * plan.log()).sum()


def autograd_mesh(
    cost: Tensor,
    a: Tensor,
    b: Tensor,
    noise: Tensor,
    *,
    length: float,
    n_steps: int = 3,
    n_iters: int = 4,
    temperature: float | Tensor = 1.0,
    potentials: str = "detach",
    unroll: bool = False,
    objective: Callable[[Tensor], Tensor] = plan_entropy,
) -> tuple[Tensor, Tensor]:
    """Plan and changed cost of one matrix (m, n), with the inner gradient left to autograd.

    The inner gradient is taken by the newest cost only, so the potentials it starts from count as
    constants although they may carry a graph.
    """
    changed = cost + noise
    u = torch.zeros_like(a)
    for _ in range(n_steps):
        plan, reached = autograd_sinkhorn(changed, a, b, u, n_iters, temperature)
        (inner,) = torch.autograd.grad(
            objective(plan), changed, retain_graph=True, create_graph=unroll
        )
        update = inner / inner.norm()
        changed = changed - length * (update if unroll else update.detach())
        if potentials == "fresh":
            u = torch.zeros_like(a)
        else:
            u = reached.detach() if potentials == "detach" else reached
    return autograd_sinkhorn(changed, a, b, u, n_iters, temperature)[0], changed


def gradients(
    result: Tensor, leaves: list[Tensor], seed: int = 0, *, allow_unused: bool = False
) -> tuple[Any, ...]:
    """Gradients of a random weighting of ``result``."""
    weights = randn(*result.shape, seed=seed + 104729, dtype=result.dtype)
    return torch.autograd.grad((result * weights).sum(), leaves, allow_unused=allow_unused)


def leaf(x: Tensor) -> Tensor:
    """A copy that gradients can be asked for."""
    return x.detach().clone().requires_grad_()


def close(actual: Any, expected: Any, atol: float, rtol: float = 0.0) -> None:
    """Equal within ``atol``, NaN nowhere; tensors on any device, arrays or numbers."""
    actual, expected = (
        x.detach().cpu() if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x))
        for x in (actual, expected)
    )
    torch.testing.assert_close(
        actual, expected, atol=atol, rtol=rtol, equal_nan=False, check_dtype=False
    )


def operators_of(call: Callable[[], Any]) -> list[str]:
    """Names of the operators of this library that a call runs."""
    found: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.namespace == "slotmesh":
                found.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Recorder():
        call()
    return found
