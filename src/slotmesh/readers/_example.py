"""A minimal parser of ``tf.train.Example``: just the wire format of protocol buffers.

An Example is a map from names to lists of bytes, floats or integers; the last are not needed, and
skipped. Lists of one-byte strings, as Multi-dSprites stores its images, are read by numpy at once.
"""

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Feature = list[bytes] | NDArray[np.uint8] | NDArray[np.float32]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class MalformedExampleError(ValueError):
    """The bytes are not an Example."""


def parse_example(data: bytes) -> dict[str, Feature]:
    """Parse a serialised Example into its features.

    Byte lists whose entries all have one byte become uint8 ``(n)``, others a list of bytes; floats
    become float32. Lists of integers are left empty. If a name occurs twice, the last one counts.

    Raises:
        MalformedExampleError: If the bytes are not an Example.

    Example:
        >>> from slotmesh.readers._example import parse_example
        >>> parse_example(bytes.fromhex("0a0d0a0b0a017812060a040a027935"))
        {'x': [b'y5']}
    """
    features: dict[str, Feature] = {}
    try:
        for number, wire, value in _fields(memoryview(data)):
            if number == 1:
                features |= (_entry(entry) for entry in _messages(value, wire, 1))
    except MalformedExampleError as error:
        raise MalformedExampleError(f"its data are not a tf.train.Example: {error}") from None
    return features


def _entry(data: memoryview) -> tuple[str, Feature]:
    """One pair of the map."""
    name, feature = "", memoryview(b"")
    for number, wire, value in _fields(data):
        if number == 1:
            try:
                name = str(_as_bytes(value, wire), "utf-8")
            except UnicodeDecodeError:
                raise MalformedExampleError("a feature's name is not UTF-8") from None
        elif number == 2:
            feature = _as_bytes(value, wire)
    return name, _feature(feature)


def _feature(data: memoryview) -> Feature:
    found: Feature = []
    for number, wire, value in _fields(data):
        if number == 1:
            found = _byte_list(_as_bytes(value, wire))
        elif number == 2:
            found = _float_list(_as_bytes(value, wire))
    return found


def _byte_list(data: memoryview) -> list[bytes] | NDArray[np.uint8]:
    if data and len(data) % 3 == 0:
        # Tag, length 1, the byte: three bytes per entry.
        rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3)
        if bool((rows[:, 0] == 0x0A).all()) and bool((rows[:, 1] == 1).all()):
            return rows[:, 2].copy()
    return [bytes(_as_bytes(value, wire)) for n, wire, value in _fields(data) if n == 1]


def _float_list(data: memoryview) -> NDArray[np.float32]:
    parts: list[NDArray[np.float32]] = []
    for number, wire, value in _fields(data):
        if number != 1:
            continue
        if wire == _FIXED32:
            parts.append(np.array([struct.unpack("<f", struct.pack("<I", value))[0]], np.float32))
            continue
        packed = _as_bytes(value, wire)
        if len(packed) % 4:
            raise MalformedExampleError(
                f"a list of floats has {len(packed)} bytes, not a multiple of 4"
            )
        parts.append(np.frombuffer(packed, dtype="<f4").astype(np.float32))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _messages(value: "memoryview | int", wire: int, field: int) -> Iterator[memoryview]:
    for number, inner_wire, inner in _fields(_as_bytes(value, wire)):
        if number == field:
            yield _as_bytes(inner, inner_wire)


def _fields(data: memoryview) -> Iterator[tuple[int, int, "memoryview | int"]]:
    """Number, wire type and value of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise MalformedExampleError("a field has the number 0")
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise MalformedExampleError(f"field {number} has the unknown wire type {wire}")
        if size > len(data) - at:
            raise MalformedExampleError(
                f"field {number} is cut short: {len(data) - at} of {size} bytes are there"
            )
        inner = data[at : at + size]
        yield number, wire, inner if wire == _BYTES else int.from_bytes(inner, "little")
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a number of variable length; also returns where the next field starts."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise MalformedExampleError("a number is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise MalformedExampleError("a number has more than ten bytes")


def _as_bytes(value: "memoryview | int", wire: int) -> memoryview:
    if wire != _BYTES or isinstance(value, int):
        raise MalformedExampleError(f"a field has wire type {wire}, expected 2 (bytes)")
    return value
