# type: ignore  # Triton's language only looks like Python
"""Arcs from slot to slot: the input that costs least to move, and whether others cost the same.

``own`` holds for each input the slots that it has mass in, as bits. An arc is one integer: its
input, with the bit ``TIE`` where other inputs may cost the same. Costs are in float64.
"""

# ruff: noqa: N803, RUF059

import triton
import triton.language as tl

from slotmesh.ops._triton.tile import sum_of

# Inputs are below 2**15; the bit between is for paths.
TIE = tl.constexpr(1 << 16)
INDEX = tl.constexpr((1 << 15) - 1)


@triton.jit
def bit(i):
    """The bit of slot i."""
    return tl.full((), 1, tl.int32) << i


@triton.jit
def at(x, i, k, C: tl.constexpr):
    """x[i, k] of a matrix (M, M)."""
    rows = tl.arange(0, C.M)
    chosen = (rows == i)[:, None] & (rows == k)[None, :]
    return sum_of(sum_of(tl.where(chosen, x, 0), 1), 0)


@triton.jit
def put(x, i, k, value, C: tl.constexpr):
    """Set x[i, k]."""
    rows = tl.arange(0, C.M)
    return tl.where((rows == i)[:, None] & (rows == k)[None, :], value, x)


@triton.jit
def put_row(x, i, value, C: tl.constexpr):
    """Set x[i] to a vector (M,)."""
    rows = tl.arange(0, C.M)
    return tl.where((rows == i)[:, None], value[None, :], x)


@triton.jit
def cheaper(d1, arc1, d2, arc2):
    """The cheaper of two; of two that cost the same the first input, with TIE."""
    both = tl.minimum(arc1 & INDEX, arc2 & INDEX) | TIE
    return tl.minimum(d1, d2), tl.where(d1 < d2, arc1, tl.where(d2 < d1, arc2, both))


@triton.jit
def extra(i, k, cols, data):
    """The extra cost of inputs in slot k instead of slot i, and the slots they are in."""
    cost, plan, own, b, m, n = data
    inside = cols < n
    there = tl.load(cost + k * n + cols, mask=inside, other=0.0).to(tl.float64)
    here = tl.load(cost + i * n + cols, mask=inside, other=0.0).to(tl.float64)
    return there - here, tl.load(own + cols, mask=inside, other=0)


@triton.jit
def scan_pair(i, k, data, C: tl.constexpr):
    """The least cost of moving an input of slot i to slot k, and its arc (-1 for none)."""
    cost, plan, own, b, m, n = data
    least = tl.full((C.strip,), float("inf"), tl.float64)
    arc = tl.full((C.strip,), INDEX, tl.int32)
    for s in range((n + C.strip - 1) // C.strip):
        cols = s * C.strip + tl.arange(0, C.strip)
        d, owners = extra(i, k, cols, data)
        d = tl.where((owners & bit(i)) != 0, d, float("inf"))
        arc = tl.where(d < least, cols, tl.where(d == least, arc | TIE, arc))
        least = tl.minimum(d, least)
    least, arc = tl.reduce((least, arc), 0, cheaper)
    return least, tl.where(least < float("inf"), arc, -1)


@triton.jit
def scan_row(i, data, C: tl.constexpr):
    """scan_pair from slot i to every slot (M,)."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    least = tl.full((C.M, C.block), float("inf"), tl.float64)
    arc = tl.full((C.M, C.block), INDEX, tl.int32)
    for s in range((n + C.block - 1) // C.block):
        cols = s * C.block + tl.arange(0, C.block)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        there = tl.load(cost + rows[:, None] * n + cols[None, :], mask=inside, other=0.0)
        here = tl.load(cost + i * n + cols, mask=cols < n, other=0.0)
        owners = tl.load(own + cols, mask=cols < n, other=0)
        d = there.to(tl.float64) - here.to(tl.float64)[None, :]
        d = tl.where(((owners & bit(i)) != 0)[None, :], d, float("inf"))
        arc = tl.where(d < least, cols[None, :], tl.where(d == least, arc | TIE, arc))
        least = tl.minimum(d, least)
    least, arc = tl.reduce((least, arc), 1, cheaper)
    return least, tl.where(least < float("inf"), arc, -1)


@triton.jit
def rescan(i, least, which, data, C: tl.constexpr):
    """Set the arcs (M, M) that leave slot i, and what they cost."""
    row, arcs = scan_row(i, data, C)
    return put_row(least, i, row, C), put_row(which, i, arcs, C)
