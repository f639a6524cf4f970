"""Baselines: MESH with autograd inside or compiled, loops over SciPy and POT, Liger's Sinkhorn."""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
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


def scipy_loop(cost: Tensor) -> Tensor:
    """Assign square problems one by one with SciPy, as one would without slotmesh.

    Args:
        cost: ``(batch, n, n)``.

    Returns:
        The column of each row, ``(batch, n)``.

    Example:
        >>> import torch
        >>> from benchmarks.baselines import scipy_loop
        >>> scipy_loop(torch.tensor([[[4.0, 1.0], [2.0, 0.0]]]))
        tensor([[1, 0]])
    """
    from scipy.optimize import linear_sum_assignment  # pyright: ignore

    solved: list[Any] = [linear_sum_assignment(one)[1] for one in cost.cpu().numpy()]  # pyright: ignore
    return torch.from_numpy(np.stack(solved)).to(cost.device)


def pot_loop(cost: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Solve problems one by one with POT, as one would without slotmesh.

    Args:
        cost: ``(batch, m, n)``.
        a: ``(batch, m)``.
        b: ``(batch, n)``.

    Returns:
        The plans ``(batch, m, n)``, float64.

    Example:
        >>> import torch
        >>> from benchmarks.baselines import pot_loop
        >>> mass = torch.ones(1, 2)
        >>> pot_loop(torch.tensor([[[4.0, 1.0], [2.0, 0.0]]]), mass, mass)
        tensor([[[0., 1.],
                 [1., 0.]]], dtype=torch.float64)
    """
    import ot  # pyright: ignore[reportMissingTypeStubs]

    a, b = a.double(), b.double()
    b = b * (a.sum(-1, keepdim=True) / b.sum(-1, keepdim=True))
    given = (x.cpu().numpy() for x in (a, b, cost.double()))
    transport: Any = ot.emd  # pyright: ignore
    plans = [transport(*one, numItermax=10_000_000) for one in zip(*given, strict=True)]
    return torch.from_numpy(np.stack(plans)).to(cost.device)


def has_liger() -> bool:
    """Return whether Liger (``pip install liger-kernel``) is installed."""
    return importlib.util.find_spec("liger_kernel") is not None


def liger_sinkhorn(
    cost: Tensor, weight: Tensor, n_iters: int
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Return a function that computes plan and gradient by the kernels of Liger.

    Its kernels normalise rows first and columns last, so they get the transposed cost. What they
    compute besides (two gates per matrix) is little. Their input is laid out in advance.

    Args:
        cost: ``(batch, m, m)``, float32 on a GPU.
        weight: ``(batch, m, m)``, the gradient of the plan.
        n_iters: Sinkhorn iterations.
    """
    mhc: Any = importlib.import_module("liger_kernel.ops.mhc")
    batch, m, _ = cost.shape
    logits = -cost.transpose(1, 2).reshape(batch, m * m)
    mix = torch.cat([logits.new_zeros(batch, 2 * m), logits], 1).contiguous()
    bias, one = mix.new_zeros(mix.shape[1]), mix.new_ones(())
    grad = weight.transpose(1, 2).contiguous()

    def run() -> tuple[Tensor, Tensor]:
        *_, plan, history = mhc.mhc_split_sinkhorn_fwd(
            mix, bias, one, one, one, tmax=n_iters, pre_eps=0.0, sinkhorn_eps=0.0, post_mult=2.0,
            return_hist=True,
        )  # fmt: skip
        back = mhc.mhc_sinkhorn_bwd(
            mix, bias, one, grad, tmax=n_iters, sinkhorn_eps=0.0, hist=history
        )
        return plan.transpose(1, 2), -back.transpose(1, 2)

    return run


def _sinkhorn(cost: Tensor, u: Tensor, n_iters: int) -> tuple[Tensor, Tensor]:
    """Return the logarithm of the plan, and the potentials of the slots."""
    m, n = cost.shape[-2:]
    log_b = math.log(m / n)
    v = torch.zeros_like(cost[..., 0, :])
    for _ in range(n_iters):
        v = log_b - torch.logsumexp(u.unsqueeze(-1) - cost, -2)
        u = -torch.logsumexp(v.unsqueeze(-2) - cost, -1)
    return u.unsqueeze(-1) + v.unsqueeze(-2) - cost, u
