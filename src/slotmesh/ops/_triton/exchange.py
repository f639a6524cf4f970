# type: ignore  # Triton's language only looks like Python
"""Sums over the programs that share a batch element.

Such programs meet in memory, ``mail``, which belongs to their element: each writes its own numbers
there, waits for those of the others and adds all of them up. ``post`` is where that is and which of
the programs this one is, ``turn`` how many exchanges there were before. With one program per
element nothing is sent.
"""

# ruff: noqa: N803, RUF059, SIM108

import triton
import triton.language as tl

from slotmesh.ops._triton.tile import KNOWS_PTX, SMALLEST, columns, max_of, read_inputs, sum_of

# Words of an exchange that every program reads.
AT_ONCE = tl.constexpr(4096)


@triton.jit
def my_post(mail, element, part, C: tl.constexpr):
    """Where the programs of an element meet, and which of them this one is."""
    # Two boxes for up to two numbers per slot, of each program and their sums.
    room = 2 * (C.split + 1) * C.M
    return mail + element * (2 * room), part, room


@triton.jit
def exchange(x, post, turn, SIZE: tl.constexpr, C: tl.constexpr, MAX: tl.constexpr = False):
    """Sum (or largest) of a vector (SIZE,) over the programs that share a batch element.

    Each number is sent in one word with the count of exchanges, so a reader knows whether it has
    arrived, and no barrier is needed. Two boxes suffice: no program writes to a box again before it
    has read the other one, which all programs fill only after they have emptied this one. Waiting
    programs occupy their processor, so all have to run at once (see ``launch.choose``).

    If all words are too many to be read by every program, each adds up its share of the entries and
    sends the sums.
    """
    if C.split > 1:
        stamp = (turn + 1).to(tl.int64)
        mail, part, room = post
        box = mail + (turn % 2) * room
        entries = tl.arange(0, SIZE)
        send(box + part * SIZE + entries, x, stamp)
        senders = tl.arange(0, C.split)[:, None] * SIZE
        if C.split * SIZE <= AT_ONCE:
            x = combine(received(box + senders + entries[None, :], stamp), MAX)
        else:
            SHARE: tl.constexpr = SIZE // C.split
            own = part * SHARE + tl.arange(0, SHARE)
            y = combine(received(box + senders + own[None, :], stamp), MAX)
            sums = box + 2 * C.split * C.M
            send(sums + own, y, stamp)
            x = received(sums + entries, stamp)
    return x, turn + 1


@triton.jit
def send(to, x, stamp):
    """Put numbers into words with a stamp."""
    tl.atomic_xchg(to, x.to(tl.uint32, bitcast=True).to(tl.int64) | (stamp << 32), sem="relaxed")


def _spin(count):
    """Code (PTX) that waits until ``count`` words have their stamps, and its registers.

    Labels end with their block, so the code can occur any number of times.
    """
    got, words, stamps, first = ([f"${count * k + i}" for i in range(count)] for k in range(4))
    lines = [f"mov.b64 {x}, {y};" for x, y in zip(got, first, strict=True)]
    lines += ["check:", "mov.b64 wrong, 0;"]
    for x, stamp in zip(got, stamps, strict=True):
        lines += [f"shr.u64 found, {x}, 32;", f"xor.b64 found, found, {stamp};"]
        lines += ["or.b64 wrong, wrong, found;"]
    lines += ["setp.eq.u64 all, wrong, 0;", "@all bra done;"]
    lines += [f"ld.relaxed.gpu.global.b64 {x}, [{y}];" for x, y in zip(got, words, strict=True)]
    lines += ["bra check;", "done:"]
    head = ["{", ".reg .pred all;", ".reg .b64 found, wrong;"]
    registers = ",".join(["=&l"] * count + ["l"] * (3 * count))
    return tl.constexpr("\n".join([*head, *lines, "}"])), tl.constexpr(registers)


SPIN, SPIN_REGISTERS = _spin(1)
SPIN_4, SPIN_4_REGISTERS = _spin(4)
# Enough words for four per thread of a program; a multiple of four.
ENOUGH_FOR_4 = tl.constexpr(4 * 32 * 8)


@triton.jit
def received(words, stamp):
    """The numbers in words, once all of them have this stamp.

    Each thread waits for its own words: threads that asked each other whether all have arrived
    would meet at several barriers for every look.
    """
    got = tl.load(words, volatile=True)
    if not KNOWS_PTX:
        while late(got, stamp):
            got = tl.load(words, volatile=True)
    else:
        four: tl.constexpr = words.numel >= ENOUGH_FOR_4
        got = tl.inline_asm_elementwise(
            SPIN_4 if four else SPIN,
            SPIN_4_REGISTERS if four else SPIN_REGISTERS,
            [words.to(tl.int64), stamp, got],
            dtype=tl.int64,
            is_pure=False,
            pack=4 if four else 1,
        )
    # No thread may write to a box that another has not read.
    tl.debug_barrier()
    return (got & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def late(got, stamp):
    """Whether a word of this exchange is missing."""
    wrong = tl.where((got >> 32) == stamp, 0, 1)
    if len(wrong.shape) == 2:
        wrong = max_of(wrong, 0)
    return max_of(wrong, 0) > 0


@triton.jit
def combine(values, MAX: tl.constexpr):
    """Sum or largest over the senders."""
    if MAX:
        x = max_of(values, 0)
    else:
        x = sum_of(values, 0)
    return x


@triton.jit
def exchange_pair(x, y, post, turn, C: tl.constexpr):
    """The sums of two vectors (M,) for one exchange."""
    if C.split > 1:
        both = tl.reshape(tl.join(x, y), (2 * C.M,))
        both, turn = exchange(both, post, turn, 2 * C.M, C)
        x, y = tl.split(tl.reshape(both, (C.M, 2)))
    return x, y, turn


@triton.jit
def exchange_numbers(x, y, post, turn, C: tl.constexpr):
    """The sums of two numbers for one exchange."""
    rows = tl.arange(0, C.M)
    nothing = tl.full((C.M,), 0.0, tl.float32)
    xs, ys, turn = exchange_pair(x + nothing, y + nothing, post, turn, C)
    x = sum_of(tl.where(rows == 0, xs, 0.0), 0)
    y = sum_of(tl.where(rows == 0, ys, 0.0), 0)
    return x, y, turn


@triton.jit
def count_inputs(b, input_mask, total, place, chunks, post, turn, C: tl.constexpr):
    """How many inputs are real and have mass, the mass of each if uniform, and if any has some."""
    rows, m, n, start, stop, pitch, edge = place
    real = total * 0 + n
    heavy = real
    if C.marginals or C.input_mask:
        acc_real = tl.full((C.N,), 0.0, tl.float32)
        acc_heavy = tl.full((C.N,), 0.0, tl.float32)
        for k in range(chunks):
            cols = columns(k, place, C)
            mask = cols < stop
            if C.input_mask:
                mask = read_inputs(input_mask, cols, place, C) != 0
            acc_real += tl.where(mask, 1.0, 0.0)
            if C.marginals:
                mask = read_inputs(b, cols, place, C) >= SMALLEST
            acc_heavy += tl.where(mask, 1.0, 0.0)
        real, heavy, turn = exchange_numbers(
            sum_of(acc_real, 0), sum_of(acc_heavy, 0), post, turn, C
        )
    even = total / tl.where(real > 0, real, 1.0)
    some = heavy > 0
    if not C.marginals:
        some = some & (even >= SMALLEST)
    return real, heavy, even, some, turn
