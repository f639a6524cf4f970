"""Kernels whose programs wait for each other, on a GPU that others keep busy.

Run as ``python _waiting.py CASE``, in a process of its own: a kernel that hangs cannot be stopped
from within.
"""

import sys
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from slotmesh import mesh, sinkhorn
from slotmesh.ops._triton.launch import choose

Results = tuple[Tensor, ...]
ROUNDS = 20


@triton.jit
def hold_kernel(nanoseconds):
    """Keep a part of a processor, each program a little longer than the one before."""
    now = globaltimer()
    until = now + nanoseconds * (tl.program_id(0) + 1)
    while now < until:
        now = globaltimer()


def hold(stream: torch.cuda.Stream) -> None:
    """Fill all threads of all processors, which become free one after another within 3 ms."""
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    # 1024 threads each, and a processor has 2048.
    programs = 2 * processors
    with torch.cuda.stream(stream):
        hold_kernel[(programs,)](3_000_000 // programs, num_warps=32)


def problem(seed: int) -> Tensor:
    """Costs whose programs wait for each other, and take 128 of the 132 processors of an H200."""
    cost = torch.rand(4, 8, 8192, generator=torch.Generator().manual_seed(seed)).cuda()
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    assert choose(*cost.shape, processors).split > 1
    return cost


def step(cost: Tensor) -> Results:
    """MESH and Sinkhorn, and their gradients."""
    # A leaf belongs to the stream that it was made in.
    leaf = cost.detach().requires_grad_()
    plan = mesh(leaf, noise=0.0, backend="triton").plan
    soft = sinkhorn(leaf, n_iters=20, backend="triton").plan
    weight = torch.linspace(0, 1, cost.shape[-1], device=cost.device)
    [grad] = torch.autograd.grad(((plan + soft) * weight).sum(), leaf)
    return plan.detach(), soft.detach(), grad


def record(cost: Tensor) -> tuple[Callable[[], None], Results]:
    """A step as a CUDA graph: its replay, and where its results are."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(cost)
    return graph.replay, results


def same(found: Results, expected: Results) -> None:
    """The numbers of an idle GPU."""
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-7)


def busy() -> None:
    """One step at a time, beside something else."""
    cost, side = problem(0), torch.cuda.Stream()
    expected = step(cost)
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        hold(side)
        found = step(cost)
        torch.cuda.synchronize()
        same(found, expected)


def streams() -> None:
    """Six at a time, of two priorities; each alone takes nearly all processors."""
    costs = [problem(seed) for seed in range(6)]
    expected = [step(cost) for cost in costs]
    lanes = [torch.cuda.Stream(priority=-(i % 2)) for i in range(len(costs))]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        hold(side)
        found: list[Results] = []
        for cost, lane in zip(costs, lanes, strict=True):
            with torch.cuda.stream(lane):
                found.append(step(cost))
        torch.cuda.synchronize()
        for x, y in zip(found, expected, strict=True):
            same(x, y)


def graphs() -> None:
    """Recorded steps, replayed on two streams at once."""
    costs = [problem(seed) for seed in range(2)]
    expected = [step(cost) for cost in costs]
    recorded = [record(cost) for cost in costs]
    lanes, side = [torch.cuda.Stream() for _ in costs], torch.cuda.Stream()
    for _ in range(ROUNDS):
        for _, results in recorded:
            for x in results:
                x.zero_()
        torch.cuda.synchronize()
        hold(side)
        for (replay, _), lane in zip(recorded, lanes, strict=True):
            with torch.cuda.stream(lane):
                replay()
        torch.cuda.synchronize()
        for (_, results), y in zip(recorded, expected, strict=True):
            same(results, y)


CASES = {"busy": busy, "streams": streams, "graphs": graphs}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
