# type: ignore  # Triton's language only looks like Python
"""Moves of mass along a path, from the sink back to the source, and the arcs that they change.

Moves go through memory that all threads read: threads wait for each other before every store, and
after it before any of them reads again.
"""

# ruff: noqa: N803, RUF059

import triton
import triton.language as tl

from slotmesh.ops._triton.emd_arcs import INDEX, TIE, at, bit, extra, put, rescan, scan_pair
from slotmesh.ops._triton.emd_paths import BEFORE, SHARED
from slotmesh.ops._triton.tile import ADD, entry, max_of, min_of, sum_of


@triton.jit
def lowest(bits):
    """The lowest of some bits, and its index: the exponent of that bit as a float."""
    low = bits & -bits
    # Without the sign, which bit 31 has.
    exponent = (low.to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255
    return low, exponent - 127


@triton.jit
def join(split, j, owners, apart, C: tl.constexpr):
    """The inputs that two slots share (M, M), once input j is in other slots than before."""
    rows = tl.arange(0, C.M)
    joined = ((owners >> rows[:, None]) & (owners >> rows[None, :]) & 1) > 0
    return tl.where(joined & apart, j, tl.where(split == j, -1, split))


@triton.jit
def move_one(i, k, j, amount, data):
    """Move an amount of input j from slot i to slot k; returns the slots that it is then in."""
    cost, plan, own, b, m, n = data
    left = tl.load(plan + i * n + j) - amount
    more = tl.load(plan + k * n + j) + amount
    owners = tl.load(own + j)
    owners = tl.where(left > 0, owners, owners & ~bit(i)) | bit(k)
    tl.debug_barrier()
    tl.store(plan + i * n + j, tl.maximum(left, 0.0))
    tl.store(plan + k * n + j, more)
    tl.store(own + j, owners)
    tl.debug_barrier()
    return owners


@triton.jit
def move_along(hop, sink, amount, apart, least, which, split, data, C: tl.constexpr):
    """Move an amount along a path, one input per arc."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    k = sink
    one = entry(hop, rows, k)
    while one >= 0:
        i = one >> BEFORE
        j = one & INDEX
        there = tl.load(cost + rows * n + j, mask=rows < m, other=0.0).to(tl.float64)
        d = there - tl.load(cost + k * n + j).to(tl.float64)
        owners = move_one(i, k, j, amount, data)
        split = join(split, j, owners, apart, C)
        leaves = (rows == k)[:, None]
        equal = leaves & (d[None, :] == least) & ((which & INDEX) != j)
        better = leaves & (d[None, :] < least)
        which = tl.where(better, j, tl.where(equal, which | TIE, which))
        least = tl.where(better, d[None, :], least)
        lost = (rows == i)[:, None] & apart & ((which & INDEX) == j)
        lost = sum_of(sum_of(tl.where(lost, bit(rows)[None, :], 0), 1), 0)
        lost = tl.where((owners & bit(i)) != 0, 0, lost)
        while lost != 0:
            low, other = lowest(lost)
            cheapest, arc = scan_pair(i, other, data, C)
            least = put(least, i, other, cheapest, C)
            which = put(which, i, other, arc, C)
            lost = lost ^ low
        k = i
        one = entry(hop, rows, k)
    return least, which, split


@triton.jit
def tied(i, k, least, data, C: tl.constexpr):
    """Mass of the inputs wholly in slot i that all cost ``least`` to move to slot k."""
    cost, plan, own, b, m, n = data
    mass = tl.full((C.strip,), 0.0, tl.float64)
    for s in range((n + C.strip - 1) // C.strip):
        cols = s * C.strip + tl.arange(0, C.strip)
        d, owners = extra(i, k, cols, data)
        equal = (owners == bit(i)) & (d == least)
        mass += tl.where(equal, tl.load(b + cols, mask=cols < n, other=0.0), 0.0)
    return sum_of(mass, 0)


@triton.jit
def move_tied(i, k, least, amount, tiny, data, C: tl.constexpr):
    """Move an amount of those inputs, one after another; returns the one that is split, or -1."""
    cost, plan, own, b, m, n = data
    before = amount * 0.0
    split = i * 0 - 1
    done = i * 0
    for s in range((n + C.strip - 1) // C.strip):
        cols = s * C.strip + tl.arange(0, C.strip)
        d, owners = extra(i, k, cols, data)
        equal = (owners == bit(i)) & (d == least)
        mass = tl.where(equal, tl.load(b + cols, mask=cols < n, other=0.0), 0.0)
        upto = before + tl.associative_scan(mass, 0, ADD)
        last = min_of(tl.where(equal & (upto > amount + tiny), cols, n), 0)
        last = tl.where(done > 0, 0, last)
        whole = equal & (cols < last)
        # If the strip is short every warp reads all of it.
        tl.debug_barrier()
        tl.store(plan + i * n + cols, mass * 0.0, mask=whole)
        tl.store(plan + k * n + cols, mass, mask=whole)
        tl.store(own + cols, owners * 0 + bit(k), mask=whole)
        full = sum_of(tl.where(whole, mass, 0.0), 0)
        part = amount - (before + full)
        cut = equal & (cols == tl.where(done > 0, n, tl.where(part > tiny, last, n)))
        tl.store(plan + i * n + cols, mass - part, mask=cut)
        tl.store(plan + k * n + cols, mass * 0.0 + part, mask=cut)
        tl.store(own + cols, owners | bit(k), mask=cut)
        split = tl.maximum(split, max_of(tl.where(cut, cols, -1), 0))
        done = tl.where(last < n, 1, done)
        before += full
    tl.debug_barrier()
    return split


@triton.jit
def together(hop, sink, amount, least, data, C: tl.constexpr):
    """How much of an amount can move along a path if inputs of equal cost move together."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    k = sink
    one = entry(hop, rows, k)
    while one >= 0:
        i = one >> BEFORE
        room = tl.load(plan + i * n + (one & INDEX))
        if room < amount:
            whole = room
            if (one & TIE) != 0:
                whole = tied(i, k, at(least, i, k, C), data, C)
                whole += tl.where((one & SHARED) != 0, room, 0.0)
            amount = tl.minimum(amount, tl.maximum(whole, room))
        k = i
        one = entry(hop, rows, k)
    return amount


@triton.jit
def move_together(hop, sink, amount, tiny, apart, least, which, split, data, C: tl.constexpr):
    """move_along for inputs of equal cost, which move together."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    k = sink
    one = entry(hop, rows, k)
    while one >= 0:
        i = one >> BEFORE
        j = one & INDEX
        shared = (one & SHARED) != 0
        room = tl.load(plan + i * n + j)
        bulk = amount > room
        if shared | ~bulk:
            owners = move_one(i, k, j, tl.minimum(amount, room), data)
            split = join(split, j, owners, apart, C)
        if bulk:
            rest = amount - tl.where(shared, room, 0.0)
            j = move_tied(i, k, at(least, i, k, C), rest, tiny, data, C)
            if j >= 0:
                split = join(split, j, tl.load(own + j), apart, C)
        # Nothing of this path enters or leaves slot k any more.
        least, which = rescan(k, least, which, data, C)
        k = i
        one = entry(hop, rows, k)
    least, which = rescan(k, least, which, data, C)
    return least, which, split
