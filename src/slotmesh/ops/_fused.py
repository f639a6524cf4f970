"""When the fused kernels can be used, and what their operators have in common.

The operators (``slotmesh::sinkhorn``, ``slotmesh::mesh``, ``slotmesh::transport_backward``) are
known to torch without triton; triton is imported when one of them runs.
"""

import importlib.util
import os
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from slotmesh.ops import _checks as checks
from slotmesh.ops._problem import check_problem, marginals, problem
from slotmesh.ops._typed import custom_op

Backend = Literal["auto", "torch", "triton", "cpu"]
BACKENDS: tuple[Backend, ...] = ("auto", "torch", "triton", "cpu")

MOST_SLOTS, MOST_INPUTS = 64, 65_536
# Of an element, over slots and iterations: the kernels count in 32 bits inside it.
MOST_RECORDED = 2**31 - 1
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def use_kernel(op: str, backend: Backend, cost: Tensor, n_iters: int, beyond: str | None) -> bool:
    """Whether the kernel is to run; a ValueError where it was asked for by name and cannot.

    Args:
        op: The name of the operation, for the error.
        backend: What the caller asked for.
        cost: ``(..., m, n)``, checked to be a matrix.
        n_iters: Of each Sinkhorn.
        beyond: An option in use that only the torch path knows, in words, or None.
    """
    if backend in ("torch", "cpu") or (backend == "auto" and not cost.is_cuda):
        return False
    reason = beyond or _unfit(cost, n_iters)
    if reason is not None and backend == "triton":
        raise ValueError(
            f"{op}: backend is 'triton', which does not work here: {reason}. "
            "Use backend='auto' to choose what fits, or backend='torch'."
        )
    return reason is None


def _unfit(cost: Tensor, n_iters: int) -> str | None:
    """Why the kernels cannot take this cost, or None."""
    m, n = cost.shape[-2:]
    if m > MOST_SLOTS or n > MOST_INPUTS:
        return f"cost is {m} x {n}, and the kernels take at most {MOST_SLOTS} x {MOST_INPUTS}"
    if 3 * n_iters * m > MOST_RECORDED:
        most = MOST_RECORDED // (3 * m)
        return f"n_iters is {n_iters}, and the kernels take at most {most} with {m} slots"
    return cannot_run("cost", cost)


def cannot_run(name: str, x: Tensor) -> str | None:
    """Why no kernel can take this tensor, whatever its shape, or None."""
    if not _HAS_TRITON:
        return "triton is not installed (pip install triton)"
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"{name} is on {x.device}, and the kernels need a CUDA device"
    if x.dtype not in DTYPES:
        return f"{name} has dtype {x.dtype}, and the kernels compute in float32"
    if not torch.compiler.is_compiling():
        if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore
            return "this is inside a transform of torch.func, which the kernels do not know"
        if torch.autograd.forward_ad._current_level >= 0:  # pyright: ignore
            return "forward-mode derivatives are on, which the kernels do not have"
    return None


class Flat(NamedTuple):
    """Arguments of a kernel: one batch dimension, contiguous; None where there is nothing."""

    batch: tuple[int, ...]
    cost: Tensor  # (B, m, n)
    a: Tensor | None  # (B, m), with b or not at all
    b: Tensor | None  # (B, n)
    slots: Tensor | None  # (B, m)
    inputs: Tensor | None  # (B, n)


def flatten(
    op: str,
    cost: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    slot_mask: Tensor | None,
    input_mask: Tensor | None,
) -> Flat:
    """Check the arguments as :func:`problem` does, and bring them to one form."""
    if checks.can_read_values(cost, a, b, slot_mask, input_mask):
        problem(op, cost, a, b, slot_mask, input_mask)  # for its errors
    batch = check_problem(op, cost, a, b, slot_mask, input_mask)
    m, n = cost.shape[-2:]
    full = cost.expand(*batch, m, n)
    slots = None if slot_mask is None else slot_mask.expand(*batch, m)
    inputs = None if input_mask is None else input_mask.expand(*batch, n)
    if a is not None or b is not None:
        a, b = marginals(op, a, b, slots, inputs, full.to(torch.float32))
    return Flat(
        batch,
        full.reshape(-1, m, n).contiguous(),
        flat_vector(a),
        flat_vector(b),
        flat_vector(slots),
        flat_vector(inputs),
    )


def flat_vector(x: Tensor | None) -> Tensor | None:
    """(*batch, size) to (B, size)."""
    return None if x is None else x.reshape(-1, x.shape[-1]).contiguous()


def flat_temperature(tau: float | Tensor, batch: tuple[int, ...]) -> tuple[Tensor | None, float]:
    """A checked temperature, float or (..., 1, 1), as (B,) or as a number."""
    if not isinstance(tau, Tensor):
        return None, float(tau)
    return tau[..., 0, 0].expand(batch).reshape(-1).contiguous(), 1.0


@custom_op("slotmesh::transport_backward", mutates_args=())
def transport_backward(
    cost: Tensor,
    history: Tensor | None,
    trace: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    slots: Tensor | None,
    inputs: Tensor | None,
    tau: Tensor | None,
    grad_plan: Tensor | None,
    grad_u: Tensor | None,
    grad_v: Tensor | None,
    grad_changed: Tensor | None,
    temperature: float,
    mesh: bool,
    wanted: list[bool],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by cost, a, b, tau and init (empty where not wanted)."""
    from slotmesh.ops._triton import launch

    outputs = _gradients(cost, history, wanted, dtype)
    grads = [None if g is None else g.contiguous() for g in (grad_plan, grad_u, grad_v)]
    launch.backward(
        cost,
        history,
        trace,
        a,
        b,
        slots,
        inputs,
        tau,
        (*grads, None if grad_changed is None else grad_changed.contiguous()),
        outputs,
        temperature=temperature,
        mesh=mesh,
        wanted=(wanted[0], wanted[1], wanted[2]),
    )
    return (outputs[0].to(dtype), *outputs[1:])


@transport_backward.register_fake
def _(
    cost: Tensor,
    history: Tensor | None,
    trace: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    slots: Tensor | None,
    inputs: Tensor | None,
    tau: Tensor | None,
    grad_plan: Tensor | None,
    grad_u: Tensor | None,
    grad_v: Tensor | None,
    grad_changed: Tensor | None,
    temperature: float,
    mesh: bool,
    wanted: list[bool],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    outputs = _gradients(cost, history, wanted, dtype)
    return (outputs[0].to(dtype), *outputs[1:])


def _gradients(
    cost: Tensor, history: Tensor | None, wanted: list[bool], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, m, n = cost.shape
    masses, tau, init = wanted

    def vector(needed: bool, *shape: int) -> Tensor:
        return cost.new_empty(shape if needed else (0,), dtype=torch.float32)

    # Several Sinkhorns add to one gradient: not in a half-precision one.
    kind = dtype if history is None else torch.float32
    return (
        cost.new_empty(cost.shape, dtype=kind),
        vector(masses, batch, m),
        vector(masses, batch, n),
        vector(tau, batch),
        vector(init, batch, m),
    )
