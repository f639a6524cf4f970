"""The two functions of the authors' public code, with their names, layout and return values.

Projects that copied the authors' ``mesh.py`` change one import::

    from slotmesh.compat import minimize_entropy_of_sinkhorn, sinkhorn

Here, and only here, rows are inputs and columns are slots: costs are ``(batch, n, m)``, ``a`` is
the mass of the inputs and ``b`` the mass of the slots. New code should call :func:`slotmesh.mesh`,
which computes the plan as well and does half of the work.
"""

import torch
from torch import Tensor

from slotmesh.ops import Transport
from slotmesh.ops import mesh as _mesh
from slotmesh.ops import sinkhorn as _sinkhorn

__all__ = ["minimize_entropy_of_sinkhorn", "sinkhorn"]

_NOISE = 1e-3


def sinkhorn(
    C: Tensor,  # noqa: N803
    a: Tensor,
    b: Tensor,
    n_sh_iters: int = 5,
    temperature: float | Tensor = 1,
    u: Tensor | None = None,
    v: Tensor | None = None,
    min_clamp: float = 1e-30,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sinkhorn's algorithm, inputs first and slots last, so that the sums over inputs are exact.

    Args:
        C: Costs ``(batch, n, m)``.
        a: Mass of each input ``(batch, n)``.
        b: Mass of each slot ``(batch, m)``. The totals of ``a`` and ``b`` may differ.
        n_sh_iters: Number of iterations.
        temperature: Strength of the entropy regularisation; a tensor can be learned.
        u: Accepted for compatibility: the first half-step replaces it.
        v: Potentials of the slots ``(batch, m)`` to start from.
        min_clamp: Smallest mass; smaller ones are raised to it.

    Returns:
        The plan ``(batch, n, m)`` and the potentials ``u`` ``(batch, n)`` and ``v`` ``(batch, m)``.

    Example:
        >>> import torch
        >>> from slotmesh.compat import sinkhorn
        >>> plan, u, v = sinkhorn(torch.zeros(1, 3, 2), torch.ones(1, 3) / 3, torch.ones(1, 2) / 2)
        >>> plan
        tensor([[[0.1667, 0.1667],
                 [0.1667, 0.1667],
                 [0.1667, 0.1667]]])
    """
    a, b, shift, unit = _balanced(a, b, min_clamp)
    start = None if v is None else (v, torch.zeros_like(a))
    t = _sinkhorn(C.transpose(1, 2), b, a, n_iters=n_sh_iters, temperature=temperature, init=start)
    plan = t.plan.transpose(1, 2) / unit.unsqueeze(-1)
    return plan, t.v - n_sh_iters * shift - unit.log(), t.u + n_sh_iters * shift


def minimize_entropy_of_sinkhorn(
    C_0: Tensor,  # noqa: N803
    a: Tensor,
    b: Tensor,
    noise: Tensor | None = None,
    mesh_lr: float | Tensor = 1,
    n_mesh_iters: int = 4,
    n_sh_iters: int = 5,
    reuse_u_v: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Adjust costs by gradient descent until their Sinkhorn plan has low entropy.

    Equal to the authors' function as long as no entry of the plan exceeds 1, where theirs stops
    counting it.

    Args:
        C_0: Costs ``(batch, n, m)``.
        a: Mass of each input ``(batch, n)``.
        b: Mass of each slot ``(batch, m)``.
        noise: Standard normal noise of the shape of the costs, of which a thousandth is added to
            them. Default: drawn.
        mesh_lr: The paper's lambda, the norm of one step, at least 0; a tensor gets a gradient,
            through the costs alone (the authors' also flows through reused potentials).
        n_mesh_iters: Number of descent steps.
        n_sh_iters: Sinkhorn iterations in each step.
        reuse_u_v: Start each Sinkhorn from the potentials of the one before.

    Returns:
        The adjusted costs ``(batch, n, m)``, and the potentials ``u`` and ``v`` to start the last
        :func:`sinkhorn` from; None and None without ``reuse_u_v``.

    Example:
        >>> import torch
        >>> from slotmesh.compat import minimize_entropy_of_sinkhorn, sinkhorn
        >>> a = b = torch.ones(1, 2)  # a tie: two inputs, two slots, equal costs
        >>> noise = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
        >>> cost, u, v = minimize_entropy_of_sinkhorn(torch.ones(1, 2, 2), a, b, noise, mesh_lr=5)
        >>> sinkhorn(cost, a, b, u=u, v=v)[0].round()
        tensor([[[1., 0.],
                 [0., 1.]]])
    """
    noise = torch.randn_like(C_0) if noise is None else noise
    first = C_0 + _NOISE * noise
    if n_mesh_iters == 0:
        return first, None, None
    a, b, shift, unit = _balanced(a, b, 1e-30)
    cost = first.transpose(1, 2)
    # The authors keep the graph of reused potentials; without a graph, values alone are enough.
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in (first, a, b))
    potentials = ("reuse" if graph else "detach") if reuse_u_v else "fresh"

    size = float(mesh_lr.detach()) if isinstance(mesh_lr, Tensor) else float(mesh_lr)
    if not size >= 0:
        raise ValueError(
            f"minimize_entropy_of_sinkhorn: mesh_lr is {size}, expected a number of at least 0. "
            "Use softplus to make a learned one."
        )

    def descend(n_steps: int, size: float = size) -> Transport:
        return _mesh(
            cost,
            b,
            a,
            lr=size,
            n_steps=n_steps,
            n_iters=n_sh_iters,
            noise=0.0,
            potentials=potentials,
        )

    adjusted = descend(n_mesh_iters).cost.transpose(1, 2)
    if isinstance(mesh_lr, Tensor) and mesh_lr.requires_grad:
        # Steps are constants times mesh_lr, which is where its gradient comes from. Steps of length
        # 0 do not show these constants: short ones do.
        length = size or 1e-3
        moved = adjusted if size else descend(n_mesh_iters, length).cost.transpose(1, 2)
        change = (moved - first).detach() / length
        adjusted = adjusted + (mesh_lr - mesh_lr.detach()) * change
    if not reuse_u_v:
        return adjusted, None, None
    # The authors return the potentials of the Sinkhorn that the last step was computed from.
    before = descend(n_mesh_iters - 1)
    shift = n_mesh_iters * n_sh_iters * shift
    return adjusted, before.v - shift - unit.log(), before.u + shift


def _balanced(a: Tensor, b: Tensor, least: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Masses of one total, what one iteration adds to the inputs' potentials by that, and a unit.

    Masses are in a unit (batch, 1) in which none is below the least: less mass counts as none.
    """
    a, b = a.clamp(min=least), b.clamp(min=least)
    factor = b.sum(-1, keepdim=True) / a.sum(-1, keepdim=True)
    unit = (2.0 / factor.detach()).clamp(min=1.0)  # 2, not to be below by rounding
    return a * (factor * unit), b * unit, factor.log(), unit
