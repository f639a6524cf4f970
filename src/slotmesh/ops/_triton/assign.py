# type: ignore  # Triton's language only looks like Python
"""One-to-one assignment: shortest augmenting paths, one program per matrix.

The algorithm of Jonker and Volgenant, as in SciPy. Rows are the smaller side, be it slots or
inputs; they are added one by one, each along the shortest path to a free column, in float64. A row
of costs is read from memory when a path comes through it; everything else is in registers.
"""

# ruff: noqa: N803

import triton
import triton.language as tl

from slotmesh.ops._triton.tile import any_of, entry, kernel_of_any_size, min_of, sum_of


@triton.jit
def cost_row(cost, row, index, real, across, along, MAXIMIZE: tl.constexpr):
    """A row of costs in float64, 0 for padding."""
    c = tl.load(cost + row * across + index * along, mask=real, other=0.0).to(tl.float64)
    if MAXIMIZE:
        c = -c
    return c


@triton.jit
def shortest_path(
    cost, i, u, v, row_of, index, real, across, along, MAXIMIZE: tl.constexpr, SIZE: tl.constexpr
):
    """Distances of columns from row i, up to the nearest free one.

    Returns the distances, the row before each column, the columns reached, the distances of the
    rows reached, the free column (-1 where rounding left none) and its distance.
    """
    far = tl.full((SIZE,), float("inf"), tl.float64)
    row_far = tl.full((SIZE,), float("inf"), tl.float64)
    before = tl.full((SIZE,), -1, tl.int32)
    reached = index < 0
    row = i
    free = i * 0 - 1
    length = entry(u, index, -1)
    steps = i * 0
    while (free < 0) & (steps < SIZE):
        row_far = tl.where(index == row, length, row_far)
        costs = cost_row(cost, row, index, real, across, along, MAXIMIZE)
        through = (costs - entry(u, index, row)) - v + length
        better = real & ~reached & (through < far)
        far = tl.where(better, through, far)
        before = tl.where(better, row, before)
        length = min_of(tl.where(real & ~reached, far, float("inf")), 0)
        # Among equally near columns prefer a free one, which ends the path.
        near = real & ~reached & (far <= length)
        column = min_of(tl.where(near, tl.where(row_of < 0, index, index + SIZE), 2 * SIZE), 0)
        reached = reached | (index == column % SIZE)
        free = tl.where(column < SIZE, column, -1)
        row = entry(row_of, index, column % SIZE)
        steps += 1
    return far, before, reached, row_far, free, length


@kernel_of_any_size
def assign_kernel(
    cost, slot_mask, input_mask, partner, m, n, MAXIMIZE: tl.constexpr, SIZE: tl.constexpr
):
    """Cost (batch, m, n) and masks (batch, m), (batch, n) to the input of each slot, or -1."""
    element = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, SIZE)
    slots = tl.load(slot_mask + element * m + index, mask=index < m, other=0) != 0
    inputs = tl.load(input_mask + element * n + index, mask=index < n, other=0) != 0
    flip = sum_of(tl.where(slots, 1, 0), 0) > sum_of(tl.where(inputs, 1, 0), 0)
    # As numbers: a choice between boolean vectors does not compile.
    rows = tl.where(flip, tl.where(inputs, 1, 0), tl.where(slots, 1, 0))
    real = tl.where(flip, tl.where(slots, 1, 0), tl.where(inputs, 1, 0)) > 0
    across = tl.where(flip, 1, n)
    along = tl.where(flip, n, 1)
    n_rows = tl.where(flip, n, m)
    cost += element * (m * n)

    wrong = tl.full((SIZE,), 0, tl.int32)
    for i in range(n_rows):
        if entry(rows, index, i) > 0:
            c = cost_row(cost, i, index, real, across, along, MAXIMIZE)
            wrong = tl.where(tl.abs(c) < float("inf"), wrong, 1)
    finite = ~any_of(wrong > 0, 0)
    n_rows = tl.where(finite, n_rows, 0)

    u = tl.full((SIZE,), 0.0, tl.float64)
    v = tl.full((SIZE,), 0.0, tl.float64)
    row_of = tl.full((SIZE,), -1, tl.int32)  # of each column
    column_of = tl.full((SIZE,), -1, tl.int32)  # of each row
    for i in range(n_rows):
        if entry(rows, index, i) > 0:
            far, before, reached, row_far, free, length = shortest_path(
                cost, i, u, v, row_of, index, real, across, along, MAXIMIZE, SIZE
            )
            u += tl.where(row_far < float("inf"), length - row_far, 0.0)
            v -= tl.where(reached, length - far, 0.0)
            column = free
            while column >= 0:
                row = entry(before, index, column)
                row_of = tl.where(index == column, row, row_of)
                after = entry(column_of, index, row)
                column_of = tl.where(index == row, column, column_of)
                column = tl.where(row == i, -1, after)
    result = tl.where(finite, tl.where(flip, row_of, column_of), -1)
    tl.store(partner + element * m + index, result.to(tl.int64), mask=index < m)
