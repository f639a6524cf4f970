# type: ignore  # Triton's language only looks like Python
"""Exact transport between few slots and many inputs: successive shortest paths over the slots.

Every input starts in the slot that is cheapest at good potentials (see ``emd_start``). That plan is
optimal for the masses that the slots then have; each path from a slot with too much to one with too
little, the shortest in reduced cost, preserves that and brings the masses closer to those wanted.
An arc from slot i to slot k moves the input of i for which k costs the least extra.

The entries above 0 always form a forest, so the result is a vertex: of equally short paths the one
is taken that makes the fewest new entries, and two slots of one tree are joined at no cost and
without a new entry by the inputs that they share (``split``).
"""

# ruff: noqa: N803

import triton
import triton.language as tl

from slotmesh.ops._triton.emd_arcs import INDEX, bit, rescan
from slotmesh.ops._triton.emd_end import complete, misplaced, price
from slotmesh.ops._triton.emd_moves import move_along, move_together, together
from slotmesh.ops._triton.emd_paths import hops, nearest_of, search, trace
from slotmesh.ops._triton.emd_start import rescale, spread, start
from slotmesh.ops._triton.tile import any_of, max_of, min_of, sum_of

# Excess and deficit below this share of all mass count as none.
TINY = tl.constexpr(1e-14)
# Mass that may remain if the two totals differ by rounding.
LEFT = tl.constexpr(1e-9)


@triton.jit
def assign_all(u, takes, data, C: tl.constexpr):
    """Put every input into its cheapest slot; returns what each slot then has (M,)."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    acc = tl.full((C.M, C.block), 0.0, tl.float64)
    for s in range((n + C.block - 1) // C.block):
        cols = s * C.block + tl.arange(0, C.block)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        offsets = rows[:, None] * n + cols[None, :]
        c = tl.load(cost + offsets, mask=inside, other=0.0).to(tl.float64)
        mass = tl.load(b + cols, mask=cols < n, other=0.0)
        x = tl.where(takes[:, None], c - u[:, None], float("inf"))
        least = min_of(x, 0)
        slot = min_of(tl.where(x == least[None, :], rows[:, None], C.M), 0)
        f = tl.where(rows[:, None] == slot[None, :], mass[None, :], 0.0)
        tl.store(plan + offsets, f, mask=inside)
        tl.store(own + cols, tl.where((mass > 0) & (slot < C.M), bit(slot), 0), mask=cols < n)
        acc += f
    return sum_of(acc, 1)


@triton.jit
def emd_kernel(
    cost, a, b, slot_mask, input_mask, plan, own, even, scratch, u_out, v_out, steps_out, error_out,
    m, n, most, SLOTS: tl.constexpr, INPUTS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Cost (batch, m, n) and masses (batch, m), (batch, n) to a plan and its dual variables.

    Masks (batch, m) and (batch, n) are read with SLOTS and INPUTS. ``even`` (batch, n) and the rest
    up to the results are room to work in. ``steps`` is the number of paths, or -1 - this where
    ``most`` of them were not enough.
    """
    element = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, C.M)
    own += element * n
    even += element * n
    data = (cost + element * (m * n), plan + element * (m * n), own, even, m, n)
    mass = tl.load(a + element * m + rows, mask=rows < m, other=0.0).to(tl.float64)
    total = sum_of(mass, 0)
    rescale(b + element * n, total, data, C)
    # If there is no mass at all, some slot takes part anyway and gets nothing.
    takes = tl.where(total > 0, mass, tl.where(rows == 0, 1.0, 0.0)) > 0
    size, finite = spread(data, takes, C)
    u = start(
        data, takes, mass, tl.where(total > 0, total, 1.0), size, scratch + element * (C.M * C.M), C
    )
    has = assign_all(u, takes, data, C)
    tl.debug_barrier()

    least = tl.full((C.M, C.M), float("inf"), tl.float64)
    which = tl.full((C.M, C.M), -1, tl.int32)
    split = tl.full((C.M, C.M), -1, tl.int32)
    apart = (rows[:, None] != rows[None, :]) & takes[:, None] & takes[None, :]
    for i in range(m):
        least, which = rescan(i, least, which, data, C)

    excess = has - mass
    tiny = TINY * total
    steps = tl.program_id(0) * 0
    going = finite & any_of(excess > tiny, 0) & any_of(excess < -tiny, 0) & (steps < most)
    while going:
        reduced = tl.maximum(least + (u[:, None] - u[None, :]), 0.0)
        reduced = tl.where(split >= 0, 0.0, reduced)
        reduced = tl.where(apart, reduced, float("inf"))
        d, news, before = search(reduced, tl.where(split >= 0, 0, 1), excess > tiny, C)
        sink, near = nearest_of(excess < -tiny, d, news, C)
        u += tl.minimum(d, near)

        hop = hops(before, which, split, C)
        source, on, tie = trace(hop, sink, C)
        inputs = data[1] + before * n + (hop & INDEX)
        room = tl.load(inputs, mask=on & (before >= 0), other=float("inf"))
        ends = tl.where(rows == sink, -excess, tl.where(rows == source, excess, float("inf")))
        amount = min_of(tl.minimum(ends, room), 0)
        # Inputs of equal cost move together; many copies of one would otherwise move one by one.
        more = amount
        if tie > 0:
            more = together(hop, sink, min_of(ends, 0), least, data, C)
        if more > amount:
            amount = more
            least, which, split = move_together(
                hop, sink, amount, tiny, apart, least, which, split, data, C
            )
        else:
            least, which, split = move_along(hop, sink, amount, apart, least, which, split, data, C)
        excess = tl.where(rows == source, excess - amount, excess)
        excess = tl.where(rows == sink, excess + amount, excess)
        steps += 1
        going = any_of(excess > tiny, 0) & any_of(excess < -tiny, 0) & (steps < most)

    slots = rows < m
    if SLOTS:
        slots = tl.load(slot_mask + element * m + rows, mask=rows < m, other=0) != 0
    u = complete(u, mass > 0, slots, data, C)
    price(u, mass > 0, slots, input_mask + element * n, v_out + element * n, data, INPUTS, C)
    error = misplaced(mass, finite, data, C)
    tl.store(u_out + element * m + rows, u, mask=rows < m)
    tl.store(error_out + element, error / tl.where(total > 0, total, 1.0))
    solved = finite & (max_of(tl.abs(excess), 0) <= LEFT * total)
    tl.store(steps_out + element, tl.where(solved, steps, -1 - steps))
