"""Kernels start on the device of their tensors, whichever is current: every one of them.

There is one GPU at most where these tests run, so tensors are fake ones on the first, a second is
said to be current, and a recorder takes the place of Triton's launch.
"""

import ast
import importlib
import itertools
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import slotmesh.ops
from slotmesh import mesh, sinkhorn
from slotmesh.ops import assign, emd, pairwise_cost
from slotmesh.ops._distance import distance_backward, distance_op
from slotmesh.ops._kernel_types import Incoming, Operands, Past, Results, Wanted
from slotmesh.ops._operator import plan_adjoint, transport_backward, transport_op
from slotmesh.ops.assignment import assign_small
from slotmesh.ops.emd.triton import emd_small
from slotmesh.ops.logit import logit_backward, logit_op
from slotmesh.ops.problem import SolverSettings

HERE = torch.device("cuda", 0)
OPS = Path(slotmesh.ops.__file__).parent
F32 = torch.float32


class Machine:
    """Two GPUs that are not there: which one is current, and what was launched."""

    def __init__(self) -> None:
        self.current = 1
        self.switches = 0
        self.launches: list[tuple[str, int, dict[str, Any]]] = []

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        self.switches += 1
        yield
        self.current = before

    def launch(self, kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **options: Any) -> None:
            for x in args:
                if isinstance(x, Tensor):
                    assert x.device.index == self.current, f"{kernel.__name__} on another device"
            self.launches.append((kernel.__name__, grid[0], options))

        return run


