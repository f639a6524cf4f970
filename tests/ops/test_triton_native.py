"""Kernels compile to machine code; the interpreter takes much that the compiler refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

CALLS = {
    "uniform": "mesh(cost(128, 10, 1024), **how)",
    "masses": "mesh(cost(128, 10, 1024), torch.ones(10), torch.ones(1024) / 102.4, **how)",
    "split": "mesh(cost(2, 6, 4096), input_mask=torch.rand(4096) > 0.1, **how)",
    "graph": "mesh(cost(4, 5, 105), potentials='reuse', **how)",
    "beyond the cache": "mesh(cost(64, 11, 16384), **how)",
    "half": "sinkhorn(cost(64, 7, 3000).bfloat16(), slot_mask=torch.ones(7) > 0, **how)",
    "many slots": "sinkhorn(cost(16, 256, 256), temperature=torch.ones(16), **how)",
    "small": "sinkhorn(cost(64, 4, 4), **how)",
}


@pytest.fixture(scope="module")
def barriers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Barriers of the kernels of each call, compiled for compute capability 9.0."""
    # A process of its own: this one may have defined the kernels for the interpreter.
    script = Path(__file__).with_name("_native_code.py")
    native = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    native["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, script, *CALLS.values()],
        env=native,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CALLS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("call", CALLS)
def test_compiles(barriers: dict[str, dict[str, int]], call: str) -> None:
    kind = "small_kernel" if call == "small" else "kernel"
    assert set(barriers[call]) == {f"forward_{kind}", f"backward_{kind}"}


@pytest.mark.parametrize("kernel", ["forward_kernel", "backward_kernel"])
def test_threads_have_the_masses_of_their_inputs(
    barriers: dict[str, dict[str, int]], kernel: str
) -> None:
    # Otherwise threads hand them to each other, with two barriers for every block.
    more = barriers["masses"][kernel] - barriers["uniform"][kernel]
    assert more <= 6
