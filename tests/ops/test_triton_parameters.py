"""What Triton's launcher passes to a kernel: the same at first and from then on, as addresses.

There is no GPU where this runs. In place of CUDA's driver is one that looks at launches.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

CALLS = (
    "mesh(cost(2, 3, 600), input_mask=torch.rand(600) > 0.1, temperature=torch.ones(2), n_iters=2,"
    " potentials='reuse', backend='triton')",
    "sinkhorn(cost(2, 3, 40).bfloat16(), torch.ones(3, requires_grad=True), temperature=0.7,"
    " slot_mask=torch.ones(3) > 0, backend='triton')",
    "sinkhorn(cost(9, 4, 4), init=(torch.ones(4), torch.ones(4)), backend='triton')",
)
WAYS = ("forward", "backward")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The launches of these calls."""
    pytest.importorskip("triton", reason="triton is not installed")
    from triton.backends.nvidia import driver

    if torch.version.cuda is not None:
        pytest.skip("torch was built for CUDA, and would call the stand-in for its driver too")
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    headers = Path(sysconfig.get_path("include", "posix_prefix"))
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("Triton compiles its launcher, for which it needs a C compiler and Python.h")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    options = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", f"-I{driver.include_dirs[0]}"]
    subprocess.run([compiler, *options, "-o", library, HERE / "_driver.c"], check=True)
    # A process of its own: this one may have defined the kernels for the interpreter.
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"TRITON_LIBCUDA_PATH": str(folder), "LD_PRELOAD": str(library)}
    env["TRITON_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, HERE / "_native_launches.py", *CALLS],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kernels_read_what_they_are_passed(found: list[dict[str, Any]]) -> None:
    kinds = ("kernel", "kernel", "small_kernel")
    assert [x["kernel"] for x in found] == [f"{y}_{x}" for x in kinds for y in WAYS]
    for x in found:
        assert x["widths"] == [len(value) // 2 for value in x["expected"]], x["kernel"]


def test_a_second_launch_is_as_the_first(found: list[dict[str, Any]]) -> None:
    for x in found:
        first, second = x["launches"]
        assert first == second, x["kernel"]
        assert first[2] == x["expected"], x["kernel"]


def test_programs_that_wait_start_together(found: list[dict[str, Any]]) -> None:
    assert [x["split"] > 1 for x in found] == [True, True, False, False, False, False]
    for x in found:
        assert [together for _, together, _ in x["launches"]] == [x["split"] > 1] * 2
