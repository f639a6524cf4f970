"""The two functions of the authors' public code, with their names, layout and return values.

Projects that copied the authors' ``mesh.py`` change one import::

    from slotmesh.compat import minimize_entropy_of_sinkhorn, sinkhorn

Here, and only here, rows are inputs and columns are slots: costs are ``(batch, n, m)``, ``a`` is
the mass of the inputs and ``b`` the mass of the slots. New code should call :func:`slotmesh.mesh`,
which computes the plan as well and does half of the work.
"""

import torch
from torch import Tensor

from slotmesh.ops import Transport, checks
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
    name = "sinkhorn"
    _check(name, "C", C, a, b)
    if v is not None:
        checks.check_vector(name, "v", v, C.shape[2], C, of="C", mask=False)
    n_sh_iters = checks.as_count(name, "n_sh_iters", n_sh_iters, 1)
    a, b, shift, unit = _balanced(a, b, checks.as_real(name, "min_clamp", min_clamp))
    start = None if v is None else (v, torch.zeros_like(a))
    t = _sinkhorn(C.transpose(1, 2), b, a, n_iters=n_sh_iters, temperature=temperature, init=start)
    plan = t.plan.transpose(1, 2) / unit.unsqueeze(-1)
    return plan, t.v - n_sh_iters * shift - unit.log(), t.u + n_sh_iters * shift


def minimize_entropy_of_sinkhorn(
    C_0: Tensor,  # noqa: N803
    a: Tensor,
    b: Tensor,
    noise: Tensor | float | None = None,
    mesh_lr: float | Tensor = 1,
    n_mesh_iters: int = 4,
    n_sh_iters: int = 5,
    reuse_u_v: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Adjust costs by gradient descent until their Sinkhorn plan has low entropy.

    Equal to the authors' function as long as no entry of the plan exceeds 1: theirs ignores such
    entries.

    Args:
        C_0: Costs ``(batch, n, m)``.
        a: Mass of each input ``(batch, n)``.
        b: Mass of each slot ``(batch, m)``.
        noise: Standard normal noise with the shape of the costs, a thousandth of which is added to
            them, or 0 for none. By default, it is drawn.
        mesh_lr: The paper's lambda, the norm of one step, at least 0; a tensor gets a gradient,
            through the costs alone (the authors' also flows through reused potentials).
        n_mesh_iters: Number of descent steps.
        n_sh_iters: Sinkhorn iterations in each step.
        reuse_u_v: Start each Sinkhorn from the potentials of the previous one.

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
    name = "minimize_entropy_of_sinkhorn"
    _check(name, "C_0", C_0, a, b)
    n_mesh_iters = checks.as_count(name, "n_mesh_iters", n_mesh_iters, 0)
    n_sh_iters = checks.as_count(name, "n_sh_iters", n_sh_iters, 1)
    size = _step(name, mesh_lr)
    noise = torch.randn_like(C_0) if noise is None else _noise(name, noise, C_0)
    first = C_0 + _NOISE * noise
    if n_mesh_iters == 0:
        return first, None, None
    a, b, shift, unit = _balanced(a, b, 1e-30)
    cost = first.transpose(1, 2)
    # The authors keep the graph of reused potentials; without a graph, values alone are enough.
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in (first, a, b))
    potentials = ("reuse" if graph else "detach") if reuse_u_v else "fresh"

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


def _check(op: str, name: str, cost: object, a: object, b: object) -> None:
    """Check costs and masses, in the layout of this module; ``name`` is that of the costs."""
    axes = "(batch, inputs n, slots m)"
    checks.check_matrix(op, name, cost, axes)
    assert isinstance(cost, Tensor)
    if cost.ndim != 3:
        raise ValueError(
            f"{op}: {name} has shape {tuple(cost.shape)}, expected {axes}. Flatten the batch "
            f"dimensions into one, or add it with {name}[None]."
        )
    for side, mass, size in (("a", a, cost.shape[1]), ("b", b, cost.shape[2])):
        checks.check_vector(op, side, mass, size, cost, of=name, mask=False)
        wanted = (cost.shape[0], size)
        if isinstance(mass, Tensor) and not checks.broadcasts_to(mass.shape, wanted):
            raise ValueError(
                f"{op}: {side} has shape {tuple(mass.shape)}, expected one that broadcasts to "
                f"{wanted}, as {name} has shape {tuple(cost.shape)}. Give it the batch of {name}, "
                "or none."
            )
    checks.check_finite(op, name, cost, "Look for a NaN or an overflow upstream.")


def _noise(op: str, noise: Tensor | float, cost: Tensor) -> Tensor | float:
    """The noise, checked."""
    if not isinstance(noise, Tensor):
        return checks.as_number(op, "noise", noise)
    if not noise.is_floating_point() or not checks.broadcasts_to(noise.shape, cost.shape):
        raise ValueError(
            f"{op}: noise has shape {tuple(noise.shape)} and dtype {noise.dtype}, expected "
            f"floating point that broadcasts to the shape {tuple(cost.shape)} of the costs. Draw "
            "it with torch.randn_like."
        )
    return noise


def _step(op: str, length: float | Tensor) -> float:
    """The length of a step as a number."""
    if isinstance(length, Tensor):
        if length.numel() != 1:
            raise ValueError(
                f"{op}: mesh_lr has shape {tuple(length.shape)}, expected one number for all batch "
                "elements. Call it for each, or use slotmesh.mesh with step."
            )
        length = length.detach().item()
    return checks.as_real(op, "mesh_lr", length)


def _balanced(a: Tensor, b: Tensor, least: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Masses of equal totals, how that changes the inputs' potentials per iteration, and a unit.

    Masses are in a unit (batch, 1) in which none is below the least: less mass counts as none.
    """
    a, b = a.clamp(min=least), b.clamp(min=least)
    factor = b.sum(-1, keepdim=True) / a.sum(-1, keepdim=True)
    unit = (2.0 / factor.detach()).clamp(min=1.0)  # 2, not to be below by rounding
    return a * (factor * unit), b * unit, factor.log(), unit
