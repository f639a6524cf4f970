# type: ignore  # Triton's language only looks like Python
"""The forward kernel: MESH's steps on the cost, then Sinkhorn; without steps, Sinkhorn alone.

One program (or ``C.split`` of them) owns a batch element. It walks over its inputs block by block,
once per iteration; with ``C.resident`` there is one block, which stays in registers. ``trace``
keeps what reverse mode needs, for a Sinkhorn of T iterations 3 T vectors over slots: u before each
iteration, kappa before each, 1/r of each.
"""

# ruff: noqa: N803, RUF059

import triton
import triton.language as tl

from slotmesh.ops._triton.exchange import (
    count_inputs,
    exchange,
    exchange_numbers,
    exchange_pair,
    my_post,
)
from slotmesh.ops._triton.tile import (
    ABSENT,
    LEAST,
    LEAST_MASS,
    LN2,
    LOG2E,
    TINIEST,
    block,
    clean,
    columns,
    costs,
    gibbs,
    gibbs_block,
    in_memory,
    input_masses,
    kernel_of_any_size,
    log_or_zero,
    max_of,
    my_memory,
    my_part,
    no_block,
    quick_log2,
    read,
    read_matrix,
    read_slots,
    recall,
    record_of,
    row_of_inputs,
    scale_slots,
    shares,
    slot_masses,
    sum_of,
    write,
    write_matrix,
    write_row,
    write_slots,
)

# A gradient shorter than this is not scaled up to length 1, as in slotmesh.ops._naive.
SHORTEST = tl.constexpr(1e-12)
EPSILON = tl.constexpr(2.0**-23)
# Vectors over slots that wait in memory (see ``recall``): rows behind those of ``flows``.
HELD, SPARE, MASS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
NEXT_U, NEXT_KAPPA = tl.constexpr(3), tl.constexpr(4)
WEIGHT, MEAN = tl.constexpr(5), tl.constexpr(6)
NOTES = tl.constexpr(7)


@triton.jit
def cold_start(first, c, source, there, place, masses, chunks, scale, post, turn, C: tl.constexpr):
    """The state (u, kappa) of the first potentials (M,), for costs of any size.

    The shares of a slot that is far from every input are all too small for a float, although their
    ratios matter: its u is raised until the largest share is 2^-40, and kappa compensates.
    """
    takes_part = there & (first > -float("inf"))
    u = tl.where(there, tl.where(takes_part, first * LOG2E, 0.0), ABSENT)
    acc = tl.full((C.M, C.N), -float("inf"), tl.float32)
    for k in range(chunks):
        tile, cols, input_mass, counted = block(k, c, source, there, place, masses, C)
        x = tile * scale + u[:, None]
        top = max_of(tl.where(takes_part[:, None], x, -float("inf")), 0)
        log = tl.where(counted > 0, log_or_zero(counted) - top, -float("inf"))
        acc = tl.maximum(acc, x + log[None, :])
    best, turn = exchange(max_of(acc, 1), post, turn, C.M, C, True)
    lack = best - LEAST
    lack = tl.where(takes_part & (lack > 0), 0.0, lack)
    kappa = tl.where(takes_part, tl.exp2(tl.where(takes_part, lack, 0.0)), 0.0)
    return tl.where(there, u - lack, ABSENT), kappa, turn


@triton.jit
def log_plan(p, kappa):
    """log2 of e w, plus a constant of each slot that makes it a number of moderate size.

    Its mean in a row is subtracted from it, and what equal entries leave must not be more than the
    rounding of the costs. A kappa that is far below 1, as of slots far from every input at first,
    would let the product underflow.
    """
    near = tl.where(kappa > LEAST_MASS, kappa, 1.0)
    return quick_log2(p * near[:, None])


