"""Launch kernels by Triton's own launcher on a driver that runs nothing (``_driver.c``).

Prints, for every kernel that the calls in the arguments launch, the widths of the parameters that
it reads, those that it should get, and two launches: the kernel is compiled for the first.
"""

import ctypes
import json
import re
import struct
import sys
from typing import Any

import torch
from _native_code import HARDWARE, cost
from torch import Tensor
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

from slotmesh.ops import _fused, mesh, set_value_checks, sinkhorn

PARAMETERS = ctypes.POINTER(ctypes.c_void_p)
LAUNCHED = ctypes.CFUNCTYPE(None, ctypes.c_uint, ctypes.c_int, PARAMETERS)
# Addresses of memory that Triton adds, and these kernels do not ask for.
ADDED = [bytes(8), bytes(8)]


def as_bytes(x: Tensor | float) -> bytes:
    """An argument as a kernel gets it."""
    if isinstance(x, Tensor):
        return struct.pack("<Q", x.data_ptr())
    return struct.pack("<f" if isinstance(x, float) else "<i", x)


def main(calls: list[str]) -> None:
    """Make the calls."""
    found: list[dict[str, Any]] = []
    expected: list[bytes] = []
    launches: list[tuple[Any, ...]] = []

    @LAUNCHED
    def note(programs: int, together: int, parameters: Any) -> None:
        values = [ctypes.string_at(parameters[i], len(x)).hex() for i, x in enumerate(expected)]
        launches.append((programs, bool(together), values))

    library = ctypes.CDLL("libcuda.so.1")
    ctypes.c_void_p.in_dll(library, "launched").value = ctypes.cast(note, ctypes.c_void_p).value
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    # As in a build for CUDA, whose kernels wait in machine code; read when they are imported.
    torch.version.cuda = torch.version.cuda or "13.0"
    cuda = CudaDriver()
    cuda.get_current_stream = lambda _: 0
    driver.set_active(cuda)
    from slotmesh.ops._triton import launch

    def start(how: Any, kernel: Any, batch: int, cost: Tensor, *others: Any) -> None:
        _, tensors, numbers = others
        expected[:] = map(as_bytes, [*(cost if x is None else x for x in tensors), *numbers])
        expected.extend(ADDED)
        launches.clear()
        for _ in range(2):
            start_really(how, kernel, batch, cost, *others)
        (code,) = how.compiled.values()
        head = re.search(r"\.entry\s+\w+\((.*?)\)", code.asm["ptx"], re.DOTALL)[1]
        widths = [int(x) // 8 for x in re.findall(r"\.param \.[a-z](\d+)", head)]
        given = [x.hex() for x in expected]
        found.append({"kernel": kernel.__name__, "split": how.case.split, "widths": widths})
        found[-1] |= {"expected": given, "launches": list(launches)}

    start_really, launch._start = launch._start, start
    launch._hardware = lambda device: HARDWARE
    # Tensors stay on the CPU, and nothing is computed.
    _fused._no_kernel = lambda *args: None
    set_value_checks("never")
    names = {"torch": torch, "cost": cost, "mesh": mesh, "sinkhorn": sinkhorn}
    for call in calls:
        eval(call, names).plan.sum().backward()  # noqa: S307
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
