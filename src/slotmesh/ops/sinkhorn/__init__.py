"""Entropy-regularised optimal transport."""

from typing import Literal

import torch
from torch import Tensor

from slotmesh.ops import _checks as checks
from slotmesh.ops._batch import flat_batch, quick_problem
from slotmesh.ops._cpu import use_c
from slotmesh.ops._fused import (
    BACKENDS,
    Backend,
    flat_temperature,
    flat_vector,
    flatten,
    use_kernel,
)
from slotmesh.ops._precision import full_precision
from slotmesh.ops._problem import compute_dtype, marginal_error, problem
from slotmesh.ops._typed import broadcasts_to
from slotmesh.ops.sinkhorn.cpu import cpu_sinkhorn
from slotmesh.ops.sinkhorn.implicit import implicit_plan
from slotmesh.ops.sinkhorn.naive import iterate, plan_of, start
from slotmesh.ops.sinkhorn.triton import fused_sinkhorn
from slotmesh.ops.transport import Transport

SinkhornGrad = Literal["unroll", "implicit"]

# Below this share of misplaced mass a plan counts as converged where no tolerance was given.
CONVERGED = 1e-3


def sinkhorn(
    cost: Tensor,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    n_iters: int = 5,
    tol: float | None = None,
    temperature: float | Tensor = 1.0,
    init: tuple[Tensor, Tensor] | None = None,
    slot_mask: Tensor | None = None,
    input_mask: Tensor | None = None,
    grad: SinkhornGrad = "unroll",
    backend: Backend = "auto",
) -> Transport:
    """Entropy-regularised optimal transport by Sinkhorn's algorithm, in the log domain.

    Each iteration scales inputs to their mass, then slots, so slot sums are exact at any number
    of iterations and the error is all on the side of the inputs. Equal slots get equal rows: ties
    are not broken (see :func:`slotmesh.mesh`).

    Nothing overflows at any size of costs, and gradients stay bounded. Plan and gradients are as
    exact as the exponents that they are made of: off by about the rounding of the largest
    ``cost / temperature``, which is three digits at 1e4 in float32 and at 1e12 in float64, and none
    at 1e7 and 1e15. Beyond that, pass ``cost.double()`` or raise the temperature. So many
    iterations are needed at low temperatures that ``converged`` tells first: where it is False,
    ``grad="implicit"`` is not the gradient of the plan.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs. float16 and bfloat16 are
            computed in float32 inside.
        a: Mass of each slot ``(..., m)``. Default: uniform, with the total of ``b``, or with one
            unit a real slot.
        b: Mass of each input ``(..., n)``. Default: uniform, with the total of ``a``.
        n_iters: Number of iterations; with ``tol``, the most of them.
        tol: Stop a batch element once its :attr:`~slotmesh.ops.Transport.marginal_error` is at
            most this. Each element is judged by itself, and nothing waits for the GPU.
        temperature: Strength of the entropy regularisation; a float above 0 or a tensor that
            broadcasts against the batch dimensions ``(...)``.
        init: Potentials ``(u, v)`` of an earlier result to start from. The first half-step
            replaces ``v``, so only ``u`` matters.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real. Masked elements get no mass and
            change nothing, whatever their costs.
        grad: ``"unroll"`` differentiates through the iterations and is exact at any number of
            them; ``"implicit"`` differentiates the fixed point: constant memory, exact once
            converged, and only the plan carries a gradient, not ``u`` and ``v``.
        backend: ``"triton"``, one kernel for the whole computation on a CUDA device (float32 or
            less, at most 64 slots and 65,536 inputs, no ``tol``, derivatives of first order only);
            ``"cpu"``, C, several times as fast as torch there (float32 or less, no ``tol``, not
            inside ``torch.compile`` or ``torch.func``; :func:`slotmesh.ops.backends` says whether
            it is there); ``"torch"``, which can do everything everywhere; or ``"auto"`` to choose
            what fits.

    Returns:
        A :class:`~slotmesh.ops.Transport`.

    Raises:
        ValueError: If an argument does not fit; values are only looked at on the CPU (see
            :func:`slotmesh.ops.set_value_checks`).

    Example:
        >>> import torch
        >>> from slotmesh import sinkhorn
        >>> t = sinkhorn(torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]), n_iters=50)
        >>> t.plan.sum(-1), t.plan.sum(-2)
        (tensor([1., 1.]), tensor([0.6667, 0.6667, 0.6667]))
        >>> bool(t.converged)
        True
    """
    checks.check_choice("sinkhorn", "grad", grad, ("unroll", "implicit"))
    checks.check_choice("sinkhorn", "backend", backend, BACKENDS)
    n_iters = checks.as_count("sinkhorn", "n_iters", n_iters, 1)
    if tol is not None:
        tol = checks.as_real("sinkhorn", "tol", tol)
    checks.check_matrix("sinkhorn", "cost", cost)
    beyond = None if tol is None else "tol is given"
    implicit = grad == "implicit"
    if use_kernel("sinkhorn", backend, cost, n_iters, beyond):
        return _on_chip(cost, a, b, n_iters, temperature, init, slot_mask, input_mask, implicit)
    warm = init if isinstance(init, tuple) else ()
    in_c = use_c("sinkhorn", backend, beyond, cost, a, b, temperature, *warm)
    checked = quick_problem if in_c else problem
    task = checked("sinkhorn", cost, a, b, slot_mask, input_mask)
    batch = task.a.shape[:-1]
    with full_precision(cost):
        tau = scaled_temperature("sinkhorn", temperature, cost, batch)
        first = slot_potentials("sinkhorn", init, cost, batch)
        if in_c:
            flat = flat_batch(task, task.cost, tau, given=a is not None or b is not None)
            u = None if first is None else flat_vector(first.to(task.a.dtype).expand_as(task.a))
            plan, potentials, _ = cpu_sinkhorn(flat, u, n_iters, batch, implicit=implicit)
        elif implicit:
            log_kernel = -task.cost / tau
            plan, potentials = implicit_plan(log_kernel, task, start(task, first), n_iters, tol)
        else:
            log_kernel = -task.cost / tau
            potentials = iterate(log_kernel, task, start(task, first), n_iters, tol)
            plan = plan_of(log_kernel, task.a, potentials.v)
        error = marginal_error(plan, task.a, task.b)
    return Transport(
        plan=plan.to(cost.dtype),
        u=potentials.u,
        v=potentials.v,
        cost=cost,
        marginal_error=error,
        n_iters=potentials.n_iters,
        converged=error <= (CONVERGED if tol is None else tol),
    )


