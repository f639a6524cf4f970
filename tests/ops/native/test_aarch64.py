"""The C for AArch64 (Graviton, Apple silicon), by a cross-compiler where there is one."""

import ctypes
import shutil
import subprocess
import sys

import pytest

from slotmesh.ops._native import NativeJob, recipe

COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
NAMES = ("solve", "pull_back", "adjoint", "assign", "transport")

# One iteration on costs of 0: every entry of the plan is a times b. Two threads share the batch.
PROGRAM = """
#include "job.h"
#include <math.h>
#include <stdio.h>

int slotmesh_solve_baseline(const job *);

int main(void) {
    enum { B = 5, M = 3, N = 7 };
    float cost[B * M * N] = {0}, a[B * M], b[B * N], start[B * M] = {0};
    float plan[B * M * N], u[B * M], v[B * N];
    uint8_t easy[B];
    for (int k = 0; k < B * M; k++) a[k] = 1.0f / M;
    for (int k = 0; k < B * N; k++) b[k] = 1.0f / N;
    for (int k = 0; k < B; k++) easy[k] = 1;
    const job o = {.batch = B, .m = M, .n = N, .n_iters = 1, .threads = 2, .tau = 1, .cost = cost,
                   .a = a, .b = b, .start = start, .easy = easy, .plan = plan, .u = u, .v = v};
    if (slotmesh_solve_baseline(&o)) return 1;
    for (int k = 0; k < B * M * N; k++)
        if (!(fabsf(plan[k] * M * N - 1) < 1e-5f)) return 2;
    for (int k = 0; k < B; k++)
        if (!easy[k]) return 3;
    printf("%zu\\n", sizeof(job));
    return 0;
}
"""


@pytest.fixture
def cross(tmp_path):
    """A compiler that has a C library, too: that of Fedora is for kernels, and has none."""
    if sys.platform != "linux" or COMPILER is None:
        pytest.skip("no aarch64-linux-gnu-gcc on Linux")
    source = tmp_path / "probe.c"
    source.write_text("#include <math.h>\n#include <pthread.h>\nint main(void) { return 0; }\n")
    command = [COMPILER, "-static", "-pthread", str(source), "-o", str(tmp_path / "probe"), "-lm"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("aarch64-linux-gnu-gcc has no C library")
    return COMPILER


def test_one_level_and_every_function(cross, tmp_path):
    """There are no levels of x86-64, nor flags for them."""
    library = recipe.build((cross,), tmp_path, "aarch64").read_bytes()
    for name in NAMES:
        assert f"slotmesh_{name}_baseline".encode() in library
    assert b"avx" not in library


@pytest.mark.skipif(not EMULATOR, reason="no qemu-aarch64")
def test_runs_in_an_emulator(cross, tmp_path):
    """The plan is right, and Python's structure is as large as that of C."""
    recipe.build((cross,), tmp_path, "aarch64")
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text(PROGRAM)
    objects = [str(path) for path in tmp_path.glob("*.o")]
    command = [cross, *recipe.FLAGS, "-static", f"-I{recipe.SOURCES}", str(source), *objects]
    subprocess.run([*command, "-o", str(program), "-lm"], check=True)
    done = subprocess.run([EMULATOR, str(program)], capture_output=True, text=True, check=True)
    assert int(done.stdout) == ctypes.sizeof(NativeJob)
