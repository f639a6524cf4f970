"""How many files a training batch passes through, from the command to the checkpoint."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import slotmesh
from slotmesh.cli import main
from slotmesh.training import loop, stream

from ._jobs import flags, tiny

SOURCE = Path(slotmesh.__file__).parent


def files_of_a_batch(words: list[str]) -> set[str]:
    """Files below ``slotmesh`` whose code runs for the second training batch.

    Counted are the files of all functions, methods, lambdas and comprehensions that run from the
    moment at which the batch's samples are drawn (``Order.batch``) to the end of writing the
    checkpoint after its step (``_save``), on the main thread, where the backward pass of a CPU
    runs, too; and those of the functions that were running at that moment, which lead there from
    the command line. Not counted is what runs while a module is imported, and what the command
    does before and after: the second batch is taken because the first imports and compiles.
    """
    found: set[str] = set()
    batches = 0
    counting = False

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal batches, counting
        code = frame.f_code
        if event == "call":
            if code is stream.Order.batch.__code__:
                batches += 1
                if batches == 2:
                    counting = True
                    above: FrameType | None = frame
                    while above is not None:
                        add(above)
                        above = above.f_back
            elif counting:
                add(frame)
        elif event == "return" and code is loop._save.__code__ and batches == 2:
            counting = False

    def add(frame: FrameType) -> None:
        path = Path(frame.f_code.co_filename)
        if frame.f_code.co_name != "<module>" and path.is_relative_to(SOURCE):
            found.add(str(path.relative_to(SOURCE)))

    sys.setprofile(note)
    try:
        main(words)
    finally:
        sys.setprofile(None)
    assert batches >= 2
    assert not counting
    return found


@pytest.mark.parametrize(("variant", "most"), [("SA", 20), ("SA-MESH", 28)])
def test_a_batch_passes_through_few_files(tmp_path: Path, variant: str, most: int) -> None:
    """At most 20, and for SA-MESH those of its operation, which has a limit of its own."""
    # No validation before the last step: it is no part of the way.
    often = {"steps": 3, "val_every": 3, "save_every": 1, "log_every": 1}
    settings = tiny("multi-dsprites", variant, tmp_path / "run", **often)
    found = files_of_a_batch(flags(settings))
    assert len(found) <= most, "\n".join(sorted(found))
    above = {name for name in found if not name.startswith("ops/")}
    assert len(above) <= 18, sorted(above)
