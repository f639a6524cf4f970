# type: ignore  # Triton's language only looks like Python
"""Operations of the kernels on one block of a cost matrix and its masses and potentials.

A block holds all M slots (rows, padded to a power of two) of N inputs (columns), so sums over slots
stay inside it, and there is one sum over inputs per half-step. Logarithms are to base 2.

The state of the slots is a pair (u, kappa) that stands for the potential ``u + log2(kappa)``. The
half-step over inputs gives the shares ``Q = kappa e / s`` of each input, with
``e = exp2(u - cost * scale - highest)``, ``s = sum_i kappa e``; the half-step over slots needs no
exponential of its own, since its softmax is ``R = e w / r`` with ``w = b / s`` and
``r = sum_j e w``. The split between u and kappa keeps e in range where a slot has little or no mass
(kappa near 0) or gets almost nothing of every input at first (``cold_start``), and the half-step
over slots needs no logarithms: ``a / r`` is the next kappa.

As long as u stays, so does e, and an iteration takes two products and sums per entry of the matrix
instead of an exponential. Where a kappa would leave the range in which no share that counts is lost
to underflow, all exponents go to u (``scale_slots``), and e is computed again (``gibbs_block``).
"""

# ruff: noqa: N803, RUF059, SIM108

import inspect

import torch
import triton
import triton.language as tl

from slotmesh.ops._private import find

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# As in slotmesh.ops.problem: less mass than this counts as none.
SMALLEST = tl.constexpr(1e-30)
# The potential of an absent slot; finite, so that 0 times it is 0.
ABSENT = tl.constexpr(-1e30)
# u raises slots below 2^-40 of the mass, or of the best share, to that level; kappa compensates.
LEAST = tl.constexpr(-40.0)
LEAST_MASS = tl.constexpr(2.0**-40)
# While u stays, kappa is at most this, and at least one over it.
LARGEST = tl.constexpr(2.0**30)
# The sum of a row of shares is at least this; a mass over it is still finite.
TINIEST = tl.constexpr(1e-30)


def kernel_of_any_size(function):
    """``triton.jit`` that specialises on no argument, or most sizes would be compiled again."""
    parameters = inspect.signature(function).parameters.values()
    sizes = [x.name for x in parameters if x.annotation is not tl.constexpr]
    return triton.jit(function, do_not_specialize=sizes)


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b)


# Only NVIDIA's GPUs know PTX, and Triton's interpreter does not.
KNOWS_PTX = tl.constexpr(torch.version.cuda is not None and isinstance(_add, triton.JITFunction))
# Triton's own if it has them: its interpreter reduces with these far faster than with others.
ADD = find("triton.language.standard._sum_combine", _add)
LARGER = find("triton.language.standard._elementwise_max", _larger)
SMALLER = find("triton.language.standard._elementwise_min", _smaller)


@triton.jit
def sum_of(x, axis: tl.constexpr):
    """Sum along an axis; tl.sum itself cannot be interpreted once triton was imported natively."""
    return tl.reduce(x, axis, ADD)


@triton.jit
def max_of(x, axis: tl.constexpr):
    """Largest along an axis."""
    return tl.reduce(x, axis, LARGER)


@triton.jit
def min_of(x, axis: tl.constexpr):
    """Smallest along an axis."""
    return tl.reduce(x, axis, SMALLER)


@triton.jit
def any_of(x, axis: tl.constexpr):
    """Whether any entry along an axis is true."""
    return max_of(tl.where(x, 1, 0), axis) > 0


@triton.jit
def entry(x, index, i):
    """x[i] of a vector with its indices; 0 if there is no i."""
    return sum_of(tl.where(index == i, x, 0), 0)


