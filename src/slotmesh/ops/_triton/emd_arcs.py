# type: ignore  # kernels are a language of their own, which only looks like Python
"""Inputs that move from slot to slot: the cheapest to move, those tied with it, the move itself.

``own`` holds for each input the slots that it has mass in, as bits. Everything is in float64.
"""

# ruff: noqa: N803, RUF059

import triton
import triton.language as tl

from slotmesh.ops._triton.pick import min_of
from slotmesh.ops._triton.tile import max_of, sum_of


@triton.jit
def bit(i):
    """The bit of slot i."""
    return (i * 0 + 1) << i


@triton.jit
def extra(i, k, cols, data):
    """What inputs cost more in slot k than in slot i, and the slots they are in."""
    cost, plan, own, b, m, n = data
    inside = cols < n
    there = tl.load(cost + k * n + cols, mask=inside, other=0.0).to(tl.float64)
    here = tl.load(cost + i * n + cols, mask=inside, other=0.0).to(tl.float64)
    return there - here, tl.load(own + cols, mask=inside, other=0)


@triton.jit
def scan_pair(i, k, data, C: tl.constexpr):
    """The least cost of moving an input of slot i to slot k, and which (-1 for none)."""
    cost, plan, own, b, m, n = data
    best = tl.full((C.strip,), float("inf"), tl.float64)
    which = tl.full((C.strip,), -1, tl.int32)
    for s in range((n + C.strip - 1) // C.strip):
        cols = s * C.strip + tl.arange(0, C.strip)
        d, owners = extra(i, k, cols, data)
        better = ((owners & bit(i)) != 0) & (d < best)
        best = tl.where(better, d, best)
        which = tl.where(better, cols, which)
    least = min_of(best, 0)
    first = min_of(tl.where((best == least) & (which >= 0), which, n), 0)
    return least, tl.where(first < n, first, -1)


@triton.jit
def scan_row(i, data, C: tl.constexpr):
    """scan_pair from slot i to every slot (M,)."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    best = tl.full((C.M, C.block), float("inf"), tl.float64)
    which = tl.full((C.M, C.block), -1, tl.int32)
    for s in range((n + C.block - 1) // C.block):
        cols = s * C.block + tl.arange(0, C.block)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        there = tl.load(cost + rows[:, None] * n + cols[None, :], mask=inside, other=0.0)
        here = tl.load(cost + i * n + cols, mask=cols < n, other=0.0)
        owners = tl.load(own + cols, mask=cols < n, other=0)
        d = there.to(tl.float64) - here.to(tl.float64)[None, :]
        better = ((owners & bit(i)) != 0)[None, :] & (d < best)
        best = tl.where(better, d, best)
        which = tl.where(better, cols[None, :], which)
    least = min_of(best, 1)
    first = min_of(tl.where((best == least[:, None]) & (which >= 0), which, n), 1)
    return least, tl.where(first < n, first, -1)


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
        upto = before + tl.associative_scan(mass, 0, tl.standard._sum_combine)
        last = min_of(tl.where(equal & (upto > amount + tiny), cols, n), 0)
        last = tl.where(done > 0, 0, last)
        whole = equal & (cols < last)
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
def move_one(i, k, j, amount, data):
    """Move an amount of input j."""
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
