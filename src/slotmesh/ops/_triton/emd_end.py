# type: ignore  # Triton's language only looks like Python
"""After a plan is optimal: potentials of elements without mass, and a check of the sums."""

# ruff: noqa: N803, RUF059

import triton
import triton.language as tl

from slotmesh.ops._triton.tile import any_of, min_of, sum_of


@triton.jit
def load_costs(cols, data, C: tl.constexpr):
    """A block of costs (M, block) in float64."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    return tl.load(cost + rows[:, None] * n + cols[None, :], mask=inside, other=0.0).to(tl.float64)


@triton.jit
def complete(u, heavy, slots, data, C: tl.constexpr):
    """Give real slots without mass the largest potentials that the inputs allow; padding gets 0."""
    cost, plan, own, b, m, n = data
    room = tl.full((C.M,), float("inf"), tl.float64)
    if any_of(slots & ~heavy, 0):
        acc = tl.full((C.M, C.block), float("inf"), tl.float64)
        for s in range((n + C.block - 1) // C.block):
            cols = s * C.block + tl.arange(0, C.block)
            c = load_costs(cols, data, C)
            v = min_of(tl.where(heavy[:, None], c - u[:, None], float("inf")), 0)
            has = tl.load(b + cols, mask=cols < n, other=0.0) > 0
            acc = tl.minimum(acc, tl.where(has[None, :], c - v[None, :], float("inf")))
        room = min_of(acc, 1)
    free = slots & (tl.abs(room) < float("inf"))
    return tl.where(heavy, u, tl.where(free, room, 0.0))


@triton.jit
def price(u, heavy, slots, input_mask, v_out, data, INPUTS: tl.constexpr, C: tl.constexpr):
    """Write the largest potentials of the inputs that the slots allow; padding gets 0."""
    cost, plan, own, b, m, n = data
    for s in range((n + C.block - 1) // C.block):
        cols = s * C.block + tl.arange(0, C.block)
        c = load_costs(cols, data, C)
        # If an input has no mass, slots without mass bound its potential too.
        has = tl.load(b + cols, mask=cols < n, other=0.0) > 0
        bound = (heavy[:, None] & has[None, :]) | (slots[:, None] & ~has[None, :])
        v = min_of(tl.where(bound, c - u[:, None], float("inf")), 0)
        if INPUTS:
            v = tl.where(tl.load(input_mask + cols, mask=cols < n, other=0) != 0, v, 0.0)
        tl.store(v_out + cols, tl.where(tl.abs(v) < float("inf"), v, 0.0), mask=cols < n)


@triton.jit
def misplaced(mass, finite, data, C: tl.constexpr):
    """Mass that is in the wrong place; writes NaN over a plan of costs that are not finite."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    acc = tl.full((C.M, C.block), 0.0, tl.float64)
    wrong = tl.full((C.block,), 0.0, tl.float64)
    for s in range((n + C.block - 1) // C.block):
        cols = s * C.block + tl.arange(0, C.block)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        offsets = rows[:, None] * n + cols[None, :]
        f = tl.load(plan + offsets, mask=inside, other=0.0)
        acc += f
        wrong += tl.abs(sum_of(f, 0) - tl.load(b + cols, mask=cols < n, other=0.0))
        if ~finite:
            tl.store(plan + offsets, f * 0.0 + float("nan"), mask=inside)
    error = sum_of(tl.abs(sum_of(acc, 1) - mass), 0) + sum_of(wrong, 0)
    return tl.where(finite, error, float("nan"))