@triton.jit
def eliminate(h, g, m, M: tl.constexpr):
    """Solve h x = g by Gauss-Jordan; h (M, M) is positive definite, so no rows are swapped.

    Rows from m on are those of a diagonal matrix.
    """
    rows = tl.arange(0, M)
    diagonal = rows[:, None] == rows[None, :]
    for k in range(m):
        row = sum_of(tl.where((rows == k)[:, None], h, 0.0), 0)
        column = sum_of(tl.where((rows == k)[None, :], h, 0.0), 1)
        factor = tl.where(rows == k, 0.0, column / entry(column, rows, k))
        h -= factor[:, None] * row[None, :]
        g -= factor * entry(g, rows, k)
    return g / sum_of(tl.where(diagonal, h, 0.0), 1)


@triton.jit
def read(base, rows, cols, m, n, stop):
    """A block (M, N) of a matrix (m, n) in float32; 0 outside."""
    inside = (rows < m)[:, None] & (cols < stop)[None, :]
    offsets = rows[:, None] * n + cols[None, :]
    return tl.load(base + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def write(base, value, rows, cols, m, n, stop):
    """Store a block (M, N) into a matrix (m, n)."""
    inside = (rows < m)[:, None] & (cols < stop)[None, :]
    offsets = rows[:, None] * n + cols[None, :]
    tl.store(base + offsets, value.to(base.dtype.element_ty), mask=inside)


@triton.jit
def read_matrix(base, element, cols, place, C: tl.constexpr):
    """A block of a matrix whose rows have n numbers: several at once if they are aligned."""
    rows, m, n, start, stop, pitch, edge = place
    if C.resident:
        return read(base + element * m * n, rows, cols, m, n, stop)
    if n == pitch:
        x = read(tl.multiple_of(base + element * m * pitch, 16), rows, cols, m, pitch, edge)
    else:
        x = read(base + element * m * n, rows, cols, m, n, stop)
    return x


@triton.jit
def write_matrix(base, element, value, cols, place, C: tl.constexpr):
    """Store a block into a matrix whose rows have n numbers: several at once if aligned."""
    rows, m, n, start, stop, pitch, edge = place
    if C.resident:
        write(base + element * m * n, value, rows, cols, m, n, stop)
    elif n == pitch:
        aligned = tl.multiple_of(base + element * m * pitch, 16)
        write(aligned, value, rows, cols, m, pitch, edge)
    else:
        write(base + element * m * n, value, rows, cols, m, n, stop)


@triton.jit
def write_row(base, index, value, rows, m):
    """Store (M,) into row ``index`` of a matrix (., m)."""
    tl.store(base + index * m + rows, value, mask=rows < m)


@triton.jit
def record_of(base, element, size, C: tl.constexpr):
    """Where the vectors over slots (size, M) of an element start, known to be aligned."""
    width: tl.constexpr = 16 if C.M > 2 else 8
    return tl.multiple_of(base + element * size * C.M, width)


@triton.jit
def read_slots(base, index, C: tl.constexpr):
    """Row ``index`` of a matrix (., M): as wide as a block, so that no mask is needed."""
    return tl.load(base + index * C.M + tl.arange(0, C.M))


@triton.jit
def write_slots(base, index, value, C: tl.constexpr):
    """Store (M,) into row ``index`` of a matrix (., M)."""
    tl.store(base + index * C.M + tl.arange(0, C.M), value)


@triton.jit
def recall(x, base, index, C: tl.constexpr):
    """A vector x over slots that is also row ``index`` of a matrix (., M).

    Threads hold all slots of their inputs, so each has a whole copy of such a vector. MESH has too
    many of them for the registers: with ``C.notes``, those that are not needed while costs are read
    wait in memory.
    """
    if C.notes:
        x = read_slots(base, index, C)
    return x


@triton.jit
def my_part(m, n, sixteenths, pitch_sixteenths, C: tl.constexpr):
    """The batch element that this program works on, and which part of its inputs.

    Matrices that are read again and again have rows of ``pitch`` numbers, zeros from n on: a
    multiple of 16 for any n, as the compiler can see, so that several are loaded at once. Their
    addresses are aligned too.
    """
    number = tl.program_id(0)
    element = (number // C.split).to(tl.int64)
    part = number % C.split
    width = sixteenths * 16
    pitch = pitch_sixteenths * 16
    start = part * width
    end = start + width
    place = (tl.arange(0, C.M), m, n, start, tl.minimum(end, n), pitch, tl.minimum(end, pitch))
    return element, part, place


@triton.jit
def columns(k, place, C: tl.constexpr):
    """The inputs of the k-th block."""
    cols = place[3] + k * C.N + tl.arange(0, C.N)
    if C.vector > 1:
        # A thread loads this many inputs at once; with more, slots would be spread over warps.
        at_once: tl.constexpr = C.vector
        cols = tl.max_contiguous(cols, at_once)
    return cols


@triton.jit
def clean(c, there, input_mask, cols, place, C: tl.constexpr):
    """A block with zeros in its padding, which may hold anything."""
    if C.slot_mask:
        c = tl.where(there[:, None], c, 0.0)
    if C.input_mask:
        real = read_inputs(input_mask, cols, place, C) != 0
        c = tl.where(real[None, :], c, 0.0)
    return c


@triton.jit
def slot_masses(a, slot_mask, rows, m, C: tl.constexpr):
    """Which slots are real, their mass, that of its logarithm, and that as held times spare."""
    there = rows < m
    if C.slot_mask:
        there = tl.load(slot_mask + rows, mask=there, other=0) != 0
    if C.marginals:
        mass = tl.load(a + rows, mask=rows < m, other=0.0)
    else:
        mass = tl.where(there, 1.0, 0.0)
    # If no slot has any mass, its logarithm counts as 0 (see log_marginal).
    some = max_of(tl.where(mass >= SMALLEST, 1, 0), 0) > 0
    counted = tl.where(some, tl.where(mass >= SMALLEST, mass, 0.0), 1.0)
    held = tl.where(counted < LEAST_MASS, LEAST_MASS, counted)
    spare = tl.where(there, counted / held, 0.0)
    # Absent slots get no mass and hold none, so their u never has to change.
    return there, mass, counted, tl.where(there, held, TINIEST), spare


@triton.jit
def row_of_inputs(base, element, place, C: tl.constexpr):
    """Where the masses or the mask of an element's inputs start."""
    rows, m, n, start, stop, pitch, edge = place
    if C.resident:
        return base + element * n
    else:
        return tl.multiple_of(base + element * pitch, 16)


@triton.jit
def read_inputs(base, cols, place, C: tl.constexpr):
    """A block (N,) of masses or of the mask, spread over threads as columns of costs are.

    Only what is aligned is: anything else would be handed from thread to thread for every block.
    """
    rows, m, n, start, stop, pitch, edge = place
    if C.resident:
        return tl.load(base + cols, mask=cols < stop, other=0)
    else:
        return tl.load(base + cols, mask=cols < edge, other=0)


@triton.jit
def input_masses(cols, place, masses, C: tl.constexpr):
    """Mass of each input, and the mass for its logarithm."""
    b, input_mask, even, some = masses
    inside = cols < place[4]
    if C.marginals:
        mass = read_inputs(b, cols, place, C)
    elif C.input_mask:
        mass = tl.where(read_inputs(input_mask, cols, place, C) != 0, even, 0.0)
    else:
        mass = tl.where(inside, even, 0.0)
    counted = tl.where(mass >= SMALLEST, mass, 0.0)
    return mass, tl.where(some, counted, tl.where(inside, 1.0, 0.0))


@triton.jit
def costs(k, resident, source, there, place, masses, C: tl.constexpr):
    """The k-th block of costs."""
    rows, m, n, start, stop, pitch, edge = place
    if C.resident:
        c = resident
    else:
        cols = columns(k, place, C)
        c = read(source, rows, cols, m, pitch, edge)
        if not C.mesh:
            c = clean(c, there, masses[1], cols, place, C)
    return c


@triton.jit
def block(k, resident, source, there, place, masses, C: tl.constexpr):
    """The k-th block of costs, its columns, and the masses of its inputs."""
    cols = columns(k, place, C)
    mass, counted = input_masses(cols, place, masses, C)
    return costs(k, resident, source, there, place, masses, C), cols, mass, counted


@triton.jit
def gibbs(c, scale, u):
    """Half-step over inputs: e as above, and the highest exponents."""
    x = c * scale + u[:, None]
    top = max_of(x, 0)
    return tl.exp2(x - top[None, :]), top


@triton.jit
def gibbs_block(k, stale, kept, u, c, source, memory, there, scale, place, masses, C: tl.constexpr):
    """The k-th block of e; if stale, it is computed from the costs and replaces the one in memory.

    A resident block is kept in registers instead: pass the second result to the next call. Without
    ``C.stored``, every block is computed from the costs.
    """
    if not C.stored:
        e, top = gibbs(costs(k, c, source, there, place, masses, C), scale, u)
    elif C.resident:
        if stale:
            kept, top = gibbs(c, scale, u)
        e = kept
    else:
        if stale:
            tile = costs(k, c, source, there, place, masses, C)
            e, top = gibbs(tile, scale, u)
            tl.store(in_memory(memory, k, C), e)
        else:
            e = tl.load(in_memory(memory, k, C))
    return e, kept


@triton.jit
def my_memory(base, element, part, chunks, C: tl.constexpr):
    """Where the blocks of this program are (see :func:`in_memory`)."""
    number = element * C.split + part
    return tl.multiple_of(base + number * chunks * (C.M * C.N), 16)


@triton.jit
def in_memory(memory, k, C: tl.constexpr):
    """The k-th of the blocks that a program keeps in memory for itself, one after the other.

    They are whole, with their padding, so that no address and no mask is computed for a row.
    """
    inner = tl.arange(0, C.N)
    if C.vector > 1:
        at_once: tl.constexpr = C.vector
        inner = tl.max_contiguous(inner, at_once)
    return memory + k * (C.M * C.N) + tl.arange(0, C.M)[:, None] * C.N + inner[None, :]


@triton.jit
def no_block(C: tl.constexpr):
    """What :func:`gibbs_block` keeps at first."""
    if C.resident and C.stored:
        kept = tl.full((C.M, C.N), 0.0, tl.float32)
    else:
        kept = 0.0
    return kept


@triton.jit
def shares(e, kappa, b):
    """Half-step over inputs: s and w as above."""
    s = sum_of(e * kappa[:, None], 0)
    # Padding can have any potentials but no shares; NaN stays NaN.
    s = tl.where(s == 0, 1.0, s)
    return s, b / s


@triton.jit
def log_or_zero(w):
    """log2, and 0 at 0."""
    return tl.log2(tl.where(w > 0, w, 1.0))


@triton.jit
def quick_log2(x):
    """log2 by the GPU's own instruction, to 2^-22 of 1 or of the result; 0 up to 1e-37.

    Triton's takes some thirty instructions.
    """
    x = tl.where(x > 1e-37, x, 1.0)
    if KNOWS_PTX:
        x = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        x = tl.log2(x)
    return x


@triton.jit
def exponent_and_mantissa(x):
    """Exponent and mantissa of positive numbers, both as float32."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 127
    mantissa = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    return exponent.to(tl.float32), mantissa


@triton.jit
def scale_slots(u, r, held, spare):
    """Half-step over slots: the next state (u, kappa), 1/r, and whether u has changed."""
    inverse = 1.0 / tl.where(r < TINIEST, TINIEST, r)  # NaN stays
    ratio = held * inverse
    moved = any_of((ratio > LARGEST) | (ratio < 1.0 / LARGEST), 0)
    if moved:
        exponent, ratio = exponent_and_mantissa(ratio)
        u += exponent
    return u, spare * ratio, inverse, moved
