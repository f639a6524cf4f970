"""A hash in the metadata of safetensors files, which have no checksum of their own."""

import hashlib
import json
from pathlib import Path
from typing import Any

from slotmesh.files import write_whole

_META, _KEY = "__metadata__", "sha256"


def seal(path: Path) -> None:
    """Write the SHA-256 of its tensors into a safetensors file."""
    header, data = _parts(path.read_bytes())
    header[_META] = {**header.get(_META, {}), _KEY: _digest(header, data)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # Tensors begin at a multiple of 8 bytes.
    write_whole(path, len(text).to_bytes(8, "little") + text + data)


def check_seal(path: Path) -> None:
    """Check the hash of a safetensors file, if it has one.

    Raises:
        ValueError: If the tensors have changed since they were written.
    """
    try:
        header, data = _parts(path.read_bytes())
        meta: Any = header.get(_META) or {}
        expected: Any = meta.get(_KEY)
    except (ValueError, AttributeError, RecursionError):
        return  # Not a safetensors file, for which its reader has a better error.
    if expected is not None and expected != _digest(header, data):
        raise ValueError(
            f"{path} cannot be read: it is damaged (its SHA-256 differs from the one recorded when "
            "it was written)."
        )


def _parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def _digest(header: dict[str, Any], data: bytes) -> str:
    """SHA-256 of names, types, shapes, offsets and values."""
    tensors = {name: about for name, about in header.items() if name != _META}
    found = hashlib.sha256(json.dumps(tensors, sort_keys=True).encode())
    found.update(data)
    return found.hexdigest()
