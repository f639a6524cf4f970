import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.readers._example import Feature, MalformedExampleError, parse_example


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def example(features: dict[str, bytes]) -> bytes:
    """An Example of serialised Features."""
    entries = [field(1, field(1, k.encode()) + field(2, v)) for k, v in features.items()]
    return field(1, b"".join(entries))


def byte_feature(values: list[bytes]) -> bytes:
    return field(1, b"".join(field(1, v) for v in values))


def float_feature(values: list[float], packed: bool = True) -> bytes:
    raw = [struct.pack("<f", v) for v in values]
    return field(2, field(1, b"".join(raw)) if packed else b"".join(b"\x0d" + r for r in raw))


def int_feature(values: list[int], packed: bool = True) -> bytes:
    raw = [varint(v % 2**64) for v in values]
    return field(3, field(1, b"".join(raw)) if packed else b"".join(b"\x08" + r for r in raw))


def same(feature: Feature, expected: object, dtype: type) -> bool:
    array = np.asarray(feature)
    return array.dtype == dtype and array.tolist() == expected


floats = st.lists(st.floats(width=32, allow_nan=False))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(max_size=5)),
    st.lists(st.binary(min_size=1, max_size=1), min_size=1, max_size=50),
    floats,
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.booleans(),
)
def test_what_is_written_is_read(
    strings: list[bytes], single: list[bytes], reals: list[float], whole: list[int], packed: bool
) -> None:
    data = example(
        {
            "strings": byte_feature([*strings, b"long one"]),
            "single": byte_feature(single),
            "reals": float_feature(reals, packed),
            "whole": int_feature(whole, packed),
            "ünicode": byte_feature([b"x", b""]),
        }
    )
    found = parse_example(data)
    assert found["strings"] == [*strings, b"long one"]
    assert same(found["single"], list(b"".join(single)), np.uint8)
    assert same(found["reals"], reals, np.float32)
    assert found["whole"] == []
    assert found["ünicode"] == [b"x", b""]


def test_bytes_of_a_known_serialisation() -> None:
    # From the documentation of TensorFlow: tf.train.Example with feature0: int64 [0].
    data = b"\n\x13\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00"
    assert parse_example(data) == {"feature0": []}


def test_unknown_fields_are_passed_over() -> None:
    known = example({"x": float_feature([1.5])})
    others = field(9, b"abc") + varint(10 << 3) + varint(300) + varint(11 << 3 | 5) + b"1234"
    others += varint(12 << 3 | 1) + b"12345678"
    assert same(parse_example(others + known + others)["x"], [1.5], np.float32)


def test_three_bytes_that_only_look_like_single_entries() -> None:
    # An entry of four bytes and one of none have six bytes together, as two single ones have.
    assert parse_example(example({"x": byte_feature([b"\x01\x02\x0a\x01", b""])}))["x"] == [
        b"\x01\x02\x0a\x01",
        b"",
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a", "number is cut short"),
        (b"\x0a\x05abc", "3 of 5 bytes"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "more than ten bytes"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "cut short"),
        (b"\x0b", "unknown wire type 3"),
        (b"\x00\x01", "number 0"),
        (b"\x08\x01", "wire type 0"),
        (field(1, field(1, field(1, b"\xff"))), "UTF-8"),
        (example({"x": field(2, field(1, b"12345"))}), "5 bytes"),
    ],
)
def test_malformed(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedExampleError, match=reason):
        parse_example(data)


@settings(max_examples=300, deadline=60_000)
@given(st.data())
def test_damage_is_found_or_harmless(data: st.DataObject) -> None:
    good = example(
        {
            "image": byte_feature([bytes([b]) for b in range(40)]),
            "x": float_feature([1.0, 2.0]),
            "y": float_feature([1.0, 2.0], packed=False),
            "n": int_feature([1, -1]),
        }
    )
    if data.draw(st.booleans()):
        bad = good[: data.draw(st.integers(0, len(good)))]
    else:
        at = data.draw(st.integers(0, len(good) - 1))
        bad = good[:at] + data.draw(st.binary(max_size=6)) + good[at + 1 :]
    with suppress(MalformedExampleError):
        parse_example(bad)


@settings(max_examples=300, deadline=60_000)
@given(st.binary(max_size=300))
def test_noise_never_does_worse_than_being_refused(data: bytes) -> None:
    with suppress(MalformedExampleError):
        parse_example(data)
