# type: ignore  # Triton's language only looks like Python
"""Slot potentials near those of exact transport: Newton's method on the smoothed dual.

With all inputs shared out by softmax the dual is a smooth concave function of m potentials, and a
pass over the inputs gives its gradient and its m x m Hessian together. The temperature falls from
the spread of the costs to almost zero. Nothing here has to be exact: augmenting paths fix the rest,
one for each input that is still in the wrong slot.
"""

# ruff: noqa: N803, RUF059

import triton
import triton.language as tl

from slotmesh.ops._triton.tile import LOG2E, any_of, eliminate, max_of, min_of, sum_of

# The spread of the costs over the first temperature, and each temperature over the next.
FIRST = tl.constexpr(4.0)
COOLING = tl.constexpr(3.5)
# The longest step of a potential in units of the temperature.
LONGEST = tl.constexpr(4.0)
# Keeps the Hessian from being singular, as a share of a slot's mass.
DAMPING = tl.constexpr(0.01)
# If a slot is off by this share of all mass, or of a slot's mean mass, another step is taken at the
# same temperature, up to so many.
OFF = tl.constexpr(0.05)
OFF_OWN = tl.constexpr(0.5)
MOST_STEPS = tl.constexpr(6)


@triton.jit
def rescale(b, total, data, C: tl.constexpr):
    """Bring the masses of the inputs to the total of the slots, in float64."""
    cost, plan, own, even, m, n = data
    acc = tl.full((C.strip,), 0.0, tl.float64)
    for s in range((n + C.strip - 1) // C.strip):
        cols = s * C.strip + tl.arange(0, C.strip)
        acc += tl.load(b + cols, mask=cols < n, other=0.0).to(tl.float64)
    given = sum_of(acc, 0)
    factor = tl.where(given > 0, total / tl.where(given > 0, given, 1.0), 0.0)
    for s in range((n + C.strip - 1) // C.strip):
        cols = s * C.strip + tl.arange(0, C.strip)
        mass = tl.load(b + cols, mask=cols < n, other=0.0).to(tl.float64)
        tl.store(even + cols, mass * factor, mask=cols < n)
    tl.debug_barrier()


@triton.jit
def costs(data, cols, takes, C: tl.constexpr):
    """A block (M, N) of costs, 0 where a slot takes no part; float64 only if the costs are."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    inside = takes[:, None] & (cols < n)[None, :]
    c = tl.load(cost + rows[:, None] * n + cols[None, :], mask=inside, other=0.0)
    if cost.dtype.element_ty == tl.float64:
        return c
    else:
        return c.to(tl.float32)


@triton.jit
def spread(data, takes, C: tl.constexpr):
    """Mean distance of costs from the mean of their column, and whether all are finite."""
    cost, plan, own, b, m, n = data
    count = sum_of(tl.where(takes, 1.0, 0.0), 0)
    acc = tl.full((C.N,), 0.0, tl.float64)
    heavy = tl.full((C.N,), 0.0, tl.float64)
    bad = tl.full((C.N,), 0, tl.int32)
    for k in range((n + C.N - 1) // C.N):
        cols = k * C.N + tl.arange(0, C.N)
        has = tl.load(b + cols, mask=cols < n, other=0.0) > 0
        c = costs(data, cols, takes, C)
        # The cost of an input without mass does not matter.
        bad += tl.where(has & any_of(~(tl.abs(c) < float("inf")), 0), 1, 0)
        mean = sum_of(c, 0) / count
        away = sum_of(tl.where(takes[:, None], tl.abs(c - mean[None, :]), 0.0), 0)
        acc += tl.where(has, away.to(tl.float64), 0.0)
        heavy += tl.where(has, 1.0, 0.0)
    finite = max_of(bad, 0) == 0
    return sum_of(acc, 0) / (count * tl.maximum(sum_of(heavy, 0), 1.0)), finite


@triton.jit
def slope(u, inverse, sharpness, data, takes, share, scratch, C: tl.constexpr):
    """Mass of each slot (M,) as a share of all, and of each pair of slots in common (M, M)."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    acc = tl.full((C.M, C.N), 0.0, tl.float32)
    # In as many parts as there are warps: each multiplies its own inputs.
    common = tl.full((C.warps, C.M, C.M), 0.0, tl.float32)
    for k in range((n + C.N - 1) // C.N):
        cols = k * C.N + tl.arange(0, C.N)
        mass = tl.load(b + cols, mask=cols < n, other=0.0)
        w = (mass * share).to(tl.float32)
        c = costs(data, cols, takes, C)
        least = min_of(tl.where(takes[:, None], c, float("inf")), 0)
        x = u[:, None] - ((c - least[None, :]) * inverse).to(tl.float32)
        x = tl.where(takes[:, None], x * (sharpness * LOG2E), -float("inf"))
        e = tl.exp2(x - max_of(x, 0)[None, :])
        q = e / sum_of(e, 0)[None, :]
        q = tl.where((w > 0)[None, :], q, 0.0)
        acc += q * w[None, :]
        # Times n, so that half precision holds it.
        y = (q * tl.sqrt(w * n)[None, :]).to(tl.float16)
        y = tl.permute(tl.reshape(y, (C.M, C.warps, C.N // C.warps)), (1, 0, 2))
        common = tl.dot(y, tl.permute(y, (0, 2, 1)), common)
    # Through memory; otherwise all of this would get the layout of the matrix units.
    entries = rows[:, None] * C.M + rows[None, :]
    tl.store(scratch + entries, sum_of(common, 0) / n)
    tl.debug_barrier()
    common = tl.load(scratch + entries)
    tl.debug_barrier()
    return sum_of(acc, 1), common


@triton.jit
def start(data, takes, a, total, size, scratch, C: tl.constexpr):
    """Potentials (M,) in float64; ``size`` is the spread of the costs."""
    cost, plan, own, b, m, n = data
    rows = tl.arange(0, C.M)
    diagonal = rows[:, None] == rows[None, :]
    inverse = tl.where(size > 0, 1.0 / tl.where(size > 0, size, 1.0), 0.0)
    if cost.dtype.element_ty != tl.float64:
        inverse = inverse.to(tl.float32)
    share = 1.0 / total
    wanted = (a * share).to(tl.float32)
    u = tl.full((C.M,), 0.0, tl.float32)
    sharpness = sum_of(wanted, 0) * 0.0 + FIRST
    most_off = tl.minimum(OFF, OFF_OWN / m)
    for _ in range(C.temperatures):
        taken = tl.program_id(0) * 0
        going = taken < MOST_STEPS
        while going:
            got, common = slope(u, inverse, sharpness, data, takes, share, scratch, C)
            common = tl.where(diagonal, 0.0, common)
            own_share = sum_of(common, 1) + DAMPING * tl.minimum(wanted, got) + 1e-7 * wanted
            own_share = tl.where(takes, own_share + 1e-20, 1.0)
            h = tl.where(diagonal, own_share[:, None], -common)
            x = eliminate(h, wanted - got, m, C.M)
            x = tl.minimum(tl.maximum(x, -LONGEST), LONGEST)
            u += tl.where(takes & (x == x), x / sharpness, 0.0)
            taken += 1
            going = any_of(tl.abs(wanted - got) > most_off, 0) & (taken < MOST_STEPS)
        sharpness *= COOLING
    far = u.to(tl.float64) * size
    return tl.where(takes & (tl.abs(far) < float("inf")), far, 0.0)
