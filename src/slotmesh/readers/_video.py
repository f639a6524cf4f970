"""Single frames of mp4 files, through PyAV."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from slotmesh.readers._images import Pixels
from slotmesh.readers.errors import BadRecord


def require_av(reader: str) -> ModuleType:
    """PyAV, or an error that says how to get it."""
    try:
        return importlib.import_module("av")
    except ImportError as error:
        raise ValueError(
            f"{reader}: videos are read with PyAV, which is not installed. "
            "Run: pip install slotmesh[video]"
        ) from error


def load_frames(path: Path, frames: Sequence[int], record: int | str | None = None) -> list[Pixels]:
    """These frames, in this order: uint8 ``(H, W, 3)`` each."""
    av = require_av("load_frames")
    if not path.is_file():
        raise BadRecord(path, record, "the file is missing")
    wanted, found = set(frames), dict[int, Pixels]()
    count = 0
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise BadRecord(path, record, "it holds no video")
            # Without this, damage is painted over with what the neighbours show.
            container.streams.video[0].codec_context.options = {"err_detect": "explode"}
            # The frames in between must be decoded too, since each builds on those before.
            for count, frame in enumerate(container.decode(video=0), 1):
                if frame.is_corrupt:
                    raise BadRecord(path, record, f"its frame {count - 1} is damaged")
                if count - 1 in wanted:
                    found[count - 1] = np.asarray(frame.to_ndarray(format="rgb24"))
                if len(found) == len(wanted):
                    break
    except (av.error.FFmpegError, OSError, EOFError, IndexError) as error:
        raise BadRecord(path, record, f"it is not a video, or damaged: {error}") from error
    if len(found) < len(wanted):
        raise BadRecord(
            path, record, f"it has {count} frames, expected at least {max(wanted) + 1}: cut short?"
        )
    return [found[f] for f in frames]
