"""Compressed run-length masks of COCO: a string of runs down the columns, from the top left.

Runs alternate between 0 and 1, starting with 0. From the fourth on, a run is stored as its
difference to the one two before. A number has five bits per character, lowest first, offset by 48;
the sixth bit says that more follow, and the fifth bit of the last character is the sign.
"""

import numpy as np
from numpy.typing import NDArray


class MalformedMaskError(ValueError):
    """The string is not a run-length mask of this size."""


def decode(counts: str | bytes | list[int], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Decode a mask of 0 and 1: uint8 ``(H, W)``.

    Args:
        counts: The compressed string, or plain run lengths.
        size: Height and width.

    Example:
        >>> from slotmesh.readers._rle import decode
        >>> decode([2, 3, 1], (2, 3)).tolist()
        [[0, 1, 1], [0, 1, 0]]
    """
    runs = counts if isinstance(counts, list) else _runs(counts)
    total = size[0] * size[1]
    if any(not isinstance(r, int) or isinstance(r, bool) or r < 0 for r in runs):
        raise MalformedMaskError("a run is not a whole number of at least 0")
    if sum(runs) != total:
        raise MalformedMaskError(
            f"its runs cover {sum(runs)} pixels, expected {size[0]} x {size[1]} = {total}"
        )
    lengths = np.array(runs, dtype=np.int64)
    flat = np.repeat((np.arange(len(lengths)) % 2).astype(np.uint8), lengths)
    return np.ascontiguousarray(flat.reshape(size[1], size[0]).T)


def _runs(counts: str | bytes) -> list[int]:
    # JSON can hold lone surrogates; as bytes they are refused below.
    raw = counts.encode("utf-8", "surrogatepass") if isinstance(counts, str) else counts
    runs: list[int] = []
    value = shift = 0
    for byte in raw:
        digit = byte - 48
        if not 0 <= digit < 64:
            raise MalformedMaskError(f"the character {chr(byte)!r} cannot be part of it")
        value |= (digit & 0x1F) << shift
        shift += 5
        if shift > 60:
            raise MalformedMaskError("a run has more than twelve characters")
        if digit & 0x20:
            continue
        if digit & 0x10:
            value -= 1 << shift
        if len(runs) > 2:
            value += runs[-2]
        runs.append(value)
        value = shift = 0
    if shift:
        raise MalformedMaskError("its last run is cut short")
    return runs
