"""Compile the kernels that calls would launch on an H100 or H200; no GPU is needed.

Prints, for every call in the arguments, the kernels that it launches with their barriers.
"""

import json
import sys
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from slotmesh.ops import _fused, mesh, sinkhorn

# Processors and bytes of cache of an H200.
HARDWARE = 132, 60 * 2**20


def cost(*shape: int) -> Tensor:
    """Random costs with a gradient."""
    return torch.rand(shape, requires_grad=True)


def main(calls: list[str]) -> None:
    """Make the calls, with compilation in place of every launch."""
    found: list[dict[str, int]] = []

    def compile_only(
        device: torch.device, kernel: Any, grid: object, *args: Any, together: bool = False,
        num_warps: int = 4,
    ) -> None:  # fmt: skip
        *given, case = args
        types = dict(zip(kernel.arg_names, [*map(mangle_type, given), "constexpr"], strict=True))
        options = {"num_warps": num_warps, "launch_cooperative_grid": together}
        source = ASTSource(kernel, types, {"C": case})
        code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        found[-1][kernel.__name__] = code.asm["ptx"].count("bar.sync")

    # As in a build for CUDA, whose kernels wait in machine code; read when they are imported.
    torch.version.cuda = torch.version.cuda or "13.0"
    from slotmesh.ops._triton import launch

    launch.run_on = compile_only
    launch._hardware = lambda device: HARDWARE
    # Tensors stay on the CPU, and nothing is computed.
    _fused._no_kernel = lambda *args: None
    names = {"torch": torch, "cost": cost, "mesh": mesh, "sinkhorn": sinkhorn}
    names["how"] = {"backend": "triton"}
    for call in calls:
        found.append({})
        eval(call, names).plan.sum().backward()  # noqa: S307
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
