"""The C for AArch64 (Graviton, Apple silicon), by a cross-compiler where there is one."""

import ctypes
import shutil
import subprocess
import sys

import pytest
import torch

from slotmesh.ops import mesh
from slotmesh.ops._native import NativeJob, recipe

COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
NAMES = ("solve", "pull_back", "adjoint", "assign", "transport")
SIZES = {"B": 5, "M": 3, "N": 7, "STEPS": 2, "ITERATIONS": 3}
LENGTH = 1.5

# MESH with uneven costs and masses, all exact in float32. Two threads share the batch.
PROGRAM = r"""
#include "job.h"
#include <stdio.h>

int slotmesh_solve_baseline(const job *);

int main(void) {
    float cost[B * M * N], changed[B * M * N], a[B * M], b[B * N], start[B * M] = {0};
    float plan[B * M * N], u[B * M], v[B * N];
    uint8_t easy[B];
    for (int k = 0; k < B * M * N; k++) cost[k] = changed[k] = k * 37 % 11 / 4.0f;
    for (int k = 0; k < B * M; k++) a[k] = 7 * (k % M + 1);
    for (int k = 0; k < B * N; k++) b[k] = 1.5f * (k % N + 1);
    for (int k = 0; k < B; k++) easy[k] = 1;
    const job o = {.batch = B, .m = M, .n = N, .n_iters = ITERATIONS, .n_steps = STEPS,
                   .threads = 2, .tau = 1, .length = LENGTH, .cost = cost, .a = a, .b = b,
                   .start = start, .easy = easy, .changed = changed, .plan = plan, .u = u, .v = v};
    if (slotmesh_solve_baseline(&o)) return 1;
    for (int k = 0; k < B; k++)
        if (!easy[k]) return 2;
    printf("%zu\n", sizeof(job));
    for (int k = 0; k < B * M * N; k++) printf("%.9g\n", plan[k]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the library and its object files."""
    folder = tmp_path_factory.mktemp("aarch64")
    if sys.platform != "linux" or COMPILER is None:
        pytest.skip("no aarch64-linux-gnu-gcc on Linux")
    # Fedora's compiler is for kernels and has no C library.
    source = folder / "probe.c"
    source.write_text("#include <math.h>\n#include <pthread.h>\nint main(void) { return 0; }\n")
    command = [COMPILER, "-static", "-pthread", str(source), "-o", str(folder / "probe"), "-lm"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("aarch64-linux-gnu-gcc has no C library")
    recipe.build((COMPILER,), folder, "aarch64")
    return folder


def test_one_level_and_every_function(built):
    """There are no levels of x86-64, nor flags for them."""
    library = (built / f"library{recipe.SUFFIX}").read_bytes()
    for name in NAMES:
        assert f"slotmesh_{name}_baseline".encode() in library
    assert b"avx" not in library


@pytest.mark.skipif(not EMULATOR, reason="no qemu-aarch64")
def test_runs_in_an_emulator(built):
    """The plan is that of torch in float64, and Python's structure is as large as that of C."""
    source, program = built / "main.c", built / "main"
    source.write_text(PROGRAM)
    objects = [str(path) for path in built.glob("*.o")]
    sizes = [f"-D{name}={value}" for name, value in {**SIZES, "LENGTH": LENGTH}.items()]
    command = [COMPILER, *recipe.FLAGS, *sizes, "-static", f"-I{recipe.SOURCES}", str(source)]
    subprocess.run([*command, *objects, "-o", str(program), "-lm"], check=True)
    done = subprocess.run([EMULATOR, str(program)], capture_output=True, text=True, check=True)
    size, *plan = done.stdout.split()
    assert int(size) == ctypes.sizeof(NativeJob)

    batch, m, n, n_steps, n_iters = SIZES.values()
    cost = (torch.arange(batch * m * n) * 37 % 11).double().view(batch, m, n) / 4
    a = 7 * torch.arange(1.0, m + 1).double()
    b = 1.5 * torch.arange(1.0, n + 1).double()
    options = {"lr": LENGTH, "n_steps": n_steps, "n_iters": n_iters, "noise": 0.0}
    expected = mesh(cost, a, b, **options, backend="torch").plan
    found = torch.tensor([float(x) for x in plan], dtype=torch.float64).view(batch, m, n)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
