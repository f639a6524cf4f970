"""Launches of kernels: how matrices are cut into blocks, and onto which device they go."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.compiler import CompiledKernel  # pyright: ignore

from slotmesh.ops import _fused
from slotmesh.ops._kernel_types import Gradients, Incoming, Operands, Past, Results, Wanted
from slotmesh.ops._triton import backward as _backward
from slotmesh.ops._triton import forward as _forward
from slotmesh.ops._triton import small as _small
from slotmesh.ops.problem import CONVERGED, SolverSettings

_kernels: Any = (_forward, _backward, _small)
_torch: Any = torch


@dataclass(frozen=True)
class Cut:
    """How a cost matrix is cut into blocks: compile-time sizes of the kernels."""

    M: int  # slots, padded to a power of two
    N: int  # inputs in a block
    split: int  # programs that share a batch element
    warps: int  # of a program
    group: int = 0  # small matrices of a program, if it has more than one

    def width(self, n: int) -> int:
        """Inputs of one program; a multiple of 16, so that rows stay aligned."""
        return -(-n // (16 * self.split)) * 16

    @property
    def vector(self) -> int:
        """Inputs that a thread can load at once while each has all slots; 1 for any number."""
        return max(1, min(4, self.N // (32 * self.warps)))

    def chunks(self, n: int) -> int:
        """Blocks that one program walks over."""
        return -(-min(n, self.width(n)) // self.N)


@dataclass(frozen=True)
class Case:
    """What a kernel is compiled for: its cut, and which arguments it has."""

    M: int
    N: int
    split: int
    G: int = 0
    vector: int = 1
    resident: bool = False
    notes: bool = False
    stored: bool = True
    mesh: bool = False
    noise: bool = False
    marginals: bool = False
    slot_mask: bool = False
    input_mask: bool = False
    tau: bool = False
    init: bool = False
    per_entry: bool = False
    relative: bool = False
    fresh: bool = False
    keep: bool = False
    grad_plan: bool = False
    grad_u: bool = False
    grad_v: bool = False
    grad_changed: bool = False
    grad_marginals: bool = False
    grad_tau: bool = False
    grad_init: bool = False


# Numbers of a block per thread; the most warps per program, and programs that share an element; and
# the fewest inputs that are worth a program of their own.
NUMBERS, WARPS, PARTS, INPUTS = 32, 8, 32, 256
# The same, for more slots than FEW_SLOTS.
FEW_SLOTS, MANY_NUMBERS, MANY_WARPS, MANY_PARTS = 64, 32, 8, 64
# With at most this many numbers per thread, exponentials are recomputed; and from this many rows
# per real slot on, padding matters.
FEW_NUMBERS, MUCH_PADDING = 8, 1.25


def choose(batch: int, m: int, n: int, processors: int) -> Cut:
    """Choose a cut that keeps the matrix in registers if it fits, and all processors busy.

    Programs that share an element wait for each other, so all have to run at once. There are then
    at most as many as processors, each of which has room for one, whatever registers and memory it
    needs; and the launch is cooperative, so none starts before all can. Even several such kernels
    on several streams therefore cannot block each other.
    """
    rows = _fused.block_size(m)
    if rows > FEW_SLOTS:
        return _choose_for_many(batch, rows, n, processors)
    split = 1
    while 2 * split * batch <= processors and 2 * split * INPUTS <= n and split < PARTS:
        split *= 2
    width = min(n, Cut(rows, 1, split, 1).width(n))
    # Small matrices are bound by latency, not registers: 8 numbers per thread were fastest.
    warps = min(WARPS, max(1, _power(width) * rows // (32 * 8)))
    columns = max(32, min(_power(width), 32 * NUMBERS * warps // rows))
    return Cut(rows, columns, split, warps)


def _choose_for_many(batch: int, rows: int, n: int, processors: int) -> Cut:
    """The same for many slots: a block then has few inputs, and is worth a program of its own."""
    most = 32 * MANY_NUMBERS * MANY_WARPS // rows
    split = 1
    while 2 * split * batch <= processors and split * most < n and split < MANY_PARTS:
        split *= 2
    width = min(n, Cut(rows, 1, split, 1).width(n))
    columns = min(most, max(8, _power(width)))
    warps = min(MANY_WARPS, max(4, rows * columns // (32 * MANY_NUMBERS)))
    return Cut(rows, columns, split, warps)


class Launch(NamedTuple):
    """How kernels are launched on matrices of one size with the same arguments."""

    case: Case
    warps: int
    width: int  # inputs of a program, a multiple of 16
    pitch: int  # numbers of a row that is read again and again, a multiple of 16
    chunks: int  # blocks that it walks over
    # By device and dtypes: Triton's own look-up takes longer than a launch.
    compiled: dict[Any, Any]


def _notes_pay(cut: Cut) -> bool:
    """Whether vectors of MESH should wait in memory (see ``tile.recall``): timed, not derived."""
    return cut.M <= 8 or cut.split == 1


def _storing_pays(cut: Cut, batch: int, m: int, chunks: int, cache: int) -> bool:
    """Whether exponentials should be stored from one iteration to the next: timed, not derived.

    A few are faster to recompute. Many are faster to recompute from the costs if they do not fit in
    the cache and padded slots make them much larger than the costs.
    """
    entries = cut.M * cut.N
    few = chunks == 1 and entries <= 32 * FEW_NUMBERS * cut.warps
    size = 4 * batch * cut.split * chunks * entries
    return not few and (size <= cache or cut.M / m < MUCH_PADDING)


@lru_cache(maxsize=1024)
def _launch(
    chooser: Any, group: int, sizes: tuple[int, int, int], hardware: tuple[int, int], **flags: bool
) -> Launch:
    """The launch for costs of ``sizes`` (batch, m, n); ``chooser`` is :func:`choose`."""
    batch, m, n = sizes
    processors, cache = hardware
    cut: Cut = chooser(*sizes, processors)
    if group:
        cut = Cut(_fused.block_size(m), _fused.block_size(n), 1, 1, group)
    width, chunks = cut.width(n), cut.chunks(n)
    # With many slots, blocks with aligned rows are faster than blocks in registers: each thread has
    # several inputs, so sums over inputs take few steps.
    resident = chunks == 1 and cut.M <= FEW_SLOTS
    vector = 1 if resident or cut.M > FEW_SLOTS else cut.vector
    notes = flags.get("mesh", False) and not resident and _notes_pay(cut)
    stored = _storing_pays(cut, batch, m, chunks, cache)
    case = Case(cut.M, cut.N, cut.split, cut.group, vector, resident, notes, stored, **flags)
    return Launch(case, cut.warps, width, -(-n // 16) * 16, chunks, {})


@lru_cache
def _hardware(device: torch.device) -> tuple[int, int]:
    """Number of processors, and bytes of the cache that they share."""
    if device.type != "cuda":
        # Triton's interpreter runs programs one by one: none may wait for a later one.
        return 0, 2**25
    found = _torch.cuda.get_device_properties(device)
    return found.multi_processor_count, found.L2_cache_size


def _sizes(cost: Tensor) -> tuple[int, int, int]:
    """Batch, m and n of costs (..., m, n)."""
    m, n = cost.shape[-2:]
    return cost.numel() // (m * n), m, n


def _power(x: int) -> int:
    return 1 << max(0, x - 1).bit_length()


def _post(cost: Tensor, batch: int, case: Case) -> Tensor:
    """Memory in which programs that share an element exchange sums."""
    if case.split == 1:
        return cost
    return cost.new_zeros(4 * batch * (case.split + 1) * case.M, dtype=torch.int64)


def forward(operands: Operands, settings: SolverSettings, results: Results) -> None:
    """Run the forward kernel, which fills the results."""
    cost, noise, a, b, slots, inputs, tau, init = operands
    batch, m, n = sizes = _sizes(cost)
    if batch == 0:
        return
    plan, u, v, error, count, converged, tau_out, changed, trace, history = results
    n_iters, mesh = settings.n_iters, settings.mesh
    how = _launch(
        choose,
        _fused.small_group(m, n, settings),
        sizes,
        _hardware(cost.device),
        mesh=mesh,
        noise=noise is not None,
        marginals=a is not None,
        slot_mask=slots is not None,
        input_mask=inputs is not None,
        tau=tau is not None,
        init=init is not None,
        per_entry=settings.per_entry,
        relative=settings.relative,
        fresh=settings.fresh,
        keep=settings.keep,
    )
    case = how.case
    if case.G:
        _start(
            how, _kernels[2].forward_small_kernel, batch, cost, (plan.dtype,),
            (
                cost, a, b, slots, inputs, tau, init,
                plan, u, v, error, count, converged, tau_out, trace,
            ),
            (settings.temperature, CONVERGED, m, n, batch, n_iters),
        )  # fmt: skip
        return
    work = flows = cost
    if mesh:
        assert changed is not None
        rows = n_iters + _kernels[0].NOTES.value
        flows = _fused.empty(cost, batch, rows, case.M)
        if not case.resident:
            cost, noise = _aligned(cost), None if noise is None else _aligned(noise)
            work = changed if how.pitch == n else _fused.empty(cost, batch, m, how.pitch)
    elif not case.resident:
        cost = _padded(cost, how.pitch)
    b, inputs = _rows_of_inputs(how, b, inputs)
    _start(
        how, _kernels[0].forward_kernel, batch, cost, (plan.dtype,),
        (
            cost, noise, a, b, slots, inputs, tau, init,
            plan, u, v, error, count, converged, tau_out, changed, history, work,
            _memory(cost, batch, how, mesh), trace, flows, _post(cost, batch, case),
        ),
        (
            settings.sigma, settings.temperature, settings.length, CONVERGED,
            m, n, how.width // 16, how.pitch // 16, how.chunks, batch, settings.n_steps, n_iters,
        ),
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
    batch, m, n = sizes = _sizes(cost)
    if batch == 0:
        return
    n_iters = settings.n_iters
    how = _launch(
        choose,
        _fused.small_group(m, n, settings),
        sizes,
        _hardware(cost.device),
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
    # MESH's adjusted cost is float32 whatever the plan is, and its gradient can be as well.
    dtypes = (grads.cost.dtype, None if incoming.plan is None else incoming.plan.dtype)
    if how.case.G:
        _start(
            how, _kernels[2].backward_small_kernel, batch, cost, dtypes,
            (cost, trace, a, b, slots, inputs, tau, *incoming[:3], *grads),
            (settings.temperature, m, n, batch, n_iters),
        )  # fmt: skip
        return
    flows = _fused.empty(cost, batch, n_iters + 1, how.case.M)
    b, inputs = _rows_of_inputs(how, b, inputs)
    if not how.case.resident:
        cost = _padded(cost, how.pitch)
        history = None if history is None else _padded(history, how.pitch)
        grad_plan = incoming.plan
        grad_plan = None if grad_plan is None else _padded(grad_plan, how.pitch)
        changed = incoming.changed
        changed = None if changed is None else _aligned(changed)
        incoming = incoming._replace(plan=grad_plan, changed=changed)
    _start(
        how, _kernels[1].backward_kernel, batch, cost, dtypes,
        (
            cost, history, trace, a, b, slots, inputs, tau, *incoming, *grads,
            flows, _memory(cost, batch, how, False), _post(cost, batch, how.case),
        ),
        (
            settings.temperature, m, n, how.width // 16, how.pitch // 16, how.chunks, batch,
            trace.shape[0] - 1, n_iters,
        ),
    )  # fmt: skip


def _start(
    how: Launch,
    kernel: Any,
    batch: int,
    cost: Tensor,
    dtypes: tuple[torch.dtype | None, ...],
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[float, ...],
) -> None:
    """Launch the compiled kernel, or compile it first.

    Where a tensor is missing, the kernel gets the cost instead, and does not read it. No argument
    is specialised on (see ``kernel_of_any_size``), so the case, the device, the dtype of the cost
    and ``dtypes``, those of the other tensors that are not always the same, determine the code.
    """
    split, group = how.case.split, how.case.G
    key = (cost.device, cost.dtype, dtypes)
    found = how.compiled.get(key)
    grid = (-(-batch // group) if group else batch * split, 1, 1)
    if found is not None:
        # Plain addresses: for a tensor, Triton would ask the driver.
        stand_in = cost.data_ptr()
        addresses = [stand_in if x is None else x.data_ptr() for x in tensors]
        run_on(cost.device, found, grid, *addresses, *numbers, how.case)
        return
    args = (*(cost if x is None else x for x in tensors), *numbers, how.case)
    made = run_on(cost.device, kernel, grid, *args, num_warps=how.warps, together=split > 1)
    if isinstance(made, CompiledKernel):
        how.compiled[key] = made


def run_on(
    device: torch.device,
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    together: bool = False,
    **options: Any,
) -> Any:
    """Launch a kernel on a device; Triton itself would use the current one.

    Args:
        device: The device of all tensors among the arguments.
        kernel: A function of ``triton.jit``, or a compiled kernel.
        grid: Number of programs; only the first dimension may exceed 65,535.
        args: Arguments of the kernel.
        together: Whether programs wait for each other, so that all of them have to run at once. The
            launch is then cooperative: the driver starts all programs or, while others hold the
            processors, none, and it refuses a grid that can never fit. At most one program per
            processor always fits.
        options: More arguments of the kernel, and of the compiler.

    Returns:
        The compiled kernel, unless it was passed; None in Triton's interpreter.
    """
    if together:
        options["launch_cooperative_grid"] = True
    if device.type != "cuda" or device.index == _torch.cuda.current_device():
        return kernel[grid](*args, **options)
    with _torch.cuda.device(device):
        return kernel[grid](*args, **options)


def _rows_of_inputs(how: Launch, *rows: Tensor | None) -> tuple[Tensor | None, ...]:
    """Masses and mask of inputs (B, n) as the kernels read them: as wide as rows of costs."""
    if how.case.resident:
        return rows
    return tuple(None if x is None else _padded(x, how.pitch) for x in rows)


def _memory(cost: Tensor, batch: int, how: Launch, descent: bool) -> Tensor:
    """Memory for blocks of exponentials or of MESH's slope (see ``tile.in_memory``)."""
    if how.case.resident or not (how.case.stored or descent):
        return cost
    return _fused.empty(cost, batch * how.case.split * how.chunks * how.case.M * how.case.N)


def _padded(x: Tensor, pitch: int) -> Tensor:
    """(..., n) with rows of ``pitch`` numbers, zeros from n on, at an address that is aligned."""
    n = x.shape[-1]
    return torch.nn.functional.pad(x, (0, pitch - n)) if n < pitch else _aligned(x)


def _aligned(x: Tensor) -> Tensor:
    """The same numbers at an address from which several can be read at once."""
    return x if x.data_ptr() % 16 == 0 else x.clone()
