"""Folders of small pictures, good and bad."""

from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed: int = 0, height: int = 20, width: int = 20) -> np.ndarray:
    """Smooth colours, which survive JPEG."""
    rng = np.random.default_rng(seed)
    low = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8))
    return np.asarray(low.resize((width, height), Image.Resampling.BILINEAR))


def blobs(n: int = 2, height: int = 20, width: int = 20) -> np.ndarray:
    """A mask with ``n`` objects in stripes, background on the left."""
    mask = np.zeros((height, width), np.uint8)
    for k in range(n):
        mask[:, width // 4 + k * width // (2 * n) : width // 4 + (k + 1) * width // (2 * n)] = k + 1
    return mask


def fill(
    root: Path, n: int = 12, *, masks: bool = False, height: int = 20, width: int = 20
) -> Path:
    """A folder of ``n`` images, with masks if asked for."""
    root.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        Image.fromarray(pixels(i, height, width)).save(root / f"{i:03d}.png")
        if masks:
            (root / "masks").mkdir(exist_ok=True)
            mask = blobs(1 + i % 3, height, width)
            Image.fromarray(mask).save(root / "masks" / f"{i:03d}.png")
    return root


def header_of(width: int, height: int) -> bytes:
    """A PNG that claims a size and has next to no pixels."""
    import struct
    import zlib

    def part(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = part(b"IHDR", head) + part(b"IDAT", zlib.compress(b"\0" * 100)) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