def _on_chip(
    cost: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    n_iters: int,
    temperature: float | Tensor,
    init: tuple[Tensor, Tensor] | None,
    slot_mask: Tensor | None,
    input_mask: Tensor | None,
    implicit: bool,
) -> Transport:
    """Sinkhorn by the fused kernel."""
    with full_precision(cost):
        task = flatten("sinkhorn", cost, a, b, slot_mask, input_mask)
        if implicit:
            # Its gradient is made of the plan, which has to be more than half precise for that.
            task = task._replace(cost=task.cost.to(torch.float32))
        scaled = scaled_temperature("sinkhorn", temperature, cost, task.batch)
        u = slot_potentials("sinkhorn", init, cost, task.batch)
        if u is not None:
            u = flat_vector(u.to(torch.float32).expand(*task.batch, -1))
        plan, u, v, error = fused_sinkhorn(
            task,
            *flat_temperature(scaled, task.batch),
            init=u,
            n_iters=n_iters,
            implicit=implicit,
        )
    return Transport(
        plan=plan.to(cost.dtype),
        u=u,
        v=v,
        cost=cost,
        marginal_error=error,
        n_iters=torch.full(task.batch, n_iters, dtype=torch.int64, device=cost.device),
        converged=error <= CONVERGED,
    )


def scaled_temperature(
    op: str, temperature: float | Tensor, cost: Tensor, batch: tuple[int, ...]
) -> float | Tensor:
    """The temperature, ready to divide the cost (*batch, m, n)."""
    if not isinstance(temperature, Tensor):
        return checks.as_real(op, "temperature", temperature, positive=True)
    if not broadcasts_to(temperature.shape, batch):
        raise ValueError(
            f"{op}: temperature has shape {tuple(temperature.shape)}, expected one that broadcasts "
            f"to the batch dimensions {tuple(batch)} of cost. Pass a float for one temperature."
        )
    if temperature.device != cost.device:
        raise ValueError(
            f"{op}: temperature is on {temperature.device}, expected {cost.device}, where "
            "cost is. Move it with temperature.to(cost.device)."
        )
    checks.check_finite(op, "temperature", temperature, "Look for an overflow upstream.")
    if checks.can_read_values(temperature) and not bool((temperature > 0).all()):
        raise ValueError(
            f"{op}: temperature has an entry of {temperature.min().item():.4g}, expected all above "
            "0. Use softplus or exp to make a learned temperature."
        )
    return temperature.to(compute_dtype(cost))[..., None, None]


def slot_potentials(
    op: str, init: tuple[Tensor, Tensor] | None, cost: Tensor, batch: tuple[int, ...]
) -> Tensor | None:
    """The slots' potentials out of a warm start ``(u, v)``."""
    if init is None:
        return None
    pair = isinstance(init, tuple | list)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not pair or len(init) != 2:
        came = f"has {len(init)} entries" if pair else f"is a {type(init).__name__}"
        raise ValueError(
            f"{op}: init {came}, expected the pair (u, v) of an earlier result. "
            "Pass init=(t.u, t.v)."
        )
    for name, potential, size in zip("uv", init, cost.shape[-2:], strict=True):
        checks.check_vector(op, f"init {name}", potential, size, cost, mask=False)
        if not broadcasts_to(potential.shape, (*batch, size)):
            raise ValueError(
                f"{op}: init {name} has shape {tuple(potential.shape)}, expected one that "
                f"broadcasts to {(*batch, size)}. Pass init=(t.u, t.v) of the same batch."
            )
    return init[0]
