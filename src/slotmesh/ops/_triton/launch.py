"""Launches of kernels: how matrices are cut into blocks, and onto which device they go."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._fused import Gradients, Incoming, Operands, Past, Results, Wanted
from slotmesh.ops._triton import backward as _backward
from slotmesh.ops._triton import forward as _forward
from slotmesh.ops.problem import SolverSettings

_kernels: Any = (_forward, _backward)
_torch: Any = torch


@dataclass(frozen=True)
class Cut:
    """How a cost matrix is cut into blocks: compile-time sizes of the kernels."""

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
    """What a kernel is compiled for: its cut, and which arguments it has."""

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


# Numbers of a block per thread, most warps per program, most programs that share an element, and
# the fewest inputs that are worth a program of their own.
NUMBERS, WARPS, PARTS, INPUTS = 32, 8, 32, 256


def choose(batch: int, m: int, n: int, processors: int) -> Cut:
    """Choose a cut that keeps the matrix in registers if it fits, and all processors busy.

    Programs that share an element wait for each other, so all have to run at once. There are then
    at most as many as processors, each of which has room for one, whatever registers and memory it
    needs; and the launch is cooperative, so none starts before all can. So not even several such
    kernels on several streams can block each other.
    """
    rows = max(2, _power(m))
    split = 1
    while 2 * split * batch <= processors and 2 * split * INPUTS <= n and split < PARTS:
        split *= 2
    width = min(n, Cut(rows, 1, split, 1).width(n))
    # Small matrices are bound by latency, not registers: 8 numbers per thread were fastest.
    warps = min(WARPS, max(1, _power(width) * rows // (32 * 8)))
    columns = max(32, min(_power(width), 32 * NUMBERS * warps // rows))
    return Cut(rows, columns, split, warps, 2 if rows == NUMBERS // 2 else 1)


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 0  # Triton's interpreter runs programs one by one: none may wait for a later one
    return _torch.cuda.get_device_properties(device).multi_processor_count


def cut_for(cost: Tensor) -> Cut:
    """The cut for costs (batch, m, n) on their device."""
    batch, m, n = cost.shape
    return choose(batch, m, n, _processors(cost.device))


def _power(x: int) -> int:
    return 1 << max(0, x - 1).bit_length()


def _post(cost: Tensor, cut: Cut) -> Tensor:
    """Memory in which programs that share an element exchange sums."""
    if cut.split == 1:
        return cost
    return cost.new_zeros(4 * len(cost) * cut.split * cut.M, dtype=torch.int64)


def forward(operands: Operands, settings: SolverSettings, results: Results) -> None:
    """Run the forward kernel, which fills the results."""
    cost, noise, a, b, slots, inputs, tau, init = operands
    batch, m, n = cost.shape
    if batch == 0:
        return
    plan, u, v, error, trace, changed, history = results
    n_iters, mesh = settings.n_iters, settings.mesh
    cut = cut_for(cost)
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
        slot_mask=slots is not None,
        input_mask=inputs is not None,
        tau=tau is not None,
        init=init is not None,
        per_entry=settings.per_entry,
        fresh=settings.fresh,
        keep=settings.keep,
    )
    run_on(
        cost.device, _kernels[0].forward_kernel, (batch * cut.split,),
        cost, _or(noise, cost), _or(a, cost), _or(b, cost), _bytes(slots, cost),
        _bytes(inputs, cost), _or(tau, cost), _or(init, cost),
        plan, u, v, error, changed, history, slope, trace, flows, _post(cost, cut),
        settings.sigma, settings.temperature, settings.length,
        m, n, cut.width(n), cut.chunks(n), batch, settings.n_steps, n_iters,
        case, num_warps=cut.warps, together=cut.split > 1,
    )  # fmt: skip


def backward(
    operands: Operands,
    past: Past,
    incoming: Incoming,
    settings: SolverSettings,
    wanted: Wanted,
    grads: Gradients,
) -> None:
    """Run the backward kernel, which fills the gradients."""
    cost, _, a, b, slots, inputs, tau, _ = operands
    trace, history = past
    batch, m, n = cost.shape
    if batch == 0:
        return
    cut = cut_for(cost)
    n_iters = settings.n_iters
    flows = cost.new_empty((batch, n_iters + 1, m), dtype=torch.float32)
    case = Case(
        cut.M,
        cut.N,
        cut.split,
        cut.vector,
        resident=cut.chunks(n) == 1,
        mesh=settings.mesh,
        marginals=a is not None,
        slot_mask=slots is not None,
        input_mask=inputs is not None,
        tau=tau is not None,
        keep=history is not None,
        grad_plan=incoming.plan is not None,
        grad_u=incoming.u is not None,
        grad_v=incoming.v is not None,
        grad_changed=incoming.changed is not None,
        grad_marginals=wanted.masses,
        grad_tau=wanted.tau,
        grad_init=wanted.init,
    )
    run_on(
        cost.device, _kernels[1].backward_kernel, (batch * cut.split,),
        cost, _or(history, cost), trace, _or(a, cost), _or(b, cost), _bytes(slots, cost),
        _bytes(inputs, cost), _or(tau, cost), *(_or(g, cost) for g in incoming),
        *grads, flows, _post(cost, cut),
        settings.temperature, m, n, cut.width(n), cut.chunks(n), batch, len(trace) - 1, n_iters,
        case, num_warps=cut.warps, together=cut.split > 1,
    )  # fmt: skip


def run_on(
    device: torch.device,
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    together: bool = False,
    **options: Any,
) -> None:
    """Launch a kernel on a device; Triton itself uses the current one, whatever it is given.

    Args:
        device: The device of all tensors among the arguments.
        kernel: A function of ``triton.jit``.
        grid: Number of programs; only the first dimension may exceed 65,535.
        args: Arguments of the kernel.
        together: Whether programs wait for each other, so that all of them have to run at once. The
            launch is then cooperative: the driver starts all programs or, while others hold the
            processors, none, and it refuses a grid that can never fit. At most one program per
            processor always fits.
        options: More arguments of the kernel, and of the compiler.
    """
    if together:
        options["launch_cooperative_grid"] = True
    if device.type != "cuda" or device.index == _torch.cuda.current_device():
        kernel[grid](*args, **options)
        return
    with _torch.cuda.device(device):
        kernel[grid](*args, **options)


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """A tensor to point at if an argument is missing."""
    return stand_in if tensor is None else tensor


def _bytes(mask: Tensor | None, stand_in: Tensor) -> Tensor:
    return stand_in if mask is None else mask.view(torch.uint8)
