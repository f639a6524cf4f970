"""One-to-one assignment over a batch, by shortest augmenting paths."""

from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops._fused import is_eager, use_solver
from slotmesh.ops._native import exact
from slotmesh.ops._native.exact import use_exact
from slotmesh.ops._pairs import check_pairs, dear
from slotmesh.ops._private import custom_op, register_vmap
from slotmesh.ops.problem import (
    Given,
    check_problem,
    clean_cost,
    compute_dtype,
    expanded_masks,
    real_entries,
)

AssignBackend = Literal["auto", "cpu", "scipy", "triton"]

# Elements of the smaller and of the larger side that the kernel takes.
MOST = (128, 1024)


@custom_op("slotmesh::assign", mutates_args=())
def assign_batch(
    cost: Tensor, slots: Tensor | None, inputs: Tensor | None, maximize: bool, backend: str
) -> Tensor:
    """(batch, m, n), (batch, m), (batch, n) to the input of each slot (batch, m), -1 for none."""
    masks = (None if x is None else x.cpu() for x in (slots, inputs))
    given = (cost.detach().cpu(), *masks)
    # Decided here, as a compiler cannot look for the library.
    if backend != "scipy" and use_exact("assign", backend, "scipy"):
        partner = _in_c(*given, maximize=maximize)
    else:
        partner = _with_scipy(*given, maximize=maximize)
    return partner.to(cost.device)


def _in_c(cost: Tensor, slots: Tensor | None, inputs: Tensor | None, *, maximize: bool) -> Tensor:
    if cost.dtype != torch.float32:
        cost = cost.to(compute_dtype(cost))
    partner, finite = exact.assign(cost, slots, inputs, maximize=maximize)
    if finite is not None:
        raise ValueError(
            f"assign: cost has entries that are not finite in {int((~finite).sum())} of "
            f"{len(finite)} batch elements, expected finite numbers."
        )
    return partner


def _with_scipy(
    cost: Tensor, slots: Tensor | None, inputs: Tensor | None, *, maximize: bool
) -> Tensor:
    from scipy.optimize import linear_sum_assignment  # pyright: ignore

    partner = np.full(cost.shape[:2], -1)
    numbers = [np.arange(size) for size in cost.shape[1:]]
    costs, every = cost.double().numpy(), slice(None)
    real_slots, real_inputs = (None if x is None else x.numpy() for x in (slots, inputs))
    for i in range(len(costs)):
        rows = every if real_slots is None else np.flatnonzero(real_slots[i])
        columns = every if real_inputs is None else np.flatnonzero(real_inputs[i])
        solved: Any = linear_sum_assignment(  # pyright: ignore
            costs[i][rows][:, columns], maximize=maximize
        )
        partner[i, numbers[0][rows][solved[0]]] = numbers[1][columns][solved[1]]
    return torch.as_tensor(partner, dtype=torch.int64, device="cpu")


@assign_batch.register_fake
def _(
    cost: Tensor, slots: Tensor | None, inputs: Tensor | None, maximize: bool, backend: str
) -> Tensor:
    return torch.empty(cost.shape[:2], dtype=torch.int64, device=cost.device)


@custom_op("slotmesh::assign_small", mutates_args=())
def assign_small(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool) -> Tensor:
    """The same by one kernel; a batch element with a cost that is not finite gets -1 only."""
    from slotmesh.ops._triton import solve

    partner = torch.empty(cost.shape[:2], dtype=torch.int64, device=cost.device)
    solve.assign(cost.contiguous(), slots.contiguous(), inputs.contiguous(), maximize, partner)
    return partner


@assign_small.register_fake
def _(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool) -> Tensor:
    return torch.empty(cost.shape[:2], dtype=torch.int64, device=cost.device)


def _vmap(
    solver: Any, info: Any, in_dims: tuple[int | None, ...], *args: Any
) -> tuple[Tensor, int]:
    moved: list[Tensor | None] = []
    for x, dim in zip(args[:3], in_dims[:3], strict=True):
        if x is not None:
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        moved.append(x)
    batch = moved[0].shape[:2]  # pyright: ignore[reportOptionalMemberAccess]
    partner = solver(*(None if x is None else x.flatten(0, 1) for x in moved), *args[3:])
    return partner.unflatten(0, batch), 0


for _solver in (assign_batch, assign_small):
    register_vmap(_solver, partial(_vmap, _solver))