@pytest.fixture
def machine(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine that records launches; ``device`` says how kernels are imported."""
    if device == "cuda":
        pytest.skip("a stand-in for GPUs: it runs where there is none")
    from slotmesh.ops._triton import launch, solve

    found = Machine()
    caches = (launch._hardware, solve._memory)
    for cache in caches:
        cache.cache_clear()
    h200 = SimpleNamespace(
        multi_processor_count=132, L2_cache_size=2**25, shared_memory_per_multiprocessor=233_472
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: h200)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: found.current)
    monkeypatch.setattr(torch.cuda, "device", found.device)
    kind = type(launch._forward.forward_kernel)
    monkeypatch.setattr(kind, "__getitem__", lambda self, grid: found.launch(self, grid))
    yield found
    for cache in caches:
        cache.cache_clear()


def zeros(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=HERE)


def run_all(batch: int = 2, n: int = 40) -> None:
    """Every operator that launches a kernel, by what it does with real tensors."""
    cost, a, b = zeros(batch, 3, n), zeros(batch, 3), zeros(batch, n)
    slots, inputs = a.bool(), b.bool()
    transport_op._init_fn(*Operands(cost, *[None] * 7), *SolverSettings(n_iters=5))
    masses = (a, b, slots, inputs, zeros(batch))
    settings = SolverSettings(n_iters=5, mesh=True, n_steps=4, length=1.0, reuse=True, keep=True)
    found = Results(*transport_op._init_fn(*Operands(cost, cost, *masses, None), *settings))
    transport_backward._init_fn(
        *Operands(found.changed, None, *masses, None),
        *Past(found.trace, found.history),
        *Incoming(cost, a, b, cost),
        *settings,
        *Wanted(True, True, False, F32),
    )
    tiny, few = Operands(zeros(batch, 3, 4), *[None] * 7), SolverSettings(n_iters=2)
    found = Results(*transport_op._init_fn(*tiny, *few))
    into = Incoming(tiny.cost, None, None, None)
    wanted = Wanted(False, False, False, F32)
    transport_backward._init_fn(*tiny, *Past(found.trace, None), *into, *few, *wanted)
    plan_adjoint._init_fn(cost, cost, 1.0)
    queries, keys = zeros(batch, 3, 8), zeros(batch, n, 8)
    distance_op._init_fn(queries, keys, False)
    distance_backward._init_fn(queries, keys, cost, cost, False)
    layer = (zeros(n, 8, dtype=torch.bfloat16), zeros(16, 8), zeros(16), zeros(16))
    logit_op._init_fn(*layer)
    logit_backward._init_fn(*layer, zeros(n))
    emd_small._init_fn(cost, a, b, slots, inputs)
    assign_small._init_fn(zeros(batch, 3, 4), slots, zeros(batch, 4).bool(), False)


def all_kernels() -> set[str]:
    """Names of the functions that are kernels, not parts of one."""
    package = importlib.import_module("slotmesh.ops._triton")
    modules = [
        importlib.import_module(f"{package.__name__}.{m.name}")
        for m in pkgutil.iter_modules(package.__path__)
    ]
    names = {name for module in modules for name in vars(module)}
    return {name for name in names if name.endswith("_kernel")}


def test_every_kernel_starts_on_the_device_of_its_tensors(machine: Machine) -> None:
    with FakeTensorMode():
        run_all()
    assert {name for name, _, _ in machine.launches} == all_kernels()
    assert machine.switches == len(machine.launches)
    assert machine.current == 1


def test_nothing_is_switched_where_that_device_is_current(machine: Machine) -> None:
    machine.current = 0
    with FakeTensorMode():
        run_all()
    assert {name for name, _, _ in machine.launches} == all_kernels()
    assert machine.switches == 0


def test_no_kernel_is_launched_elsewhere() -> None:
    """``kernel[grid](...)`` and ``kernel.run`` stand in one file only, twice in its guard."""
    found: Counter[str] = Counter()
    for path in (OPS / "_triton").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            direct = isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
            by_name = isinstance(node, ast.Attribute) and node.attr in ("run", "warmup")
            found[path.name] += direct or by_name
    assert +found == {"launch.py": 2}
    for path in OPS.parent.rglob("*.py"):
        if path.parent.name != "_triton":
            assert "_kernel[" not in path.read_text(encoding="utf-8"), path


# ---- programs that wait for each other ----


def test_programs_that_wait_fit_one_to_a_processor(machine: Machine) -> None:
    """So they fit whatever a program takes, also of a part of a GPU, which has fewer."""
    from slotmesh.ops._triton import launch

    sizes = itertools.product((1, 2, 3, 7, 64, 131, 300), (1, 9, 64), (1, 511, 512, 4096, 65_536))
    shared = 0
    for (batch, m, n), processors in itertools.product(sizes, range(200)):
        cut = launch.choose(batch, m, n, processors)
        assert cut.split == 1 or cut.split * batch <= processors
        shared += cut.split > 1
    assert shared > 0


@pytest.mark.parametrize(("batch", "n", "split"), [(2, 4096, 16), (40, 2048, 2), (2, 40, 1)])
def test_only_programs_that_wait_start_together(
    machine: Machine, batch: int, n: int, split: int
) -> None:
    with FakeTensorMode():
        run_all(batch, n)
    for name, programs, options in machine.launches:
        waits = split > 1 and name in ("forward_kernel", "backward_kernel")
        assert options.get("launch_cooperative_grid", False) == waits, name
        if waits:
            assert programs == split * batch <= 132


# ---- where there are two GPUs ----


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two CUDA devices on this machine")
def test_on_a_second_gpu() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(3, 4, 16), torch.rand(3, 600, 16)
    results = []
    for device in ("cpu", "cuda:1"):
        q, k = (t.detach().to(device).requires_grad_() for t in (x, y))
        cost = pairwise_cost(q, k)
        soft = sinkhorn(cost, grad="implicit", n_iters=50).plan
        hard = mesh(cost, noise=0.0).plan
        weight = torch.linspace(0, 1, 600, device=device)
        grads = torch.autograd.grad(((soft + hard) * weight).sum(), [q, k])
        exact = emd(cost.detach())
        partner = assign(cost.detach()[..., :8])
        results.append([t.cpu() for t in (soft, hard, *grads, exact.plan, partner)])
    assert torch.cuda.current_device() == 0
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-4)
