"""What slotmesh's MESH is held against: autograd inside, and plain torch compiled."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from slotmesh.ops import mesh


def eager_mesh(
    cost: Tensor, noise: Tensor, *, lr: float = 5.0, n_steps: int = 4, n_iters: int = 5
) -> Tensor:
    """MESH as one would write it down: the inner gradient is autograd's.

    In the log domain, batched, each Sinkhorn started from the potentials of the one before, the
    changes of the cost constants for the outer gradient. Marginals are one unit a slot, spread
    evenly over inputs.

    Args:
        cost: ``(batch, m, n)``.
        noise: ``(batch, m, n)``, added to the cost.
        lr: The paper's lambda.
        n_steps: MESH steps.
        n_iters: Sinkhorn iterations in each step, and for the plan at the end.

    Returns:
        The plan ``(batch, m, n)``.

    Example:
        >>> import torch
        >>> from slotmesh import mesh
        >>> from slotmesh.experiments.bench.baselines import eager_mesh
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
    """The plan of cost and noise by the pure-torch path of :func:`slotmesh.mesh`, compiled."""
    # A new function each time: all would share one cache, which is full after a few shapes.
    return torch.compile(
        lambda cost, noise: mesh(cost, lr=5.0, noise=noise, backend="torch").plan,
        fullgraph=True,
        dynamic=False,
    )


def _sinkhorn(cost: Tensor, u: Tensor, n_iters: int) -> tuple[Tensor, Tensor]:
    """Logarithm of the plan, and the slots' potentials."""
    m, n = cost.shape[-2:]
    log_b = math.log(m / n)
    v = torch.zeros_like(cost[..., 0, :])
    for _ in range(n_iters):
        v = log_b - torch.logsumexp(u.unsqueeze(-1) - cost, -2)
        u = -torch.logsumexp(v.unsqueeze(-2) - cost, -1)
    return u.unsqueeze(-1) + v.unsqueeze(-2) - cost, u
