# type: ignore  # kernels are a language of their own, which only looks like Python
"""Exact transport between few slots and many inputs: successive shortest paths over the slots.

Every input starts in the slot that is cheapest at good potentials (see ``emd_start``). That plan is
optimal for the masses that the slots then have; each path from a slot with too much to one with too
little, the shortest in reduced cost, keeps it so and brings the masses nearer to those asked for.
An arc from slot i to slot k moves the input of i that costs least more in k.

The entries above 0 always form a forest, so the result is a vertex: of equally short paths the one
is taken that makes the fewest new entries, and two slots of one tree are joined at no cost and
without a new entry by the inputs that they share (``split``).
"""

# ruff: noqa: N803

import triton
import triton.language as tl

from slotmesh.ops._triton.emd_arcs import bit, move_one, move_tied, scan_pair, scan_row, tied
from slotmesh.ops._triton.emd_end import complete, misplaced, price
from slotmesh.ops._triton.emd_start import rescale, spread, start
from slotmesh.ops._triton.pick import any_of, entry, min_of
from slotmesh.ops._triton.tile import max_of, sum_of

# Excess and lack below this share of all mass count as none.
TINY = tl.constexpr(1e-14)
# What may be left where rounding made the two totals differ.
LEFT = tl.constexpr(1e-9)
MANY = tl.constexpr(1 << 20)


@triton.jit
def at(x, i, k, C: tl.constexpr):
    """x[i, k] of a matrix (M, M)."""
    rows = tl.arange(0, C.M)
    chosen = (rows == i)[:, None] & (rows == k)[None, :]
    return sum_of(sum_of(tl.where(chosen, x, 0), 1), 0)


@triton.jit
def put_row(x, i, value, C: tl.constexpr):
    """Set x[i] to a vector (M,)."""
    rows = tl.arange(0, C.M)
    return tl.where((rows == i)[:, None], value[None, :], x)