@triton.jit
def forth(
    t, stale, u, kappa, kept, c, source, memory, there, place, masses, slots, record, notes,
    n_iters, chunks, scale, post, turn, ENTROPY: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """One iteration of Sinkhorn from the state (u, kappa): the next state, 1/r, and if u moved.

    With ENTROPY also the row sums of r's summands times their logarithm. Only the last iteration
    has them, so it has code of its own: their block would take registers from all others.
    """
    acc = tl.full((C.M, C.N), 0.0, tl.float32)
    log_acc = tl.full((C.M, C.N), 0.0, tl.float32)
    for k in range(chunks):
        mass, b = input_masses(columns(k, place, C), place, masses, C)
        e, kept = gibbs_block(
            k, stale, kept, u, c, source, memory, there, scale, place, masses, C
        )  # fmt: skip
        s, w = shares(e, kappa, b)
        p = e * w[None, :]
        acc += p
        if ENTROPY:
            log_acc += p * log_plan(p, kappa)
    write_slots(record, t, u, C)
    write_slots(record, n_iters + t, kappa, C)
    h = kappa
    if ENTROPY:
        r, h, turn = exchange_pair(sum_of(acc, 1), sum_of(log_acc, 1), post, turn, C)
    else:
        r, turn = exchange(sum_of(acc, 1), post, turn, C.M, C)
    held = recall(slots[0], notes, HELD, C)
    spare = recall(slots[1], notes, SPARE, C)
    next_u, next_kappa, inverse, moved = scale_slots(u, r, held, spare)
    write_slots(record, 2 * n_iters + t, inverse, C)
    if stale:
        # The threads need what others wrote.
        tl.debug_barrier()
    return next_u, next_kappa, inverse, h, moved, kept, turn


@triton.jit
def iterate(
    u, kappa, kept, c, source, memory, there, place, masses, slots, record, notes, n_iters, chunks,
    scale, post, turn, ENTROPY: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Sinkhorn from the state (u, kappa).

    Returns the states before and after the last iteration, its 1/r, with ENTROPY the row sums of
    r's summands times their logarithm, and the first iteration whose e is that of the last.
    """
    stale = n_iters > 0
    since = n_iters * 0
    for t in range(n_iters - 1):
        u, kappa, inverse, h, stale, kept, turn = forth(
            t, stale, u, kappa, kept, c, source, memory, there, place, masses, slots, record,
            notes, n_iters, chunks, scale, post, turn, False, C,
        )  # fmt: skip
        since = tl.where(stale, t + 1, since)
    next_u, next_kappa, inverse, h, moved, kept, turn = forth(
        n_iters - 1, stale, u, kappa, kept, c, source, memory, there, place, masses, slots, record,
        notes, n_iters, chunks, scale, post, turn, ENTROPY, C,
    )  # fmt: skip
    return u, kappa, next_u, next_kappa, inverse, h, since, kept, turn


@triton.jit
def take_down(end, notes, C: tl.constexpr):
    """Write the end of a Sinkhorn that is not in its record, for :func:`look_up`."""
    next_u, next_kappa, weight, mean = end
    write_slots(notes, NEXT_U, next_u, C)
    write_slots(notes, NEXT_KAPPA, next_kappa, C)
    write_slots(notes, WEIGHT, weight, C)
    write_slots(notes, MEAN, mean, C)


@triton.jit
def look_up(end, record, notes, n_iters, C: tl.constexpr):
    """The state before the last iteration, its 1/r, and weight and mean of its entropy."""
    u, kappa, inverse, weight, mean = end
    u = recall(u, record, n_iters - 1, C)
    kappa = recall(kappa, record, 2 * n_iters - 1, C)
    inverse = recall(inverse, record, 3 * n_iters - 1, C)
    weight = recall(weight, notes, WEIGHT, C)
    mean = recall(mean, notes, MEAN, C)
    return u, kappa, inverse, weight, mean


@triton.jit
def back(
    t, since, u, kappa, flow, weight, mean, kept, c, source, memory, there, place, masses, record,
    flows, n_iters, chunks, scale, post, turn, FIRST: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Reverse mode through iteration t: what flows into the u before it.

    What e w is multiplied with is at FIRST, where the entropy enters, ``weight (log P - mean of log
    P in the row)`` with P the plan: a constant added to log P changes nothing, since row sums are
    fixed, so only the well-conditioned part is left. Later it is what flows into each u, over r.
    """
    inverse = read_slots(record, 2 * n_iters + t - 1, C)
    acc = tl.full((C.M, C.N), 0.0, tl.float32)
    for k in range(chunks):
        mass, b = input_masses(columns(k, place, C), place, masses, C)
        # The e in memory is that of the last iteration.
        e, kept = gibbs_block(
            k, False if FIRST else t < since, kept, u, c, source, memory, there, scale, place,
            masses, C,
        )  # fmt: skip
        s, w = shares(e, kappa, b)
        if FIRST:
            p = e * w[None, :]
            y = sum_of(p * (weight[:, None] * (log_plan(p, kappa) - mean[:, None])), 0)
        else:
            y = w * sum_of(e * flow[:, None], 0)
        acc += e * (y / s)[None, :]
    x, turn = exchange(sum_of(acc, 1), post, turn, C.M, C)
    flow = kappa * x * inverse
    if FIRST:
        flow = -flow
    write_slots(flows, t, flow, C)
    return flow, kept, turn


@triton.jit
def walk_back(
    end, since, kept, c, source, memory, there, place, masses, record, flows, notes, n_iters,
    chunks, scale, post, turn, C: tl.constexpr,
):  # fmt: skip
    """Reverse mode through the iterations down to the first: what flows into each u.

    ``flows`` gets, for each iteration but the last, the derivative with respect to u over r.
    """
    if n_iters > 1:
        u, kappa, inverse, weight, mean = look_up(end, record, notes, n_iters, C)
        flow, kept, turn = back(
            n_iters - 1, since, u, kappa, weight, weight, mean, kept, c, source, memory, there,
            place, masses, record, flows, n_iters, chunks, scale, post, turn, True, C,
        )  # fmt: skip
        for q in range(n_iters - 2):
            t = n_iters - 2 - q
            u = read_slots(record, t, C)
            kappa = read_slots(record, n_iters + t, C)
            flow, kept, turn = back(
                t, since, u, kappa, flow, weight, mean, kept, c, source, memory, there, place,
                masses, record, flows, n_iters, chunks, scale, post, turn, False, C,
            )  # fmt: skip
        tl.debug_barrier()
    return turn


@triton.jit
def assemble(
    k, tile, b, end, since, c, source, there, place, masses, record, flows, notes, n_iters, scale,
    C: tl.constexpr,
):  # fmt: skip
    """The derivative (M, N) of the entropy in the k-th block, from what flows into each u.

    Also the squares of its error bound, summed over slots (N,).
    """
    u, kappa, inverse, weight, mean = look_up(end, record, notes, n_iters, C)
    e, top = gibbs(tile, scale, u)
    s, w = shares(e, kappa, b)
    share = e * w[None, :]
    centred = log_plan(share, kappa) - mean[:, None]
    size = tl.abs(tile * scale) + tl.abs(u)[:, None] + tl.abs(centred) + LOG2E
    bound = share * weight[:, None] * (1.0 - share * inverse[:, None]) * size
    off = sum_of(bound * bound, 0)
    slope = weight[:, None] * centred
    y = w * sum_of(e * slope, 0)
    g = e * (slope * w[None, :] - kappa[:, None] * (y / s)[None, :])
    for q in range(n_iters - 1):
        t = n_iters - 2 - q
        kappa = read_slots(record, n_iters + t, C)
        flow = read_slots(flows, t + 1, C)
        if t < since:
            # Read once more, so that otherwise no registers hold it.
            tile = costs(k, c, source, there, place, masses, C)
            e, top = gibbs(tile, scale, read_slots(record, t, C))
        s, w = shares(e, kappa, b)
        y = w * sum_of(e * flow[:, None], 0)
        g -= e * (flow[:, None] * w[None, :] - kappa[:, None] * (y / s)[None, :])
    return g, off


@triton.jit
def step_down(
    end, since, c, source, there, place, masses, record, flows, notes, slope, history, n_iters,
    chunks, scale, length, post, turn, C: tl.constexpr,
):  # fmt: skip
    """Take a step of the given length down the entropy; returns the resident block.

    d/dC is -1/temperature times d/dK, so descending on C ascends on the log kernel K.
    """
    rows, m, n, start, stop, pitch, edge = place
    if C.resident:
        same, cols, input_mass, b = block(0, c, source, there, place, masses, C)
        g, off = assemble(
            0, c, b, end, since, c, source, there, place, masses, record, flows, notes, n_iters,
            scale, C,
        )  # fmt: skip
        acc = sum_of(g * g, 0)
        off_acc = off
    else:
        acc = tl.full((C.N,), 0.0, tl.float32)
        off_acc = tl.full((C.N,), 0.0, tl.float32)
        for k in range(chunks):
            tile, cols, input_mass, b = block(k, c, source, there, place, masses, C)
            d, off = assemble(
                k, tile, b, end, since, c, source, there, place, masses, record, flows, notes,
                n_iters, scale, C,
            )  # fmt: skip
            off_acc += off
            acc += sum_of(d * d, 0)
            tl.store(in_memory(slope, k, C), d)
    squared, off, turn = exchange_numbers(sum_of(acc, 0), sum_of(off_acc, 0), post, turn, C)
    least = SHORTEST * SHORTEST
    factor = length * tl.rsqrt(tl.where(squared < least, least, squared))
    # A derivative that is only rounding has no direction to follow.
    factor = tl.where(squared < EPSILON * EPSILON * off, 0.0, factor)
    tl.debug_barrier()
    if C.resident:
        if C.keep:
            write(history, c, rows, cols, m, n, stop)
        c += factor * g
    else:
        for k in range(chunks):
            cols = columns(k, place, C)
            tile = read(source, rows, cols, m, pitch, edge)
            if C.keep:
                write(history, tile, rows, cols, m, n, stop)
            tile += factor * tl.load(in_memory(slope, k, C))
            write(source, tile, rows, cols, m, pitch, edge)
        tl.debug_barrier()
    return c, turn


@triton.jit
def first_block(k, cost, noise, sigma, element, there, input_mask, place, C: tl.constexpr):
    """The k-th block of the given costs with noise, and zeros for padding."""
    cols = columns(k, place, C)
    tile = read_matrix(cost, element, cols, place, C)
    if C.noise:
        tile += sigma * read_matrix(noise, element, cols, place, C)
    return clean(tile, there, input_mask, cols, place, C)


@kernel_of_any_size
def forward_kernel(
    cost, noise, a, b, slot_mask, input_mask, tau, init,
    plan, u_out, v_out, error, count, converged, tau_out, changed, history, work, slope, trace,
    flows, mail, sigma, temperature, length, small_error, m, n, sixteenths, pitch_sixteenths,
    chunks, batch, n_steps, n_iters,
    C: tl.constexpr,
):  # fmt: skip
    """Costs (batch, m, n) to plan, potentials, error, adjusted costs, and the trace."""
    element, part, place = my_part(m, n, sixteenths, pitch_sixteenths, C)
    post = my_post(mail, element, part, C)
    rows, m, n, start, stop, pitch, edge = place
    wide = element * m * pitch
    turn = start * 0
    if C.resident:
        chunks = 1  # known to the compiler

    there, mass, log_mass, held, spare = slot_masses(
        a + element * m, slot_mask + element * m, rows, m, C
    )
    slots = (held, spare)
    real_slots = sum_of(tl.where(there, 1.0, 0.0), 0)
    b = row_of_inputs(b, element, place, C)
    input_mask = row_of_inputs(input_mask, element, place, C)
    total = sum_of(mass, 0)
    real_inputs, heavy, even, some, turn = count_inputs(
        b, input_mask, total, place, chunks, post, turn, C
    )
    masses = (b, input_mask, even, some)
    if C.tau:
        temperature = tl.load(tau + element)
    tl.store(tau_out + element, temperature)
    scale = -LOG2E / temperature
    if C.relative:
        length = length * temperature
    if C.per_entry:
        length = length * tl.sqrt(real_slots * real_inputs)
    # One slot or one input leaves nothing to decide: a step would follow rounding.
    length = tl.where((real_slots > 1) & (heavy > 1), length, 0.0)
    first = tl.full((C.M,), 0.0, tl.float32)
    if C.init:
        first = tl.load(init + element * m + rows, mask=rows < m, other=0.0)

    source = tl.multiple_of(cost + wide, 16)
    if C.mesh:
        source = tl.multiple_of(work + wide, 16)
    c = 0.0
    if C.resident:
        c = first_block(0, cost, noise, sigma, element, there, input_mask, place, C)
    elif C.mesh:
        for k in range(chunks):
            cols = columns(k, place, C)
            tile = first_block(k, cost, noise, sigma, element, there, input_mask, place, C)
            write(source, tile, rows, cols, m, pitch, edge)
        tl.debug_barrier()

    u, kappa, turn = cold_start(
        first, c, source, there, place, masses, chunks, scale, post, turn, C
    )
    record = record_of(trace, element, 3 * n_iters, C)
    flows = record_of(flows, element, n_iters + NOTES, C)
    notes = flows + n_iters * C.M
    if C.notes:
        write_slots(notes, HELD, held, C)
        write_slots(notes, SPARE, spare, C)
        write_slots(notes, MASS, mass, C)
        tl.debug_barrier()
    slope = my_memory(slope, element, part, chunks, C)
    kept = no_block(C)
    history += element * m * n
    inverse = mass
    if C.mesh:
        # The last round is the Sinkhorn of the result.
        for step in range(n_steps + 1):
            # The memory of e holds the derivative once e is no longer needed.
            u, kappa, next_u, next_kappa, inverse, h, since, kept, turn = iterate(
                u, kappa, kept, c, source, slope, there, place, masses, slots, record, notes,
                n_iters, chunks, scale, post, turn, True, C,
            )  # fmt: skip
            # The threads need what others wrote.
            tl.debug_barrier()
            if step < n_steps:
                weight = -LN2 * recall(mass, notes, MASS, C) * inverse
                mean = h * inverse
                end = (u, kappa, inverse, weight, mean)
                if C.notes:
                    take_down((next_u, next_kappa, weight, mean), notes, C)
                    tl.debug_barrier()
                turn = walk_back(
                    end, since, kept, c, source, slope, there, place, masses, record, flows, notes,
                    n_iters, chunks, scale, post, turn, C,
                )  # fmt: skip
                c, turn = step_down(
                    end, since, c, source, there, place, masses, record, flows, notes, slope,
                    history, n_iters, chunks, scale, length, post, turn, C,
                )  # fmt: skip
                if C.keep:
                    record = record_of(record, batch.to(tl.int64), 3 * n_iters, C)
                    history += batch.to(tl.int64) * m * n
                if C.fresh:
                    u, kappa, turn = cold_start(
                        first, c, source, there, place, masses, chunks, scale, post, turn, C
                    )
                else:
                    u = recall(next_u, notes, NEXT_U, C)
                    kappa = recall(next_kappa, notes, NEXT_KAPPA, C)
    else:
        u, kappa, next_u, next_kappa, inverse, h, since, kept, turn = iterate(
            u, kappa, kept, c, source, slope, there, place, masses, slots, record, notes, n_iters,
            chunks, scale, post, turn, False, C,
        )  # fmt: skip

    mass = recall(mass, notes, MASS, C)
    u = recall(u, record, n_iters - 1, C)
    kappa = recall(kappa, record, 2 * n_iters - 1, C)
    inverse = recall(inverse, record, 3 * n_iters - 1, C)
    weight = mass * inverse
    row_sums = tl.full((C.M, C.N), 0.0, tl.float32)
    misplaced = tl.full((C.N,), 0.0, tl.float32)
    v_out += element * n
    for k in range(chunks):
        tile, cols, input_mass, counted = block(k, c, source, there, place, masses, C)
        e, top = gibbs(tile, scale, u)
        s, w = shares(e, kappa, counted)
        p = e * (w[None, :] * weight[:, None])
        row_sums += p
        misplaced += tl.abs(sum_of(p, 0) - input_mass)
        write_matrix(plan, element, p, cols, place, C)
        v = tl.where(counted > 0, LN2 * (log_or_zero(counted) - tl.log2(s) - top), -float("inf"))
        tl.store(v_out + cols, v, mask=cols < stop)
        if C.mesh:
            if C.resident:
                write_matrix(changed, element, c, cols, place, C)
            elif pitch != n:
                write_matrix(changed, element, tile, cols, place, C)
    nothing = tl.full((C.M,), 0.0, tl.float32)
    sums, wrong, turn = exchange_pair(
        sum_of(row_sums, 1), sum_of(misplaced, 0) + nothing, post, turn, C
    )
    wrong = sum_of(tl.abs(sums - mass) + tl.where(rows == 0, wrong, 0.0), 0)
    wrong = wrong / tl.where(total < TINIEST, TINIEST, total)
    tl.store(error + element, wrong)
    tl.store(count + element, n_iters.to(tl.int64))
    tl.store(converged + element, wrong <= small_error)
    log = tl.log2(inverse) + log_or_zero(log_mass)
    u = tl.where(there & (log_mass > 0), LN2 * (u + log), -float("inf"))
    write_row(u_out, element, u, rows, m)
