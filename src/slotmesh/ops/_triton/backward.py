# type: ignore  # Triton's language only looks like Python
"""The backward kernel: reverse mode through Sinkhorn, or through all Sinkhorns of MESH in turn.

The plan's gradient enters at the last half-step over slots and walks back through the iterations,
as the entropy's does in the forward kernel. If MESH reuses potentials with their graph
(``C.keep``), the gradient of the first u continues into the previous Sinkhorn, with its cost.
"""

# ruff: noqa: N803, RUF059

import triton
import triton.language as tl

from slotmesh.ops._triton.exchange import count_inputs, exchange, my_post
from slotmesh.ops._triton.tile import (
    LOG2E,
    SMALLEST,
    any_of,
    block,
    clean,
    columns,
    costs,
    gibbs,
    gibbs_block,
    input_masses,
    kernel_of_any_size,
    my_memory,
    my_part,
    no_block,
    read,
    read_matrix,
    read_slots,
    record_of,
    row_of_inputs,
    shares,
    slot_masses,
    sum_of,
    write_matrix,
    write_row,
    write_slots,
)


@triton.jit
def plan_mean(
    u, kappa, kept, c, source, memory, there, place, masses, grad_plan, chunks, scale, post, turn,
    C: tl.constexpr,
):  # fmt: skip
    """Sum over inputs of the plan's gradient times ``e w``: r times its mean in each row."""
    acc = tl.full((C.M, C.N), 0.0, tl.float32)
    for k in range(chunks):
        cols = columns(k, place, C)
        mass, b = input_masses(cols, place, masses, C)
        e, kept = gibbs_block(
            k, chunks > 0, kept, u, c, source, memory, there, scale, place, masses, C
        )  # fmt: skip
        s, w = shares(e, kappa, b)
        acc += e * (w[None, :] * incoming(grad_plan, cols, place, C))
    mean, turn = exchange(sum_of(acc, 1), post, turn, C.M, C)
    # The threads need what others wrote.
    tl.debug_barrier()
    return mean, kept, turn


@triton.jit
def incoming(grad_plan, cols, place, C: tl.constexpr):
    """A block of the plan's gradient."""
    rows, m, n, start, stop, pitch, edge = place
    if C.resident:
        return read(grad_plan, rows, cols, m, n, stop)
    else:
        return read(grad_plan, rows, cols, m, pitch, edge)


@triton.jit
def slopes(cols, flow, weight, offset, grad_plan, first, place, C: tl.constexpr):
    """The factor (M, N) of e w in the gradient of the log kernel.

    At first, where the plan's gradient enters through the last half-step, that is ``weight grad -
    offset``; offset holds the row's mean. Later it is what flows into each u, over r.
    """
    q = tl.broadcast_to(flow[:, None], (C.M, C.N))
    if first:
        q = tl.broadcast_to(-offset[:, None], (C.M, C.N))
        if C.grad_plan:
            q += weight[:, None] * incoming(grad_plan, cols, place, C)
    return q


@triton.jit
def input_gradient(e, w, q, cols, grad_v, first, place, C: tl.constexpr):
    """Gradient of v, but for its sign."""
    y = w * sum_of(e * q, 0)
    if C.grad_v:
        y += tl.load(grad_v + cols, mask=(cols < place[4]) & first, other=0.0)
    return y