@triton.jit
def put(x, i, k, value, C: tl.constexpr):
    """Set x[i, k]."""
    rows = tl.arange(0, C.M)
    return tl.where((rows == i)[:, None] & (rows == k)[None, :], value, x)


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
def paths(reduced, fresh, sources, C: tl.constexpr):
    """Distance of each slot from the sources, new entries on the way, the slot before (M,)."""
    rows = tl.arange(0, C.M)
    d = tl.where(sources, 0.0, float("inf")).to(tl.float64)
    news = tl.where(sources, 0, MANY)
    before = tl.full((C.M,), -1, tl.int32)
    changed = max_of(before, 0) + 2
    while changed > 0:
        through = d[:, None] + reduced
        best = min_of(through, 0)
        count = tl.where(through <= best[None, :], news[:, None] + fresh, MANY)
        fewest = min_of(count, 0)
        nearest = min_of(tl.where(count <= fewest[None, :], rows[:, None], C.M), 0)
        better = (best < d) | ((best == d) & (best < float("inf")) & (fewest < news))
        d = tl.where(better, best, d)
        news = tl.where(better, fewest, news)
        before = tl.where(better, nearest, before)
        changed = max_of(tl.where(better, 1, 0), 0)
    return d, news, before


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
    # Where there is no mass at all, some slot takes part all the same, and gets nothing.
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
        row, inputs = scan_row(i, data, C)
        least = put_row(least, i, row, C)
        which = put_row(which, i, inputs, C)

    excess = has - mass
    tiny = TINY * total
    steps = tl.program_id(0) * 0
    going = finite & any_of(excess > tiny, 0) & any_of(excess < -tiny, 0) & (steps < most)
    while going:
        reduced = tl.maximum(least + (u[:, None] - u[None, :]), 0.0)
        reduced = tl.where(split >= 0, 0.0, reduced)
        reduced = tl.where(apart, reduced, float("inf"))
        d, news, before = paths(reduced, tl.where(split >= 0, 0, 1), excess > tiny, C)
        lacks = excess < -tiny
        near = min_of(tl.where(lacks, d, float("inf")), 0)
        lacks = lacks & (d == near)
        fewest = min_of(tl.where(lacks, news, MANY), 0)
        sink = min_of(tl.where(lacks & (news == fewest), rows, C.M), 0)
        u += tl.minimum(d, near)

        source = sink
        i = entry(before, rows, source)
        while i >= 0:
            source = i
            i = entry(before, rows, source)
        # How much can go this way. An arc whose input is too light for that takes others along that
        # cost the same, or else many copies of one input would go piece by piece.
        amount = tl.minimum(-entry(excess, rows, sink), entry(excess, rows, source))
        many = tl.full((C.M,), 0, tl.int32)
        k = sink
        i = entry(before, rows, k)
        while i >= 0:
            j = at(split, i, k, C)
            shared = j >= 0
            j = tl.where(shared, j, at(which, i, k, C))
            room = tl.load(data[1] + i * n + j)
            if room < amount:
                whole = tied(i, k, at(least, i, k, C), data, C)
                whole += tl.where(shared, room, 0.0)
                many = tl.where(rows == k, tl.where(whole > room, 1, 0), many)
                amount = tl.minimum(amount, tl.maximum(whole, room))
            k = i
            i = entry(before, rows, k)
        tl.debug_barrier()

        cuts = tl.full((C.M,), -1, tl.int32)
        k = sink
        i = entry(before, rows, k)
        while i >= 0:
            j = at(split, i, k, C)
            shared = j >= 0
            j = tl.where(shared, j, at(which, i, k, C))
            room = tl.load(data[1] + i * n + j)
            bulk = (entry(many, rows, k) > 0) & (amount > room)
            many = tl.where(rows == k, tl.where(bulk, 1, 0), many)
            if shared | ~bulk:
                move_one(i, k, j, tl.minimum(amount, room), data)
            if bulk:
                rest = amount - tl.where(shared, room, 0.0)
                j = move_tied(i, k, at(least, i, k, C), rest, tiny, data, C)
            cuts = tl.where(rows == k, j, cuts)
            k = i
            i = entry(before, rows, k)
        tl.debug_barrier()

        owners = tl.load(own + tl.where(split >= 0, split, 0))
        joined = (owners >> rows[:, None]) & (owners >> rows[None, :]) & 1
        split = tl.where(joined > 0, split, -1)
        k = sink
        i = entry(before, rows, k)
        while i >= 0:
            j = entry(cuts, rows, k)
            holders = tl.load(own + tl.maximum(j, 0))
            joined = (holders >> rows[:, None]) & (holders >> rows[None, :]) & 1
            split = tl.where((joined > 0) & apart & (j >= 0), j, split)
            if entry(many, rows, k) > 0:
                row, inputs = scan_row(i, data, C)
                least = put_row(least, i, row, C)
                which = put_row(which, i, inputs, C)
                row, inputs = scan_row(k, data, C)
                least = put_row(least, k, row, C)
                which = put_row(which, k, inputs, C)
            else:
                there = tl.load(data[0] + rows * n + j, mask=rows < m, other=0.0).to(tl.float64)
                d_k = there - tl.load(data[0] + k * n + j).to(tl.float64)
                better = (rows == k)[:, None] & (d_k[None, :] < least)
                better = better & ((holders & bit(k)) != 0)
                least = tl.where(better, d_k[None, :], least)
                which = tl.where(better, j, which)
                inputs = sum_of(tl.where((rows == i)[:, None], which, 0), 0)
                owners_i = tl.load(own + tl.maximum(inputs, 0))
                lost = takes & (inputs >= 0) & ((owners_i & bit(i)) == 0)
                other = min_of(tl.where(lost, rows, C.M), 0)
                while other < C.M:
                    one, input_one = scan_pair(i, other, data, C)
                    least = put(least, i, other, one, C)
                    which = put(which, i, other, input_one, C)
                    lost = lost & (rows != other)
                    other = min_of(tl.where(lost, rows, C.M), 0)
            k = i
            i = entry(before, rows, k)
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
