"""TFRecord files, plain or gzipped.

A record is its length, a checksum of the length, the data, and a checksum of the data. A plain file
is read in any order through an index of offsets, made once. A gzipped one can only be read from the
beginning: going forward is cheap, going back starts again.
"""

import gzip
import os
import struct
import zlib
from array import array
from pathlib import Path
from typing import Any, BinaryIO, cast

from slotmesh.readers import _untrusted
from slotmesh.readers._crc32c import masked_crc32c
from slotmesh.readers.errors import BadRecord

_HEADER = 12
_FOOTER = 4
# Larger lengths are damage, and would fill the memory before the checksum reveals it.
_MOST_BYTES = 1 << 26


class RecordFile:
    """The records of one file, by number; those from ``limit`` on are ignored."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.compressed = _is_compressed(path)
        self._offsets = array("Q")
        self._count: int | None = None
        self.broken: BadRecord | None = None
        """Why records after the last that :func:`len` counts cannot be found, if so."""
        self._stream: BinaryIO | None = None
        self._owner = 0
        self._next = 0

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stream": None}

    def __len__(self) -> int:
        """Number of records below the limit.

        One that is cut short, or whose length is damaged, counts as the last: reading it raises
        the error. In a gzipped file, counting reads through all of them.
        """
        if self._count is None:
            self._rewind()
            count = 0
            while count < self.limit:
                try:
                    more = self._skip()
                except BadRecord as bad:
                    self.broken = bad
                    count += 1
                    break
                if not more:
                    break
                count += 1
            self._count = count
            self._rewind()
        return self._count

    def read(self, number: int) -> bytes:
        """Read the data of a record and verify its checksum.

        Raises:
            BadRecord: If it is damaged; ``rest_lost`` if those after it cannot be found.
        """
        if self._stream is None or self._owner != os.getpid():
            self._rewind()
        if not self.compressed and number < len(self._offsets):
            self._goto(number)
        elif self._next > number:
            self._rewind()
        while self._next < number:
            if not self._skip():
                raise BadRecord(self.path, number, "the file ends before this record")
        return self._take()

    def _rewind(self) -> None:
        self.close()
        raw = _untrusted.open_file(self.path)
        opened = _Gzipped(raw) if self.compressed else raw
        # A forked process must not move the position of its parent's file.
        self._stream, self._owner, self._next = cast(BinaryIO, opened), os.getpid(), 0

    def _goto(self, number: int) -> None:
        assert self._stream is not None
        self._stream.seek(self._offsets[number])
        self._next = number

    def _header(self) -> int | None:
        """Length of the next record; None at the end of the file."""
        assert self._stream is not None
        if not self.compressed and self._next == len(self._offsets):
            self._offsets.append(self._stream.tell())
        header = self._bytes(_HEADER)
        if not header:
            if not self.compressed:
                self._offsets.pop()
            return None
        if len(header) < _HEADER:
            raise self._bad(f"cut short: {len(header)} of 12 bytes of its head are there")
        length, checksum = struct.unpack("<QI", header)
        if masked_crc32c(header[:8]) != checksum:
            what = "" if self._next else "it is not a TFRecord file, or damaged: "
            raise self._bad(f"{what}the checksum of its length is wrong")
        if length > _MOST_BYTES:
            raise self._bad(f"it is {length} bytes long, expected at most {_MOST_BYTES}")
        return length

    def _skip(self) -> bool:
        """Skip the next record; False at the end of the file."""
        assert self._stream is not None
        length = self._header()
        if length is None:
            return False
        size = length + _FOOTER
        if self.compressed:
            passed = len(self._bytes(size))
        else:
            here = self._stream.tell()
            passed = min(size, self.path.stat().st_size - here)
            self._stream.seek(here + size)
        if passed < size:
            raise self._bad(f"cut short: {passed} of {size} bytes are there")
        self._next += 1
        return True

    def _take(self) -> bytes:
        length = self._header()
        if length is None:
            raise BadRecord(self.path, self._next, "the file ends before this record")
        data = self._bytes(length + _FOOTER)
        if len(data) < length + _FOOTER:
            raise self._bad(f"cut short: {len(data)} of {length + _FOOTER} bytes are there")
        number, self._next = self._next, self._next + 1
        if masked_crc32c(memoryview(data)[:length]) != int.from_bytes(data[length:], "little"):
            raise BadRecord(self.path, number, "the checksum of its data is wrong")
        return data[:length]

    def _bytes(self, size: int) -> bytes:
        assert self._stream is not None
        try:
            return self._stream.read(size)
        except (EOFError, OSError, zlib.error) as error:
            raise self._bad(f"the compressed file is damaged or cut short: {error}") from error

    def _bad(self, reason: str) -> BadRecord:
        """An error after which the next record cannot be found; closes the file."""
        self.close()
        return BadRecord(
            self.path,
            self._next,
            f"{reason}. All records after it are lost too: a record is only found by the length "
            "of the one before. Copy or download the file again.",
            rest_lost=True,
        )


class _Gzipped(gzip.GzipFile):
    """A compressed file that closes the one it reads from."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        super().__init__(fileobj=raw, mode="rb")

    def close(self) -> None:
        super().close()
        self._raw.close()


def _is_compressed(path: Path) -> bool:
    """Whether the file is gzipped; the first length of a plain one may look the same by chance."""
    with _untrusted.open_file(path) as file:
        head = file.read(_HEADER)
    if head[:3] != b"\x1f\x8b\x08":
        return False
    return len(head) < _HEADER or masked_crc32c(head[:8]) != int.from_bytes(head[8:], "little")