@triton.jit
def walk_back(
    u, kappa, x, weight, offset, log_a_grad, stale, kept, c, source, memory, there, place, masses,
    record, flows, grad_plan, grad_v, n_iters, chunks, scale, post, turn, SEEDED: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """From the gradients of the last Sinkhorn's results, or of a u, to the first iteration.

    With SEEDED the gradients of plan and v enter at the last iteration, else x, that of the u after
    it. ``flows`` gets the gradient of each u over r, and their sum is added to that of log a. The
    last result is the first iteration whose u is that of the last.
    """
    flow = weight * 0.0
    if not SEEDED:
        flow = x * read_slots(record, 3 * n_iters - 1, C)
        write_slots(flows, n_iters, flow, C)
        log_a_grad += x
    end = u
    since = n_iters * 0
    for q in range(n_iters - 1):
        t = n_iters - 1 - q
        first = SEEDED and q == 0
        if q > 0:
            u = read_slots(record, t, C)
            kappa = read_slots(record, n_iters + t, C)
            since = tl.where((since == 0) & any_of(u != end, 0), t + 1, since)
            stale = since > 0
        inverse = read_slots(record, 2 * n_iters + t - 1, C)
        acc = tl.full((C.M, C.N), 0.0, tl.float32)
        for k in range(chunks):
            cols = columns(k, place, C)
            mass, b = input_masses(cols, place, masses, C)
            e, kept = gibbs_block(
                k, stale, kept, u, c, source, memory, there, scale, place, masses, C
            )  # fmt: skip
            s, w = shares(e, kappa, b)
            slope = slopes(cols, flow, weight, offset, grad_plan, first, place, C)
            y = input_gradient(e, w, slope, cols, grad_v, first, place, C)
            acc += e * (y / s)[None, :]
        x, turn = exchange(sum_of(acc, 1), post, turn, C.M, C)
        x = kappa * x
        x = tl.where(first, -x, x)
        log_a_grad += x
        flow = x * inverse
        write_slots(flows, t, flow, C)
        if stale:
            tl.debug_barrier()
    if n_iters > 1:
        since = tl.where((since == 0) & any_of(read_slots(record, 0, C) != end, 0), 1, since)
    tl.debug_barrier()
    return log_a_grad, since, turn


@triton.jit
def assemble(
    k, tile, cols, b, u, kappa, weight, offset, grad_plan, grad_v, since, c, source, there, place,
    masses, record, flows, n_iters, scale, SEEDED: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Gradients of the log kernel (M, N) and of log b (N,), from what flows into each u.

    Also e of the first iteration and the gradient of its v over s, from which the gradient of the
    first u is computed.
    """
    g = tl.full((C.M, C.N), 0.0, tl.float32)
    share = tl.full((C.N,), 0.0, tl.float32)
    log_b_grad = tl.full((C.N,), 0.0, tl.float32)
    flow = weight * 0.0
    if not SEEDED:
        flow = read_slots(flows, n_iters, C)
    e, top = gibbs(tile, scale, u)
    for q in range(n_iters):
        t = n_iters - 1 - q
        first = SEEDED and q == 0
        if q > 0:
            kappa = read_slots(record, n_iters + t, C)
            flow = read_slots(flows, t + 1, C)
        if t < since:
            # Read once more, so that otherwise no registers hold it.
            tile = costs(k, c, source, there, place, masses, C)
            e, top = gibbs(tile, scale, read_slots(record, t, C))
        s, w = shares(e, kappa, b)
        slope = slopes(cols, flow, weight, offset, grad_plan, first, place, C)
        y = input_gradient(e, w, slope, cols, grad_v, first, place, C)
        d = e * (slope * w[None, :] - kappa[:, None] * (y / s)[None, :])
        g += tl.where(first, d, -d)
        y = tl.where(first, y, -y)
        share = y / s
        log_b_grad += y
    return g, log_b_grad, e, share


@triton.jit
def finish(
    u, kappa, weight, offset, since, c, source, there, place, masses, record, flows, grad_plan,
    grad_v, grad_changed, element, g_cost, g_b, tau_grad, n_iters, chunks, temperature, scale, post,
    turn, SEEDED: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write the gradients of one Sinkhorn; returns those of its first u and the temperature."""
    rows, m, n, start, stop, pitch, edge = place
    first_kappa = read_slots(record, n_iters, C)
    acc = tl.full((C.M, C.N), 0.0, tl.float32)
    tau_acc = tl.full((C.M, C.N), 0.0, tl.float32)
    for k in range(chunks):
        tile, cols, mass, counted = block(k, c, source, there, place, masses, C)
        g, log_b_grad, e, share = assemble(
            k, tile, cols, counted, u, kappa, weight, offset, grad_plan, grad_v, since, c, source,
            there, place, masses, record, flows, n_iters, scale, SEEDED, C,
        )  # fmt: skip
        if C.keep or C.grad_init:
            acc += e * share[None, :]
        if C.grad_tau:
            tau_acc += g * tile
        g *= -1.0 / temperature
        if SEEDED and C.grad_changed:
            g += read_matrix(grad_changed, element, cols, place, C)
        if not SEEDED:
            g += read_matrix(g_cost, element, cols, place, C)
        g = clean(g, there, masses[1], cols, place, C)
        write_matrix(g_cost, element, g, cols, place, C)
        if C.grad_marginals:
            has_log = mass >= SMALLEST
            grad_b = tl.where(has_log, log_b_grad / tl.where(has_log, mass, 1.0), 0.0)
            if not SEEDED:
                grad_b += tl.load(g_b + cols, mask=cols < stop, other=0.0)
            tl.store(g_b + cols, grad_b, mask=cols < stop)
    x = first_kappa
    if C.keep or C.grad_init:
        x, turn = exchange(sum_of(acc, 1), post, turn, C.M, C)
        x = -first_kappa * x
    tl.debug_barrier()
    return x, tau_grad + sum_of(tau_acc, 1), turn


@kernel_of_any_size
def backward_kernel(
    cost, history, trace, a, b, slot_mask, input_mask, tau,
    grad_plan, grad_u, grad_v, grad_changed,
    g_cost, g_a, g_b, g_tau, g_init, flows, memory, mail,
    temperature, m, n, sixteenths, pitch_sixteenths, chunks, batch, n_links, n_iters,
    C: tl.constexpr,
):  # fmt: skip
    """Gradients of plan, u, v and changed cost to those of cost, a, b, temperature and init."""
    element, part, place = my_part(m, n, sixteenths, pitch_sixteenths, C)
    post = my_post(mail, element, part, C)
    rows, m, n, start, stop, pitch, edge = place
    area = element * m * n
    turn = start * 0
    if C.resident:
        chunks = 1  # known to the compiler

    there, mass, log_mass, held, spare = slot_masses(
        a + element * m, slot_mask + element * m, rows, m, C
    )
    b = row_of_inputs(b, element, place, C)
    input_mask = row_of_inputs(input_mask, element, place, C)
    _, _, even, some, turn = count_inputs(
        b, input_mask, sum_of(mass, 0), place, chunks, post, turn, C
    )
    masses = (b, input_mask, even, some)
    if C.tau:
        temperature = tl.load(tau + element)
    scale = -LOG2E / temperature
    record = record_of(trace, n_links * batch.to(tl.int64) + element, 3 * n_iters, C)
    flows = record_of(flows, element, n_iters + 1, C)
    # Start of each matrix; matrices that are read repeatedly have padded rows.
    wide = area
    source = cost + area
    if not C.resident:
        wide = element * m * pitch
        source = tl.multiple_of(cost + wide, 16)
    grad_plan += wide
    if not C.resident:
        grad_plan = tl.multiple_of(grad_plan, 16)
    memory = my_memory(memory, element, part, chunks, C)
    grad_v += element * n
    g_b += element * n

    c = 0.0
    cols = columns(0, place, C)
    if C.resident:
        c = clean(read(source, rows, cols, m, n, stop), there, input_mask, cols, place, C)
    u = read_slots(record, n_iters - 1, C)
    kappa = read_slots(record, 2 * n_iters - 1, C)
    inverse = tl.where(there, read_slots(record, 3 * n_iters - 1, C), 0.0)

    grad_mass = tl.full((C.M,), 0.0, tl.float32)
    log_a_grad = tl.full((C.M,), 0.0, tl.float32)
    stale = n_iters > 0
    kept = no_block(C)
    if C.grad_plan:
        grad_mass, kept, turn = plan_mean(
            u, kappa, kept, c, source, memory, there, place, masses, grad_plan, chunks, scale, post,
            turn, C,
        )  # fmt: skip
        stale = n_iters < 0
        grad_mass = grad_mass * inverse
    if C.grad_u:
        log_a_grad = tl.load(grad_u + element * m + rows, mask=rows < m, other=0.0)
    weight = mass * inverse
    offset = weight * grad_mass + log_a_grad * inverse
    log_a_grad, since, turn = walk_back(
        u, kappa, weight, weight, offset, log_a_grad, stale, kept, c, source, memory, there, place,
        masses, record, flows, grad_plan, grad_v, n_iters, chunks, scale, post, turn, True, C,
    )  # fmt: skip
    tau_grad = tl.full((C.M,), 0.0, tl.float32)
    x, tau_grad, turn = finish(
        u, kappa, weight, offset, since, c, source, there, place, masses, record, flows, grad_plan,
        grad_v, grad_changed, element, g_cost, g_b, tau_grad, n_iters, chunks, temperature, scale,
        post, turn, True, C,
    )  # fmt: skip

    if C.keep:
        for link in range(n_links):
            back = (n_links - 1 - link) * batch.to(tl.int64) + element
            record = record_of(trace, back, 3 * n_iters, C)
            if C.resident:
                source = history + back * m * n
                c = read(source, rows, cols, m, n, stop)
            else:
                source = tl.multiple_of(history + back * m * pitch, 16)
            u = read_slots(record, n_iters - 1, C)
            kappa = read_slots(record, 2 * n_iters - 1, C)
            log_a_grad, since, turn = walk_back(
                u, kappa, x, weight, offset, log_a_grad, n_links >= 0, kept, c, source, memory,
                there, place, masses, record, flows, grad_plan, grad_v, n_iters, chunks, scale,
                post, turn, False, C,
            )  # fmt: skip
            x, tau_grad, turn = finish(
                u, kappa, weight, offset, since, c, source, there, place, masses, record, flows,
                grad_plan, grad_v, grad_changed, element, g_cost, g_b, tau_grad, n_iters, chunks,
                temperature, scale, post, turn, False, C,
            )  # fmt: skip

    if C.grad_marginals:
        has_log = (mass >= SMALLEST) & there
        grad_a = grad_mass + tl.where(has_log, log_a_grad / tl.where(has_log, mass, 1.0), 0.0)
        write_row(g_a, element, grad_a, rows, m)
    if C.grad_init:
        write_row(g_init, element, x, rows, m)
    if C.grad_tau:
        tau_grad, turn = exchange(tau_grad, post, turn, C.M, C)
        tl.store(g_tau + element, sum_of(tau_grad, 0) / (temperature * temperature))
