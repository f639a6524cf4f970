# type: ignore  # Triton's language only looks like Python
"""Sinkhorn of many small matrices: a program has several of them, as a block (G, M, N).

The algorithm is that of :mod:`forward` and :mod:`backward` and the letters are those of
:mod:`tile`, with one more dimension for the matrix. Everything stays in registers, so the gradient
is complete after one walk back.

The potential u is a first one plus whole numbers, which can be taken back exactly. So ``trace``, as
(T + 3, batch, m), holds 1/r of all T iterations and three more vectors: the first u, what was added
to it before the last iteration, and the first kappa.
"""

# ruff: noqa: N803

import triton
import triton.language as tl

from slotmesh.ops._triton.tile import (
    ABSENT,
    LEAST,
    LEAST_MASS,
    LN2,
    LOG2E,
    SMALLEST,
    TINIEST,
    exponent_and_mantissa,
    kernel_of_any_size,
    log_or_zero,
    max_of,
    sum_of,
)


@triton.jit
def places(m, n, batch, C: tl.constexpr):
    """The first matrix of this program; offsets and whether they are inside: slots, inputs, all."""
    first = tl.program_id(0).to(tl.int64) * C.G
    matrix = tl.arange(0, C.G)
    rows = tl.arange(0, C.M)
    cols = tl.arange(0, C.N)
    there = first + matrix < batch
    slot = (matrix[:, None] * m + rows[None, :], there[:, None] & (rows < m)[None, :])
    column = (matrix[:, None] * n + cols[None, :], there[:, None] & (cols < n)[None, :])
    at = slot[0][:, :, None] * n + cols[None, None, :]
    return first, (matrix, there), slot, column, (at, slot[1][:, :, None] & column[1][:, None, :])


@triton.jit
def take(base, place, other):
    """Numbers at a place, in float32."""
    return tl.load(base + place[0], mask=place[1], other=other).to(tl.float32)


@triton.jit
def put(base, place, value):
    """Store numbers at a place."""
    tl.store(base + place[0], value.to(base.dtype.element_ty), mask=place[1])


@triton.jit
def some_masses(a, b, slot_mask, input_mask, first, slot, column, m, n, C: tl.constexpr):
    """Which slots (G, M) and inputs (G, N) are real, their masses, and those for logarithms."""
    there = slot[1]
    real = column[1]
    if C.slot_mask:
        there = tl.load(slot_mask + first * m + slot[0], mask=there, other=0) != 0
    if C.input_mask:
        real = tl.load(input_mask + first * n + column[0], mask=real, other=0) != 0
    if C.marginals:
        mass = take(a + first * m, slot, 0.0)
        input_mass = take(b + first * n, column, 0.0)
    else:
        mass = tl.where(there, 1.0, 0.0)
        count = sum_of(tl.where(real, 1.0, 0.0), 1)
        even = sum_of(mass, 1) / tl.where(count > 0, count, 1.0)
        input_mass = tl.where(real, even[:, None], 0.0)
    # If nothing has any mass, its logarithm counts as 0 (see log_marginal).
    counted = tl.where(mass >= SMALLEST, mass, 0.0)
    counted = tl.where((max_of(counted, 1) > 0)[:, None], counted, 1.0)
    input_counted = tl.where(input_mass >= SMALLEST, input_mass, 0.0)
    some = (max_of(input_counted, 1) > 0)[:, None]
    input_counted = tl.where(some, input_counted, tl.where(column[1], 1.0, 0.0))
    return there, real, mass, counted, input_mass, input_counted


@triton.jit
def held_and_spare(counted, there):
    """Masses with a least one, and what that adds as a factor."""
    held = tl.where(counted < LEAST_MASS, LEAST_MASS, counted)
    return held, tl.where(there, counted / held, 0.0)


@triton.jit
def kappa_after(behind, held, spare):
    """Kappa after an iteration, from its 1/r."""
    _, mantissa = exponent_and_mantissa(held * behind)
    return spare * mantissa


@triton.jit
def clean_all(c, there, real, C: tl.constexpr):
    """Zeros for padding, which may hold anything."""
    if C.slot_mask:
        c = tl.where(there[:, :, None], c, 0.0)
    if C.input_mask:
        c = tl.where(real[:, None, :], c, 0.0)
    return c


