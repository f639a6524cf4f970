"""How many files a reader goes through who follows one call."""

import gc
import sys
from pathlib import Path
from types import FrameType

import pytest
import torch

import slotmesh
from slotmesh import mesh, sinkhorn

SOURCE = Path(slotmesh.__file__).parent


@pytest.mark.parametrize(
    ("op", "options"),
    [
        (mesh, {"n_steps": 1}),
        (mesh, {"n_steps": 1, "grad": "implicit"}),
        (sinkhorn, {}),
        (sinkhorn, {"grad": "implicit"}),
    ],
)
def test_a_call_with_its_backward_passes_through_nine_files(device, op, options):
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        # Not the bodies of modules, which are imported with the first call.
        if event == "call" and frame.f_code.co_name != "<module>":
            called.add(frame.f_code.co_filename)

    cost = torch.rand(1, 2, 70, device=device).requires_grad_()
    a = torch.full((1, 2), 1.0, device=device)
    # What a process does once is no part of the way.
    op(cost, a, n_iters=2, backend="triton", **options).plan.square().sum().backward()
    # Nor is what the garbage of other tests calls when it is collected.
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        t = op(cost, a, n_iters=2, backend="triton", **options)
        t.plan.square().sum().backward()
    finally:
        sys.setprofile(None)
        gc.enable()
    files = {str(Path(x).relative_to(SOURCE)) for x in called if Path(x).is_relative_to(SOURCE)}
    if device == "cpu":  # where kernels are interpreted, and so seen
        assert "ops/_triton/forward.py" in files
    assert "ops/_triton/launch.py" in files
    assert len(files) <= 9, sorted(files)
