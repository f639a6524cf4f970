# type: ignore  # Triton's language only looks like Python
"""Shortest paths from slots with too much to slots with too little, over arcs between slots.

A path is a vector (M,) of hops. The hop of a slot is one integer: the slot before it, the arc from
there, and the bit ``SHARED`` where its input is in both slots already; -1 where a path starts.
"""

# ruff: noqa: N803

import triton
import triton.language as tl

from slotmesh.ops._triton.emd_arcs import TIE
from slotmesh.ops._triton.tile import entry, max_of, sum_of

SHARED = tl.constexpr(1 << 15)
# The slot before is above these bits.
BEFORE = tl.constexpr(17)
MANY = tl.constexpr(1 << 20)


@triton.jit
def nearer(d1, news1, i1, d2, news2, i2):
    """The nearer of two slots; of equally near ones that with fewer new entries, then the first."""
    first = (d1 < d2) | ((d1 == d2) & ((news1 < news2) | ((news1 == news2) & (i1 < i2))))
    return tl.where(first, d1, d2), tl.where(first, news1, news2), tl.where(first, i1, i2)


@triton.jit
def search(reduced, fresh, sources, C: tl.constexpr):
    """Distance of each slot from the sources, new entries on the way, the slot before (M,)."""
    rows = tl.arange(0, C.M)
    index = tl.broadcast_to(rows[:, None], (C.M, C.M))
    d = tl.where(sources, 0.0, float("inf")).to(tl.float64)
    news = tl.where(sources, 0, MANY)
    before = tl.full((C.M,), -1, tl.int32)
    changed = max_of(before, 0) + 2
    while changed > 0:
        through = (d[:, None] + reduced, news[:, None] + fresh, index)
        best, fewest, nearest = tl.reduce(through, 0, nearer)
        better = (best < d) | ((best == d) & (best < float("inf")) & (fewest < news))
        d = tl.where(better, best, d)
        news = tl.where(better, fewest, news)
        before = tl.where(better, nearest, before)
        changed = max_of(tl.where(better, 1, 0), 0)
    return d, news, before


@triton.jit
def nearest_of(slots, d, news, C: tl.constexpr):
    """The nearest of some slots, and how far it is."""
    rows = tl.arange(0, C.M)
    d, news = tl.where(slots, d, float("inf")), tl.where(slots, news, MANY)
    near, _, nearest = tl.reduce((d, news, rows), 0, nearer)
    return nearest, near


@triton.jit
def hops(before, which, split, C: tl.constexpr):
    """The hop to each slot (M,): over an input that both slots share, else over the cheapest."""
    rows = tl.arange(0, C.M)
    arcs = tl.where(split >= 0, split | SHARED | (tl.maximum(which, 0) & TIE), which)
    arc = sum_of(tl.where(rows[:, None] == before[None, :], arcs, 0), 0)
    return tl.where(before >= 0, (before << BEFORE) | arc, -1)


@triton.jit
def trace(hop, sink, C: tl.constexpr):
    """Where the path to a sink starts, the slots on it (M,), and TIE if an arc has it."""
    rows = tl.arange(0, C.M)
    source = sink
    on = rows == sink
    tie = sink * 0
    one = entry(hop, rows, sink)
    while one >= 0:
        tie = tie | (one & TIE)
        source = one >> BEFORE
        on = on | (rows == source)
        one = entry(hop, rows, source)
    return source, on, tie
