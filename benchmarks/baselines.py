"""Baselines for MESH: the inner gradient by autograd, and the pure-torch path compiled."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from slotmesh.ops import mesh


def eager_mesh(
    cost: Tensor, noise: Tensor, *, lr: float = 5.0, n_steps: int = 4, n_iters: int = 5
) -> Tensor:
    """Compute MESH the straightforward way, with autograd for the inner gradient.

    It works in the log domain on batches. Each Sinkhorn starts from the potentials of the previous
    one, and the updates of the cost are constants for the outer gradient. Each slot has mass 1, and
    inputs share the total mass equally.

    Args:
        cost: ``(batch, m, n)``.
        noise: ``(batch, m, n)``, added to the cost.
        lr: The paper's lambda.
        n_steps: Number of MESH steps.
        n_iters: Sinkhorn iterations per step, and for the final plan.

    Returns:
        The plan ``(batch, m, n)``.

    Example:
        >>> import torch
        >>> from slotmesh import mesh
        >>> from benchmarks.baselines import eager_mesh
        >>> cost, noise = torch.randn(2, 3, 3, 8, dtype=torch.float64)
        >>> torch.allclose(eager_mesh(cost, noise), mesh(cost, lr=5.0, noise=noise).plan)
        True
    """
    changed = cost + noise
    u = torch.zeros_like(cost[..., 0])
    for _ in range(n_steps):
        with torch.enable_grad():
            still = changed.detach().requires_grad_()
            log_plan, reached = _sinkhorn(still, u, n_iters)
            entropy = -(log_plan.exp() * log_plan).sum()
            (slope,) = torch.autograd.grad(entropy, still)
        changed = changed - lr * slope / torch.linalg.matrix_norm(slope, keepdim=True)
        u = reached.detach()
    return _sinkhorn(changed, u, n_iters)[0].exp()


def compiled_mesh() -> Callable[[Tensor, Tensor], Tensor]:
    """Return the pure-torch path of :func:`slotmesh.mesh` compiled: a plan from cost and noise."""
    # A new function each time: one function would share a cache that is full after a few shapes.
    return torch.compile(
        lambda cost, noise: mesh(cost, lr=5.0, noise=noise, backend="torch").plan,
        fullgraph=True,
        dynamic=False,
    )


def _sinkhorn(cost: Tensor, u: Tensor, n_iters: int) -> tuple[Tensor, Tensor]:
    """Return the logarithm of the plan, and the potentials of the slots."""
    m, n = cost.shape[-2:]
    log_b = math.log(m / n)
    v = torch.zeros_like(cost[..., 0, :])
    for _ in range(n_iters):
        v = log_b - torch.logsumexp(u.unsqueeze(-1) - cost, -2)
        u = -torch.logsumexp(v.unsqueeze(-2) - cost, -1)
    return u.unsqueeze(-1) + v.unsqueeze(-2) - cost, u
