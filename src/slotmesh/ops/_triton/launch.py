"""From tensors to kernels: how blocks are cut, what is allocated, what is passed."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._triton import backward as _backward
from slotmesh.ops._triton import forward as _forward
from slotmesh.ops._triton.device import run_on

_kernels: Any = (_forward, _backward)
_torch: Any = torch


@dataclass(frozen=True)
class Cut:
    """How a cost matrix is cut up: compile-time sizes of the kernels."""

    M: int  # slots, padded to a power of two
    N: int  # inputs in a block
    split: int  # programs that share a batch element
    warps: int  # of a program
    vector: int = 1  # inputs that a thread loads at once; 1 leaves it to the compiler

    def width(self, n: int) -> int:
        """Inputs of one program; a multiple of 16, so that rows stay aligned."""
        return -(-n // (16 * self.split)) * 16

    def chunks(self, n: int) -> int:
        """Blocks that one program walks over."""
        return -(-min(n, self.width(n)) // self.N)


@dataclass(frozen=True)
class Case:
    """What a kernel is compiled for: its cut, and which arguments are there."""

    M: int
    N: int
    split: int
    vector: int
    resident: bool = False
    mesh: bool = False
    noise: bool = False
    marginals: bool = False
    slot_mask: bool = False
    input_mask: bool = False
    tau: bool = False
    init: bool = False
    per_entry: bool = False
    fresh: bool = False
    keep: bool = False
    grad_plan: bool = False
    grad_u: bool = False
    grad_v: bool = False
    grad_changed: bool = False
    grad_marginals: bool = False
    grad_tau: bool = False
    grad_init: bool = False


# Numbers of a block that one thread holds, the most threads of a program, the most programs that
# share an element, and the fewest inputs that are worth a program of their own.
NUMBERS, WARPS, PARTS, INPUTS = 32, 8, 32, 256


def choose(batch: int, m: int, n: int, processors: int) -> Cut:
    """A cut that keeps the matrix in registers where it fits, and all processors at work.

    Programs that share an element wait for each other, so all have to run at once. There are then
    at most as many as processors, each of which has room for one, whatever it takes of registers
    and memory; and the launch is cooperative, so none starts before all can. Not even several such
    kernels on several streams can keep each other from the processors that they wait for.
    """
    rows = max(2, _power(m))
    split = 1
    while 2 * split * batch <= processors and 2 * split * INPUTS <= n and split < PARTS:
        split *= 2
    width = min(n, Cut(rows, 1, split, 1).width(n))
    # A small matrix waits for itself, not for registers: 8 numbers a thread were fastest.
    warps = min(WARPS, max(1, _power(width) * rows // (32 * 8)))
    columns = max(32, min(_power(width), 32 * NUMBERS * warps // rows))
    return Cut(rows, columns, split, warps, 2 if rows == NUMBERS // 2 else 1)


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 0  # Triton's interpreter runs one program after another: none may wait for a later
    return _torch.cuda.get_device_properties(device).multi_processor_count


def cut_for(cost: Tensor) -> Cut:
    """The cut for costs (batch, m, n) on the device where they are."""
    batch, m, n = cost.shape
    return choose(batch, m, n, _processors(cost.device))


def _power(x: int) -> int:
    return 1 << max(0, x - 1).bit_length()


def _post(cost: Tensor, cut: Cut) -> Tensor:
    """Where programs that share an element exchange sums."""
    if cut.split == 1:
        return cost
    return cost.new_zeros(4 * len(cost) * cut.split * cut.M, dtype=torch.int64)


def forward(
    cost: Tensor,
    noise: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    slot_mask: Tensor | None,
    input_mask: Tensor | None,
    tau: Tensor | None,
    init: Tensor | None,
    outputs: tuple[Tensor, ...],
    *,
    sigma: float,
    temperature: float,
    length: float,
    per_entry: bool,
    n_steps: int,
    n_iters: int,
    mesh: bool,
    fresh: bool,
    keep: bool,
) -> None:
    """Run the forward kernel on contiguous tensors.

    Args:
        cost: ``(batch, m, n)``, any floating dtype up to float32; so ``noise``, in units of sigma.
        noise: None for none.
        a: float32 masses ``(batch, m)``, given together with ``b`` or not at all.
        b: ``(batch, n)``.
        slot_mask: boolean ``(batch, m)``.
        input_mask: boolean ``(batch, n)``.
        tau: ``(batch,)``, used instead of ``temperature``.
        init: ``(batch, m)``, the first u.
        outputs: plan, u, v, error, trace, and for MESH the changed cost and its history.
        sigma: Standard deviation of the noise.
        temperature: Of every Sinkhorn.
        length: Of MESH's steps; with ``per_entry`` the root mean square of a real entry's change.
        per_entry: See ``length``.
        n_steps: Of MESH.
        n_iters: Of each Sinkhorn.
        mesh: Whether there are a changed cost and steps on it.
        fresh: Whether each step's Sinkhorn starts from zero.
        keep: Whether to keep the history and a trace of each step.
    """
    batch, m, n = cost.shape
    if batch == 0:
        return
    plan, u, v, error, trace, *rest = outputs
    changed, history = rest or (cost, cost)
    cut = cut_for(cost)
    mail = _post(cost, cut)
    resident = cut.chunks(n) == 1
    slope = plan if plan.dtype == torch.float32 else changed
    if mesh and not resident and slope is changed:
        slope = torch.empty_like(changed)
    flows = cost.new_empty((batch, n_iters, m), dtype=torch.float32)
    case = Case(
        cut.M,
        cut.N,
        cut.split,
        cut.vector,
        resident=resident,
        mesh=mesh,
        noise=noise is not None,
        marginals=a is not None,
        slot_mask=slot_mask is not None,
        input_mask=input_mask is not None,
        tau=tau is not None,
        init=init is not None,
        per_entry=per_entry,
        fresh=fresh,
        keep=keep,
    )
    run_on(
        cost.device, _kernels[0].forward_kernel, (batch * cut.split,),
        cost, _or(noise, cost), _or(a, cost), _or(b, cost), _bytes(slot_mask, cost),
        _bytes(input_mask, cost), _or(tau, cost), _or(init, cost),
        plan, u, v, error, changed, history, slope, trace, flows, mail,
        sigma, temperature, length, m, n, cut.width(n), cut.chunks(n), batch, n_steps, n_iters,
        case, num_warps=cut.warps, together=cut.split > 1,
    )  # fmt: skip


def backward(
    cost: Tensor,
    history: Tensor | None,
    trace: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    slot_mask: Tensor | None,
    input_mask: Tensor | None,
    tau: Tensor | None,
    grads: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    *,
    temperature: float,
    mesh: bool,
    wanted: tuple[bool, bool, bool],
) -> None:
    """Run the backward kernel on contiguous tensors.

    Args:
        cost: The cost that the plan belongs to.
        history: For MESH with its potentials' graph, the costs of the steps before.
        trace: Of the forward kernel.
        a: As in the forward kernel; so ``b``, the masks, ``tau``.
        b: As there.
        slot_mask: As there.
        input_mask: As there.
        tau: As there.
        grads: Of plan, u, v and the changed cost, each may be None.
        outputs: Gradients by cost, a, b, tau and init.
        temperature: As there.
        mesh: As there.
        wanted: Whether the gradients by the masses, tau and init are asked for.
    """
    batch, m, n = cost.shape
    if batch == 0:
        return
    cut = cut_for(cost)
    mail = _post(cost, cut)
    keep = history is not None
    n_iters = trace.shape[2] // 3
    flows = cost.new_empty((batch, n_iters + 1, m), dtype=torch.float32)
    case = Case(
        cut.M,
        cut.N,
        cut.split,
        cut.vector,
        resident=cut.chunks(n) == 1,
        mesh=mesh,
        marginals=a is not None,
        slot_mask=slot_mask is not None,
        input_mask=input_mask is not None,
        tau=tau is not None,
        keep=keep,
        grad_plan=grads[0] is not None,
        grad_u=grads[1] is not None,
        grad_v=grads[2] is not None,
        grad_changed=grads[3] is not None,
        grad_marginals=wanted[0],
        grad_tau=wanted[1],
        grad_init=wanted[2],
    )
    run_on(
        cost.device, _kernels[1].backward_kernel, (batch * cut.split,),
        cost, _or(history, cost), trace, _or(a, cost), _or(b, cost), _bytes(slot_mask, cost),
        _bytes(input_mask, cost), _or(tau, cost), *(_or(g, cost) for g in grads),
        *outputs, flows, mail,
        temperature, m, n, cut.width(n), cut.chunks(n), batch, len(trace) - 1, n_iters,
        case, num_warps=cut.warps, together=cut.split > 1,
    )  # fmt: skip


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """Something to point at where an argument is missing."""
    return stand_in if tensor is None else tensor


def _bytes(mask: Tensor | None, stand_in: Tensor) -> Tensor:
    return stand_in if mask is None else mask.view(torch.uint8)
