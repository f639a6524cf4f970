"""Damage to files, and what must come of it; run as a program, many in a process of their own."""

import json
import random
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from slotmesh.readers import BadRecord

from ._formats import FORMATS, Content, wrong


def flip_bit(data: bytearray, rng: random.Random) -> bytes:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def set_byte(data: bytearray, rng: random.Random) -> bytes:
    data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
    return bytes(data)


def set_number(data: bytearray, rng: random.Random) -> bytes:
    """Lengths and addresses of eight bytes are where the worst happens."""
    at = rng.randrange(len(data))
    value = rng.choice([0, 1, 2**31, 2**63 - 1, 2**64 - 1, rng.randrange(2**64)])
    return bytes(data[:at]) + value.to_bytes(8, "little") + bytes(data[at + 8 :])


def zero_block(data: bytearray, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(data)), rng.choice([8, 64, 512])
    return (bytes(data[:at]) + bytes(size) + bytes(data[at + size :]))[: len(data)]


def truncate(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data))])


def append(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data) + rng.randbytes(rng.randint(1, 100))


def remove(data: bytearray, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return bytes(data[:at]) + bytes(data[at + rng.randint(1, 64) :])


def swap(data: bytearray, rng: random.Random) -> bytes:
    size = min(rng.choice([1, 8, 64, 512]), len(data) // 2)
    first = rng.randrange(len(data) - 2 * size + 1)
    second = rng.randint(first + size, len(data) - size)
    a, b = data[first : first + size], data[second : second + size]
    data[first : first + size], data[second : second + size] = b, a
    return bytes(data)


DAMAGES: list[Callable[[bytearray, random.Random], bytes]] = [
    flip_bit,
    set_byte,
    set_number,
    zero_block,
    truncate,
    append,
    remove,
    swap,
]


class Bed:
    """A dataset of one format, and what is in it while it is whole."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.form = FORMATS[name]
        self.file = self.form.build(root)
        self.whole = self.file.read_bytes()
        self.original: Content = self.form.read(root, self.file)
        assert self.original

    def damage(self, seed: int) -> str:
        """Damage the file, read it; returns what became of it.

        Raises:
            AssertionError: If it read as something that it must not be.
        """
        rng = random.Random(seed)  # noqa: S311
        kind = rng.choice(DAMAGES)
        # Written in place: a file that is open would keep what it had.
        self.file.unlink()
        self.file.write_bytes(kind(bytearray(self.whole), rng))
        case = f"{self.name}, {kind.__name__}, seed {seed}"
        refused: ValueError | None = None
        found: Content = []
        try:
            found = self.form.read(self.root, self.file)
        except ValueError as error:
            refused = error
        if refused is not None:
            # One of the readers' own, which name the file; and in one line.
            assert type(refused) in (BadRecord, ValueError), f"{case}: {refused!r}"
            assert str(self.root) in str(refused), f"{case}: {refused!r}"
            assert type(refused) is ValueError or "\n" not in str(refused), f"{case}: {refused!r}"
            return "refused"
        problems = list(wrong(self.form, found, self.original))
        assert not problems, f"{case}: {problems[0]}"
        return "read"


def main(name: str, seeds: list[int]) -> None:
    """Try many; prints each seed before it is tried, so that a crash tells which it was."""
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(name, Path(folder))
        # What a damaged length asks for must not be had: an error of memory is none of ours.
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for seed in seeds:
            print(seed, end=" ", flush=True)  # noqa: T201
            print(bed.damage(seed), flush=True)  # noqa: T201
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
        assert grown < 1.5 * 2**20, f"{name}: reading took {grown / 2**20:.1f} GiB"


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