@triton.jit
def shares_of_all(c, scale, u, kappa, b):
    """Half-step over inputs: e, s and w, and the highest exponents."""
    x = c * scale + u[:, :, None]
    top = max_of(x, 1)
    e = tl.exp2(x - top[:, None, :])
    s = sum_of(e * kappa[:, :, None], 1)
    s = tl.where(s == 0, 1.0, s)
    return e, s, b / s, top


@triton.jit
def scale_all_slots(u, r, held, spare):
    """Half-step over slots: the next state (u, kappa), and 1/r.

    The exponent of ``a / r`` goes to u, its mantissa to kappa: both follow from 1/r alone.
    """
    inverse = 1.0 / tl.where(r < TINIEST, TINIEST, r)  # NaN stays
    exponent, mantissa = exponent_and_mantissa(held * inverse)
    return u + exponent, spare * mantissa, inverse


@triton.jit
def temperatures(tau, temperature, first, member, C: tl.constexpr):
    """The temperature of each matrix (G,)."""
    each = tl.full((C.G,), 0.0, tl.float32) + temperature
    if C.tau:
        each = take(tau + first, member, 1.0)
    return each


@kernel_of_any_size
def forward_small_kernel(
    cost, a, b, slot_mask, input_mask, tau, init,
    plan, u_out, v_out, error, count, converged, tau_out, trace,
    temperature, small_error, m, n, batch, n_iters,
    C: tl.constexpr,
):  # fmt: skip
    """Costs (batch, m, n) to plan, potentials, error and the trace."""
    first, member, slot, column, entry = places(m, n, batch, C)
    there, real, mass, counted, input_mass, b = some_masses(
        a, b, slot_mask, input_mask, first, slot, column, m, n, C
    )
    tau_of = temperatures(tau, temperature, first, member, C)
    scale = (-1.0 / tau_of * LOG2E)[:, None, None]
    c = clean_all(take(cost + first * m * n, entry, 0.0), there, real, C)
    held, spare = held_and_spare(counted, there)

    start = tl.full((C.G, C.M), 0.0, tl.float32)
    if C.init:
        start = take(init + first * m, slot, 0.0)
    takes_part = there & (start > -float("inf"))
    u = tl.where(there, tl.where(takes_part, start * LOG2E, 0.0), ABSENT)
    x = c * scale + u[:, :, None]
    top = max_of(tl.where(takes_part[:, :, None], x, -float("inf")), 1)
    log = tl.where(b > 0, log_or_zero(b) - top, -float("inf"))
    lack = max_of(x + log[:, None, :], 2) - LEAST
    lack = tl.where(takes_part & (lack > 0), 0.0, lack)
    kappa = tl.where(takes_part, tl.exp2(tl.where(takes_part, lack, 0.0)), 0.0)
    u = tl.where(there, u - lack, ABSENT)

    stride = batch.to(tl.int64) * m
    trace += first * m
    put(trace + n_iters * stride, slot, u)
    put(trace + (n_iters + 1) * stride, slot, kappa)
    added = tl.full((C.G, C.M), 0.0, tl.float32)
    last = added
    inverse = added
    e = c
    s = b
    w = b
    for t in range(n_iters):
        last = added + 0.0  # Triton takes a mere name of what was there before for unchanged
        e, s, w, top = shares_of_all(c, scale, u + added, kappa, b)
        added, kappa, inverse = scale_all_slots(added, sum_of(e * w[:, None, :], 2), held, spare)
        put(trace + t * stride, slot, inverse)
    put(trace + (n_iters + 2) * stride, slot, last)

    p = e * (w[:, None, :] * (mass * inverse)[:, :, None])
    put(plan + first * m * n, entry, p)
    v = tl.where(b > 0, LN2 * (log_or_zero(b) - tl.log2(s) - top), -float("inf"))
    put(v_out + first * n, column, v)
    log = tl.log2(inverse) + log_or_zero(counted)
    u = tl.where(there & (counted > 0), LN2 * (u + last + log), -float("inf"))
    put(u_out + first * m, slot, u)
    wrong = sum_of(tl.abs(sum_of(p, 2) - mass), 1) + sum_of(tl.abs(sum_of(p, 1) - input_mass), 1)
    total = sum_of(mass, 1)
    wrong = wrong / tl.where(total < TINIEST, TINIEST, total)
    put(error + first, member, wrong)
    put(count + first, member, member[0] * 0 + n_iters)
    tl.store(converged + first + member[0], wrong <= small_error, mask=member[1])
    put(tau_out + first, member, tau_of)


