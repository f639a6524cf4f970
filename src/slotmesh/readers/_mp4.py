"""How many samples an mp4 claims to hold: FFmpeg allocates memory for them before reading them."""

import re
from typing import BinaryIO

_MOST_TABLES = 1 << 24
_TABLES = re.compile(rb"stsz|stz2|trun|stts|ctts|stsc|stco|co64|cmov")


def claimed_samples(file: BinaryIO) -> int:
    """Find the largest number of samples in any table; leaves the file at its beginning.

    Tables are found by their names in all boxes but those of the data, however nested: FFmpeg also
    reads tables that are in the wrong place.

    Raises:
        ValueError: If there is a box that no valid mp4 has.
    """
    size = file.seek(0, 2)
    at = claimed = 0
    while at + 8 <= size:
        file.seek(at)
        head = file.read(16)
        length, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if length == 1:
            length = int.from_bytes(head[8:], "big")
        elif length == 0:
            length = size - at
        if length < 8:
            raise ValueError(f"a box at byte {at} has {length} bytes, expected at least 8")
        if kind != b"mdat":
            if min(length, size - at) > _MOST_TABLES:
                raise ValueError(f"its box {kind!r} has {length:,} bytes of tables")
            file.seek(at)
            claimed = max(claimed, _claimed(file.read(length)))
        at += length
    file.seek(0)
    return claimed


def _claimed(box: bytes) -> int:
    claimed, in_chunk, chunks = 0, 1, 0

    def number(at: int) -> int:
        return int.from_bytes(box[at : at + 4], "big")

    for found in _TABLES.finditer(box):
        name, at = found[0], found.end()
        # After the name: a version, then the number of entries or samples.
        rows = range(at + 8, min(len(box), at + 8 + 12 * number(at + 4)))
        if name == b"cmov":
            raise ValueError("its tables are compressed")
        if name in (b"stsz", b"stz2"):
            claimed = max(claimed, number(at + 8))
        elif name == b"trun":
            claimed = max(claimed, number(at + 4))
        elif name in (b"stts", b"ctts"):
            claimed = max(claimed, sum(number(row) for row in rows[: 8 * number(at + 4) : 8]))
        elif name == b"stsc":
            in_chunk = max(in_chunk, *(number(row + 4) for row in rows[::12]), 1)
        else:
            chunks = max(chunks, number(at + 4))
    return max(claimed, in_chunk * chunks)