def assign(
    cost: Tensor,
    *,
    slot_mask: Tensor | None = None,
    input_mask: Tensor | None = None,
    pair_mask: Tensor | None = None,
    maximize: bool = False,
    backend: AssignBackend = "auto",
) -> Tensor:
    """Match slots with inputs one to one at minimal total cost.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real.
        pair_mask: ``(..., m, n)``, True where slot and input may be matched. The costs of other
            pairs do not matter. As many slots as possible get an input, at minimal cost.
        maximize: Maximise the total instead.
        backend: ``"triton"``: one kernel on a CUDA device, for at most 128 x 1024 or 1024 x 128,
            without waiting for the device. ``"cpu"``: C code, a batch over all cores; needs the C
            library (see :func:`slotmesh.ops.backends`). ``"scipy"``: one problem after the other.
            These two wait for a GPU. ``"auto"``: the kernel for CUDA tensors of these sizes,
            otherwise C if it is available, otherwise SciPy. All compute in float64; if several
            matchings are optimal, they may return different ones.

    Returns:
        ``(..., m)`` int64, the input of each slot; -1 for padded slots, and for slots left over
        if there are more slots than inputs or no allowed pairs. If a cost is not finite, the kernel
        on a GPU returns -1 for all slots of its batch element; the others raise ValueError.

    Example:
        >>> import torch
        >>> from slotmesh.ops import assign
        >>> assign(torch.tensor([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0]]))
        tensor([1, 0])
    """
    checks.check_instance("assign", "maximize", maximize, bool, "True or False")
    checks.check_choice("assign", "backend", backend, ("auto", "cpu", "scipy", "triton"))
    checks.check_matrix("assign", "cost", cost)
    cost = cost.detach()
    if slot_mask is None and input_mask is None and pair_mask is None and _is_quick(cost, backend):
        return _quickly(cost, maximize=maximize)
    given = Given("assign", cost, None, None, slot_mask, input_mask)
    batch, (m, n) = check_problem(given), cost.shape[-2:]
    if pair_mask is not None:
        check_pairs(given, pair_mask)
        batch = checks.broadcast_shapes(batch, pair_mask.shape[:-2])
        given = _forbid(given, pair_mask.expand(*batch, m, n), maximize=maximize)
    if checks.can_read_values(*given.tensors()):
        clean_cost(given)  # for its errors
    flat = given.cost.expand(*batch, m, n).reshape(-1, m, n)
    slots, inputs = (
        None if x is None else x.expand(*batch, x.shape[-1]).reshape(-1, x.shape[-1])
        for x in (slot_mask, input_mask)
    )
    most = MOST if m <= n else (MOST[1], MOST[0])
    if use_solver("assign", backend, cost, most, ("cpu", "scipy")):
        # The kernel has no case without masks.
        real = torch.ones((), dtype=torch.bool, device=cost.device)
        slots = real.expand(len(flat), m) if slots is None else slots
        inputs = real.expand(len(flat), n) if inputs is None else inputs
        partner = assign_small(flat, slots, inputs, maximize)
    else:
        partner = assign_batch(flat, slots, inputs, maximize, backend)
    partner = partner.reshape(*batch, m)
    if pair_mask is None:
        return partner
    matched = partner.clamp(min=0).unsqueeze(-1)
    allowed = pair_mask.expand(*batch, m, n).gather(-1, matched).squeeze(-1)
    return torch.where(allowed, partner, -1)


def _is_quick(cost: Tensor, backend: str) -> bool:
    """Whether C can be called at once: layers of torch take longer than small problems do."""
    if backend not in ("auto", "cpu") or not cost.is_cpu or not is_eager([cost]):
        return False
    return use_exact("assign", backend, "scipy")


def _quickly(cost: Tensor, *, maximize: bool) -> Tensor:
    shape = cost.shape
    try:
        partner = _in_c(
            cost if len(shape) == 3 else cost.reshape(-1, *shape[-2:]),
            None,
            None,
            maximize=maximize,
        )
    except ValueError:
        clean_cost(Given("assign", cost))  # says where, if values may be read
        raise
    return partner if len(shape) == 3 else partner.view(shape[:-1])


def _forbid(given: Given, pairs: Tensor, *, maximize: bool) -> Given:
    """The same problem, in which one pair that is not allowed outweighs all others."""
    (m, n), sign = pairs.shape[-2:], -1.0 if maximize else 1.0
    real = real_entries(*expanded_masks(given, tuple(pairs.shape[:-2])))
    allowed = pairs if real is None else pairs & real
    cost = sign * given.cost.to(compute_dtype(given.cost)).expand(pairs.shape)
    largest = torch.where(allowed, cost, 0.0).abs().amax((-2, -1), keepdim=True)
    return given._replace(cost=sign * dear(cost, allowed, float(min(m, n)), 1.0 + largest))
