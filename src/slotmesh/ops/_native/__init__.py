r"""Sinkhorn and the steps of MESH on the CPU by scalings, in C: formulas and names of scaling.c.

The implicit gradient is in adjoint.c; crew.c has the threads of both.

The C is compiled with the wheel or on first use: see recipe.py, library.py and cache.py.
``SLOTMESH_NATIVE=0`` in the environment turns it off.

In the log domain every half-iteration takes an exponential of every entry. Here one per Sinkhorn
is enough. With :math:`K = -C/\tau`, starting potentials :math:`u_0` and
:math:`h_j = \max_i (K_{ij} + u_{0i})`, let :math:`E_{ij} = \exp(K_{ij} + u_{0i} - h_j)`, which has
a 1 in every column. For :math:`p_t = \exp(u_t - u_0)` and :math:`q_t = \exp(v_t + h)`, one
iteration is

.. math:: s_t = E^\top p_{t-1}, \quad q_t = b / s_t, \quad r_t = E q_t, \quad p_t = a / r_t,

from :math:`p_0 = 1`, and the plan is :math:`P = p_T E q_T`, where vectors scale rows and columns.

The half-steps are log-sum-exps, whose derivatives are the softmaxes :math:`p_{t-1} E / s_t` and
:math:`E q_t / r_t`: once more :math:`E`, scaled. So reverse mode needs the vectors alone. Let
:math:`G = P \circ \partial J/\partial P`, :math:`g_T` its row sums and :math:`c` its column sums;
to these the derivatives by the last :math:`u` and :math:`v` are added, where there are any. From
:math:`t = T` down to 1,

.. math::
    \alpha_t = g_t / r_t, \quad
    \beta_t = (q_t \circ E^\top \alpha_t - [t = T]\, c) / s_t, \quad
    g_{t-1} = p_{t-1} \circ E \beta_t,

and :math:`\partial J/\partial K = G + E \circ \sum_t (p_{t-1} \beta_t^\top - \alpha_t q_t^\top)`.
The derivatives by :math:`u_0`, :math:`a` and :math:`b` are :math:`g_0`,
:math:`\sum_t \alpha_t / p_t` and :math:`-\sum_t \beta_t s_t / b`.

The steps ascend on :math:`\sum P \log P`, whose derivative is
:math:`\log P + 1`, but slot sums of the plan are constant, so what is the same in a row changes
nothing: the 1 is left out, and a row has any unit inside the logarithm.

Scalings have less range than logarithms. Where those of the slots leave ``1 / LIMIT`` to ``LIMIT``,
entries of :math:`E` that were too small to be exact could matter: such batch elements have to be
solved in the log domain. The scalings of the inputs cannot leave their range by themselves, as
:math:`s_t` lies between the least :math:`p_{t-1}` and ``m`` times the largest.
"""

import ctypes
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from slotmesh.ops._native.library import load, torch_threads
from slotmesh.ops.problem import SolverSettings

if TYPE_CHECKING:
    from slotmesh.ops._cpu import Batch

# Entries of matrices times iterations, below which another thread takes longer than it helps.
GRAIN = 250_000

_integers = ("batch", "m", "n", "n_iters", "n_steps", "fresh", "threads")
_numbers = ("tau", "length")
_pointers = (
    *("cost", "a", "b", "slots", "taus", "lengths", "start", "easy"),
    *("changed", "plan", "u", "v"),
    *("grad_plan", "grad_u", "grad_v", "grad_cost", "grad_a", "grad_b", "grad_tau", "grad_start"),
)


class NativeJob(ctypes.Structure):
    """``job`` of job.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _integers),
        ("parallel", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in _numbers),
        *((name, ctypes.c_void_p) for name in _pointers),
    )


class NativeGradients(NamedTuple):
    """Gradients of the operands of Sinkhorn, contiguous; None where not wanted."""

    cost: Tensor
    a: Tensor | None
    b: Tensor | None
    tau: Tensor | None
    start: Tensor | None


def unavailable() -> str | None:
    """Why the C library is unavailable, or None.

    Example:
        >>> from slotmesh.ops import _native
        >>> reason = _native.unavailable()
        >>> reason is None or len(reason) > 0
        True
    """
    found = load()
    return found if isinstance(found, str) else None


def solve(
    batch: "Batch",
    changed: Tensor | None,
    start: Tensor,
    settings: SolverSettings,
    outputs: list[Tensor],
) -> Tensor:
    """Fill in plan, u and v; and after steps the adjusted cost and its starting potentials.

    Returns:
        ``(batch,)``, which elements are right; ignore everything of the others.
    """
    plan, u, v = outputs
    easy = batch.even
    easy = batch.cost.new_ones(len(start), dtype=torch.bool) if easy is None else easy.clone()
    steps: dict[str, Any] = {}
    if changed is not None:
        steps = {"n_steps": settings.n_steps, "fresh": settings.fresh, "changed": changed}
        steps |= _either("length", batch.length)
    _call("solve", batch, start, settings.n_iters, easy, plan=plan, u=u, v=v, **steps)
    return easy


def pull_back(
    batch: "Batch",
    start: Tensor,
    n_iters: int,
    easy: Tensor | None,
    grads: tuple[Tensor | None, ...],
    into: NativeGradients,
) -> None:
    """Fill in the gradients of the elements that :func:`solve` got right, or of all."""
    grad_plan, grad_u, grad_v = grads
    names = (f"grad_{name}" for name in NativeGradients._fields)
    found = dict(zip(names, into, strict=True))
    given = {"grad_plan": grad_plan, "grad_u": grad_u, "grad_v": grad_v}
    _call("pull_back", batch, start, n_iters, easy, **given, **found)


def adjoint(batch: "Batch", plan: Tensor, grad_plan: Tensor, into: NativeGradients) -> None:
    """Fill in the gradients of cost, a, b and tau, for plans treated as converged."""
    names = (f"grad_{name}" for name in NativeGradients._fields)
    found = dict(zip(names, into, strict=True))
    # It takes about as long as four iterations.
    _call("adjoint", batch, None, 4, None, plan=plan, grad_plan=grad_plan, **found)


def _call(
    name: str, batch: "Batch", start: Tensor | None, n_iters: int, easy: Tensor | None, **rest: Any
) -> None:
    size, m, n = batch.cost.shape
    work = size * m * n * n_iters * (1 + rest.get("n_steps", 0))
    threads = max(1, min(torch.get_num_threads(), size, work // GRAIN))
    given = {"cost": batch.cost, "a": batch.a, "b": batch.b, "slots": batch.slots}
    given |= {"start": start, "easy": easy, **_either("tau", batch.tau), **rest}
    # Keep references until the end. Only what is read may have to be copied.
    given = {k: x.contiguous() if isinstance(x, Tensor) else x for k, x in given.items()}
    values = {k: x.data_ptr() if isinstance(x, Tensor) else x for k, x in given.items()}
    parallel = torch_threads(os.getpid()) if threads > 1 else None
    sizes = {"batch": size, "m": m, "n": n, "n_iters": n_iters}
    job = NativeJob(**sizes, threads=threads, parallel=parallel, **values)
    function: Any = getattr(load(), name)
    # Larger sizes would overflow.
    if n_iters * (m + n) > 2**40 or function(ctypes.byref(job)):
        raise MemoryError(
            f"not enough memory for {threads} costs of {m} x {n} and {n_iters} iterations"
        )


def _either(name: str, value: float | Tensor) -> dict[str, float | Tensor]:
    """One number for all batch elements, or a tensor with one per element."""
    return {f"{name}s": value} if isinstance(value, Tensor) else {name: value}
