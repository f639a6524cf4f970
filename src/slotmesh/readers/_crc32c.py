"""CRC32C, the checksum of TFRecords, over large buffers in numpy.

The checksum is linear over GF(2). What a byte adds to it depends on its value and on how many bytes
follow, so the bytes of a block are looked up in one table and combined by XOR; then the register is
moved past one block after another.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_BLOCK = 1024
_MASK_DELTA = 0xA282EAD8

Words = NDArray[np.uint32]


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum as TFRecords store it: rotated and offset."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes | memoryview) -> int:
    """The CRC32C (Castagnoli) of the bytes.

    Example:
        >>> from slotmesh.readers._crc32c import crc32c
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    if len(data) < 64:
        return _bytewise(data)
    n_blocks = -(-len(data) // _BLOCK)
    padded = np.zeros(n_blocks * _BLOCK, dtype=np.uint8)
    # Leading zeros change nothing, since the register starts at zero here; its usual start, all
    # ones, is equivalent to flipping the first four bytes.
    start = len(padded) - len(data)
    padded[start:] = np.frombuffer(data, dtype=np.uint8)
    padded[start : start + 4] ^= 0xFF
    rows = padded.reshape(n_blocks, _BLOCK)
    # A megabyte at a time, since the indices take eight times the memory of the bytes.
    blocks: Words = np.concatenate(
        [
            np.bitwise_xor.reduce(_shares().take(rows[i : i + 1024] + _offsets()), axis=1)
            for i in range(0, n_blocks, 1024)
        ]
    )
    crc = 0
    tables = _block_tables()
    for block in blocks.tolist():
        low = tables[0][crc & 0xFF] ^ tables[1][(crc >> 8) & 0xFF]
        crc = block ^ low ^ tables[2][(crc >> 16) & 0xFF] ^ tables[3][crc >> 24]
    return crc ^ 0xFFFFFFFF


def _bytewise(data: bytes | memoryview) -> int:
    table = _byte_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@cache
def _byte_table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


@cache
def _shares() -> Words:
    """What byte ``b`` at position ``p`` of a block adds, at ``256 p + b``: uint32."""
    step = np.array(_byte_table(), dtype=np.uint32)
    shares = np.empty((_BLOCK, 256), dtype=np.uint32)
    shares[-1] = step
    for place in range(_BLOCK - 2, -1, -1):
        later = shares[place + 1]
        shares[place] = step[later & 0xFF] ^ (later >> 8)
    return shares.reshape(-1)


@cache
def _offsets() -> NDArray[np.int64]:
    return np.arange(_BLOCK, dtype=np.int64) * 256


@cache
def _block_tables() -> list[list[int]]:
    """The register after a block of zero bytes, by each of its four bytes: ``(4, 256)``."""
    values = np.arange(256, dtype=np.uint32)
    registers: Words = np.stack([values << np.uint32(8 * i) for i in range(4)])
    step = np.array(_byte_table(), dtype=np.uint32)
    for _ in range(_BLOCK):
        registers = step[registers & np.uint32(0xFF)] ^ (registers >> np.uint32(8))
    return registers.tolist()
