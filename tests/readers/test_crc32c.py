import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.readers._crc32c import crc32c, masked_crc32c


def bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            low = (crc ^ (byte >> bit)) & 1
            crc = (crc >> 1) ^ (0x82F63B78 if low else 0)
    return crc ^ 0xFFFFFFFF


# The first is the polynomial's check value, the others are from RFC 3720, appendix B.4.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 20))
def test_any_length_agrees_with_the_definition(part: bytes, repeats: int) -> None:
    data = part * (repeats + 1)
    assert crc32c(data) == bit_by_bit(data)
    assert crc32c(memoryview(data)) == bit_by_bit(data)


@pytest.mark.parametrize("n", [63, 64, 1023, 1024, 1025, 2048, 3072, 5000])
def test_around_the_edges_of_blocks(n: int) -> None:
    data = bytes((i * 37 + i // 7) % 256 for i in range(n))
    assert crc32c(data) == bit_by_bit(data)


def test_more_than_a_megabyte_is_joined_from_pieces() -> None:
    data = bytes(1024 * 1024 + 300) + b"the end of a long record"
    # The definition, a byte at a time: linear, so a byte's step is its difference to that of 0.
    step = [bit_by_bit(bytes([b])) ^ bit_by_bit(b"\0") for b in range(256)]
    crc = 0xFFFFFFFF
    for byte in data:
        crc = step[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    assert crc32c(data) == crc ^ 0xFFFFFFFF


def test_masking() -> None:
    crc = bit_by_bit(bytes(8))
    expected = (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) % 2**32
    assert masked_crc32c(bytes(8)) == expected
    # An empty record in a file of TensorFlow's: eight zero bytes and these four.
    assert masked_crc32c(bytes(8)).to_bytes(4, "little").hex() == "29039807"
