"""Read single frames of mp4 files with PyAV."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from slotmesh.readers import _untrusted
from slotmesh.readers._images import Pixels
from slotmesh.readers._mp4 import claimed_samples
from slotmesh.readers.errors import BadRecord

# CLEVRER uses h264; encoders without it write mpeg4.
_CODECS = ("h264", "mpeg4")
# CLEVRER's files have a quarter of a million bytes.
_MOST_BYTES = 1 << 28
_MOST_SAMPLES = 1 << 22
_DECODING = {
    # Without this, damage is hidden by copies of neighbouring pixels.
    "err_detect": "explode",
    "max_pixels": str(1 << 25),
}


def require_av(reader: str) -> ModuleType:
    """Import PyAV, or raise an error that says how to install it."""
    try:
        return importlib.import_module("av")
    except ImportError as error:
        raise ValueError(
            f"{reader}: videos are read with PyAV, which is not installed. "
            "Install it with pip install av"
        ) from error


def load_frames(path: Path, frames: Sequence[int], record: int | str | None = None) -> list[Pixels]:
    """Read these frames in this order, rotated as players show them: uint8 ``(H, W, 3)`` each."""
    wanted, found = set(frames), dict[int, Pixels]()
    count = 0
    with _opened(path, record) as container:
        # The frames in between must be decoded too, since each depends on earlier ones.
        for count, frame in enumerate(container.decode(video=0), 1):
            if frame.is_corrupt:
                raise BadRecord(path, record, f"its frame {count - 1} is damaged")
            if count - 1 in wanted:
                pixels = np.asarray(frame.to_ndarray(format="rgb24"))
                # In degrees, counterclockwise.
                turned = np.rot90(pixels, round(frame.rotation / 90))
                found[count - 1] = np.ascontiguousarray(turned)
            if len(found) == len(wanted):
                break
    if len(found) < len(wanted):
        raise BadRecord(
            path, record, f"it has {count} frames, expected at least {max(wanted) + 1}: cut short?"
        )
    if len({pixels.shape for pixels in found.values()}) > 1:
        raise BadRecord(path, record, "its frames differ in size")
    return [found[f] for f in frames]


def count_frames(path: Path) -> int:
    """Count the frames of a clip without decoding them."""
    with _opened(path, None) as container:
        return sum(packet.size > 0 for packet in container.demux(video=0))


@contextmanager
def _opened(path: Path, record: int | str | None) -> Iterator[Any]:
    """Open a clip for decoding; every error inside names it."""
    av = require_av("load_frames")
    with _untrusted.open_file(path, record, most=_MOST_BYTES) as file:
        try:
            samples = claimed_samples(file)
            if samples > _MOST_SAMPLES:
                reason = f"it claims {samples:,} samples, expected at most {_MOST_SAMPLES:,}"
                raise BadRecord(path, record, reason)
            # Other formats are not supported, and some would open files that they name.
            options = _DECODING | {"protocol_whitelist": "none"}
            with av.open(file, mode="r", format="mp4", options=options) as container:
                _check_codec(container, path, record)
                container.streams.video[0].codec_context.options = _DECODING
                yield container
        except BadRecord:
            raise
        except (av.error.FFmpegError, OSError, EOFError, IndexError, ValueError) as error:
            # FFmpeg's message ends with the name of the file, which here is a number.
            why = getattr(error, "strerror", None) or error
            raise BadRecord(path, record, f"it is not an mp4, or damaged: {why}") from error


def _check_codec(container: Any, path: Path, record: int | str | None) -> None:
    if not container.streams.video:
        raise BadRecord(path, record, "it holds no video")
    context = container.streams.video[0].codec_context
    codec = None if context is None else context.name
    if codec not in _CODECS:
        expected = " or ".join(_CODECS)
        raise BadRecord(path, record, f"its codec is {codec or 'unknown'}, expected {expected}")
