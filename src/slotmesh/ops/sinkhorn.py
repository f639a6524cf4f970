"""Entropy-regularised optimal transport."""

from typing import Literal

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops._cpu import cpu_transport, quick_problem, use_c
from slotmesh.ops._fused import BACKENDS, Backend, fused_transport, use_kernel
from slotmesh.ops._implicit import implicit_plan
from slotmesh.ops._naive import solve
from slotmesh.ops._pairs import framed
from slotmesh.ops.problem import (
    CONVERGED,
    Given,
    SolverSettings,
    check_problem,
    full_precision,
    marginal_error,
    problem,
    temperature_of,
)
from slotmesh.ops.relaxed import relaxation, relaxed_transport
from slotmesh.ops.transport import Transport

SinkhornGrad = Literal["unroll", "implicit"]


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
    pair_mask: Tensor | None = None,
    dustbin: float | Tensor | None = None,
    share: float | None = None,
    penalty: float | tuple[float, float] | None = None,
    grad: SinkhornGrad = "unroll",
    backend: Backend = "auto",
) -> Transport:
    """Entropy-regularised optimal transport by Sinkhorn's algorithm, in the log domain.

    Each iteration scales the inputs to their mass, then the slots, so slot sums are exact after any
    number of iterations and the error is all in the input sums. Equal slots get equal rows: ties
    are not broken (see :func:`slotmesh.mesh`).

    Costs of any size neither overflow nor make gradients unbounded. The precision of plan and
    gradients is limited by the rounding of the largest ``cost / temperature``: about three digits
    remain at 1e4 in float32 and at 1e13 in float64, and none at 1e8 and 1e17. Beyond that, pass
    ``cost.double()`` or raise the temperature. Low temperatures need many iterations; where
    ``converged`` is False, ``grad="implicit"`` is not the gradient of the plan.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs. float16 and bfloat16 are computed
            in float32 internally.
        a: Mass of each slot ``(..., m)``. Default: uniform, with the total of ``b``, or with one
            unit per real slot.
        b: Mass of each input ``(..., n)``. Default: uniform, with the total of ``a``.
        n_iters: Number of iterations; with ``tol``, the maximum number.
        tol: Stop iterating a batch element once its
            :attr:`~slotmesh.ops.Transport.marginal_error` is at most this. Each element stops
            independently of the others. On a GPU and inside ``torch.compile`` this saves no time,
            because nothing synchronises with the host: all ``n_iters`` iterations run.
        temperature: Strength of the entropy regularisation; a float above 0 or a tensor that
            broadcasts against the batch dimensions ``(...)``.
        init: Potentials ``(u, v)`` of an earlier result to start from. Only ``u`` matters: the
            first half-step replaces ``v``.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real. Masked elements get no mass and
            have no effect, whatever their costs.
        pair_mask: ``(..., m, n)``, True where slot and input may be paired; other pairs get no
            mass, whatever their costs. A slot or input with mass needs at least one allowed pair:
            otherwise an error is raised on the CPU, and on a GPU the element is treated as padding.
        dustbin: Cost of leaving a slot or an input without a partner, a number or a tensor that
            broadcasts against the batch dimensions and can be learned (the negative of SuperGlue's
            score). Adds a row and a column of this cost to the problem and **to the result**, whose
            plan is ``(..., m + 1, n + 1)``. Every slot and input has mass 1 by default, and each
            dustbin the mass of the other side, so the totals of ``a`` and ``b`` may differ.
        share: Partial transport: only this share of the smaller total, above 0 and at most 1, is
            transported. The masses are upper bounds of the sums, and their totals may differ.
        penalty: Unbalanced transport: sums may differ from the masses, at the cost of this factor
            times their Kullback-Leibler divergence, in units of the cost. Pass a pair to set slots
            and inputs separately, and ``math.inf`` for exact sums. The regularisation is the
            entropy of the plan itself (POT's ``reg_type="entropy"``).
        grad: ``"unroll"`` differentiates through the iterations and is exact for any number of
            them; ``"implicit"`` differentiates the fixed point: it takes constant memory and is
            exact once converged, but works in reverse mode only, and gives ``plan`` a gradient but
            not ``u`` and ``v``.
        backend: ``"triton"``: one kernel for the whole computation, on a CUDA device. It supports
            float32 and less, at most 1,024 slots and 65,536 inputs, first derivatives, and
            ``vmap`` but no other transform of ``torch.func``; not ``tol``.
            ``"cpu"``: C code, several times as fast as torch on a CPU. It has the same limits
            except for the size, and does not support ``torch.compile``;
            :func:`slotmesh.ops.backends` tells whether it is available.
            ``"torch"``: supports everything everywhere; the only backend with ``share`` and
            ``penalty``.
            ``"auto"``: the fastest that supports the call.

    Returns:
        A :class:`~slotmesh.ops.Transport`. With ``share``, its ``marginal_error`` is the fraction
        of mass that exceeds the masses; with ``penalty``, the fraction that differs from the
        optimum.

    Raises:
        ValueError: If an argument is invalid; values are only checked on the CPU (see
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
    checks.check_matrix("sinkhorn", "cost", cost)
    settings = SolverSettings(
        n_iters=checks.as_count("sinkhorn", "n_iters", n_iters, 1),
        tol=None if tol is None else checks.as_real("sinkhorn", "tol", tol),
        implicit=grad == "implicit",
    )
    given, frame = Given("sinkhorn", cost, a, b, slot_mask, input_mask, temperature), None
    if dustbin is not None or pair_mask is not None:
        frame = framed(given, dustbin, pair_mask)
        given = frame.given
    if share is None and penalty is None:
        t = solved(given, settings, init, backend)
    else:
        relaxed = relaxation("sinkhorn", share, penalty, grad, init)
        if backend not in ("auto", "torch"):
            raise ValueError(
                f"sinkhorn: backend is '{backend}', which does not work here: {relaxed.words}. "
                "Use backend='torch', which supports it."
            )
        t = relaxed_transport(given, settings, relaxed, _slot_potentials(given, init))
    return t if frame is None else frame.finish(t, settings.tol)


def solved(
    given: Given,
    settings: SolverSettings,
    init: tuple[Tensor, Tensor] | None,
    backend: Backend,
) -> Transport:
    """Balanced transport with the requested backend, or the fastest one."""
    cost = given.cost
    # An option in use that only the torch backend supports, in words.
    beyond = None if settings.tol is None else "tol is given"
    warm = init if isinstance(init, tuple | list) else ()  # pyright: ignore
    if use_kernel(given, backend, settings, beyond, *warm):
        return fused_transport(given, settings, init=_slot_potentials(given, init))
    in_c = use_c(given, backend, beyond, *warm)
    task = quick_problem(given) if in_c else problem(given)
    u = _slot_potentials(given, init)
    with full_precision(cost):
        if in_c:
            u = None if u is None else u.to(task.a.dtype).expand_as(task.a)
            has_marginals = given.a is not None or given.b is not None
            plan, last, _ = cpu_transport(task, task.cost, u, settings, given=has_marginals)
        else:
            solver = implicit_plan if settings.implicit else solve
            plan, last = solver(task, task.cost, u, settings.n_iters, settings.tol)
        error = marginal_error(plan, task.a, task.b)
    return Transport(
        plan=plan.to(cost.dtype),
        u=last.u,
        v=last.v,
        cost=cost,
        marginal_error=error,
        n_iters=last.n_iters,
        converged=error <= (CONVERGED if settings.tol is None else settings.tol),
        temperature=temperature_of(given, last.u),
    )


def _slot_potentials(given: Given, init: tuple[Tensor, Tensor] | None) -> Tensor | None:
    """The slots' potentials of a warm start ``(u, v)``."""
    if init is None:
        return None
    op, cost = given.op, given.cost
    pair = isinstance(init, tuple | list)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not pair or len(init) != 2:
        got = f"has {len(init)} entries" if pair else f"is a {type(init).__name__}"
        raise ValueError(
            f"{op}: init {got}, expected the pair (u, v) of an earlier result. "
            "Pass init=(t.u, t.v)."
        )
    batch = check_problem(given)
    for name, potential, size in zip("uv", init, cost.shape[-2:], strict=True):
        checks.check_vector(op, f"init {name}", potential, size, cost, mask=False)
        if not checks.broadcasts_to(potential.shape, (*batch, size)):
            raise ValueError(
                f"{op}: init {name} has shape {tuple(potential.shape)}, expected one that "
                f"broadcasts to {(*batch, size)}. Pass init=(t.u, t.v) of the same batch."
            )
    _check_start(given, init[0], (*batch, cost.shape[-2]))
    return init[0]


def _check_start(given: Given, u: Tensor, shape: tuple[int, ...]) -> None:
    """Check first potentials, of which only -inf may be infinite: for slots without mass."""
    if not checks.can_read_values(u, given.slot_mask):
        return
    first = u.detach().expand(shape)
    if given.slot_mask is not None:
        first = torch.where(given.slot_mask, first, 0.0)
    wrong = first.isnan() | (first == torch.inf)
    wrong |= (first == -torch.inf).all(-1, keepdim=True)
    if bool(wrong.any()):
        at = [int(i) for i in wrong.nonzero()[0]]
        raise ValueError(
            f"{given.op}: init u has {int(wrong.sum())} invalid entries (the first is "
            f"{first[tuple(at)].item()} at {at}), expected finite numbers, or -inf for slots "
            "without mass. Pass init=(t.u, t.v) of a result that is finite."
        )
