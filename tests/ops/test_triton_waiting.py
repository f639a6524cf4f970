"""Programs that wait for each other finish, whatever else the GPU does: all start, or none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

# Compilation included; the steps themselves take less than a second.
SECONDS = 300


@pytest.mark.parametrize("case", ["busy", "streams", "graphs"])
def test_on_a_gpu_that_others_keep_busy(case: str) -> None:
    script = Path(__file__).with_name("_waiting.py")
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    try:
        done = subprocess.run(
            [sys.executable, str(script), case],
            env=env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{case}: not done within {SECONDS} seconds, so its programs wait forever")
    assert done.returncode == 0, done.stderr