@kernel_of_any_size
def backward_small_kernel(
    cost, trace, a, b, slot_mask, input_mask, tau, grad_plan, grad_u, grad_v,
    g_cost, g_a, g_b, g_tau, g_init,
    temperature, m, n, batch, n_iters,
    C: tl.constexpr,
):  # fmt: skip
    """Gradients of plan, u and v to those of cost, a, b, temperature and init."""
    first, member, slot, column, entry = places(m, n, batch, C)
    there, real, mass, counted, input_mass, b = some_masses(
        a, b, slot_mask, input_mask, first, slot, column, m, n, C
    )
    tau_of = temperatures(tau, temperature, first, member, C)
    scale = (-1.0 / tau_of * LOG2E)[:, None, None]
    c = clean_all(take(cost + first * m * n, entry, 0.0), there, real, C)
    held, spare = held_and_spare(counted, there)
    stride = batch.to(tl.int64) * m
    trace += first * m
    u = take(trace + n_iters * stride, slot, ABSENT)
    first_kappa = take(trace + (n_iters + 1) * stride, slot, 0.0)
    inverse = tl.where(there, take(trace + (n_iters - 1) * stride, slot, 0.0), 0.0)
    added = tl.full((C.G, C.M), 0.0, tl.float32)
    kappa = first_kappa
    if n_iters > 1:
        added = take(trace + (n_iters + 2) * stride, slot, 0.0)
        kappa = kappa_after(take(trace + (n_iters - 2) * stride, slot, 1.0), held, spare)

    e, s, w, _ = shares_of_all(c, scale, u + added, kappa, b)
    weight = mass * inverse
    log_a_grad = tl.full((C.G, C.M), 0.0, tl.float32)
    grad_mass = log_a_grad
    d = tl.full((C.G, C.M, C.N), 0.0, tl.float32)
    if C.grad_plan:
        d = take(grad_plan + first * m * n, entry, 0.0)
        grad_mass = sum_of(e * (w[:, None, :] * d), 2) * inverse
    if C.grad_u:
        log_a_grad = take(grad_u + first * m, slot, 0.0)
    offset = weight * grad_mass + log_a_grad * inverse
    g = e * (w[:, None, :] * (weight[:, :, None] * d - offset[:, :, None]))
    y = sum_of(g, 1)
    if C.grad_v:
        y += take(grad_v + first * n, column, 0.0)
    log_b_grad = y
    share = e * (y / s)[:, None, :]
    g -= kappa[:, :, None] * share
    x = -kappa * sum_of(share, 2)
    for q in range(n_iters - 1):
        t = n_iters - 2 - q
        behind = take(trace + t * stride, slot, 1.0)
        log_a_grad += x
        flow = x * behind
        exponent, _ = exponent_and_mantissa(held * behind)
        added -= exponent
        own = first_kappa
        if t > 0:
            own = kappa_after(take(trace + (t - 1) * stride, slot, 1.0), held, spare)
        e, s, w, _ = shares_of_all(c, scale, u + added, own, b)
        y = -w * sum_of(e * flow[:, :, None], 1)
        log_b_grad += y
        share = e * (y / s)[:, None, :]
        g -= e * (flow[:, :, None] * w[:, None, :]) + own[:, :, None] * share
        x = -own * sum_of(share, 2)

    if C.grad_tau:
        put(g_tau + first, member, sum_of(sum_of(g * c, 2) / (tau_of * tau_of)[:, None], 1))
    g = clean_all(g * (-1.0 / tau_of)[:, None, None], there, real, C)
    put(g_cost + first * m * n, entry, g)
    if C.grad_marginals:
        has_log = (mass >= SMALLEST) & there
        grad_a = grad_mass + tl.where(has_log, log_a_grad / tl.where(has_log, mass, 1.0), 0.0)
        put(g_a + first * m, slot, grad_a)
        has_log = input_mass >= SMALLEST
        grad_b = tl.where(has_log, log_b_grad / tl.where(has_log, input_mass, 1.0), 0.0)
        put(g_b + first * n, column, grad_b)
    if C.grad_init:
        put(g_init + first * m, slot, x)
