"""How kernels are launched: without an operator where nobody watches, one code for many sizes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import slotmesh
from slotmesh.ops import _fused, mesh, set_value_checks, sinkhorn

from ._kernels import blocks_of, both
from ._reference import close, masses, randn

F32 = torch.float32
# Processors and bytes of cache of an NVIDIA H200.
HARDWARE = 132, 60 * 2**20


class _Watch(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", [sinkhorn, mesh])
def test_an_eager_call_goes_through_no_operator(device: str, op: Any, monkeypatch: Any) -> None:
    cost = randn(2, 3, 9, seed=0, dtype=F32).to(device).requires_grad_()
    options = {} if op is sinkhorn else {"noise": 0.0, "n_steps": 1}
    calls: list[str] = []
    run = _fused.run_forward
    monkeypatch.setattr(_fused, "run_forward", lambda *a: calls.append("eager") or run(*a))
    plan = op(cost, n_iters=2, backend="triton", **options).plan
    (grad,) = torch.autograd.grad(plan.square().sum(), cost)
    assert calls == ["eager"]
    with _Watch() as watch:
        watched = op(cost, n_iters=2, backend="triton", **options).plan
        (same,) = torch.autograd.grad(watched.square().sum(), cost)
    assert "slotmesh.transport.default" in watch.seen
    close(watched, plan, 0)
    close(same, grad, 0)


def test_tracing_sees_the_operator(device: str) -> None:
    cost = randn(2, 3, 9, seed=1, dtype=F32).to(device)
    before = set_value_checks("never")  # a tracer has none
    try:
        graph = make_fx(lambda c: sinkhorn(c, n_iters=1, backend="triton").plan)(cost)
    finally:
        set_value_checks(before)
    assert "slotmesh.transport" in graph.code
    other = randn(2, 3, 9, seed=2, dtype=F32).to(device)
    close(graph(other), sinkhorn(other, n_iters=1, backend="triton").plan, 1e-6)


@pytest.mark.parametrize("shape", [(9, 3, 5), (130, 1, 1), (17, 4, 4), (5, 8, 8), (3, 2, 31)])
def test_several_small_matrices_in_a_program(device: str, shape: tuple[int, ...]) -> None:
    """The last program has fewer matrices than the others."""
    assert _fused.small_group(*shape[1:], _fused.SolverSettings(n_iters=1)) > 1
    batch, m, n = shape
    leaves = {
        "cost": 2 * randn(*shape, seed=m, dtype=F32),
        "a": masses(batch, m, seed=m, total=m, dtype=F32),
        "b": masses(batch, n, seed=n, total=m, dtype=F32),
        "u": randn(batch, m, seed=3, dtype=F32),
        "temperature": 0.5 + randn(batch, seed=4, dtype=F32).abs(),
    }
    both(sinkhorn, device, leaves, n_iters=4)


def test_small_matrices_with_masks(device: str) -> None:
    cost = randn(6, 4, 7, seed=5, dtype=F32)
    slots, inputs = randn(6, 4, seed=6) > -0.5, randn(6, 7, seed=7) > -0.5
    slots[:, 1] = inputs[:, 3] = True
    cost[~(slots[:, :, None] & inputs[:, None])] = torch.nan
    masks = {"slot_mask": slots, "input_mask": inputs}
    options = {"n_iters": 20, "temperature": 0.7, "through": ("plan",)}
    both(sinkhorn, device, {"cost": cost}, **options, **masks)


@pytest.mark.parametrize(("op", "notes"), [(sinkhorn, True), (mesh, True), (mesh, False)])
@pytest.mark.parametrize("n", [70, 65, 80])
def test_rows_of_any_length_in_several_blocks(
    device: str, op: Any, notes: bool, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not a multiple of 16 are padded, whatever the address of cost and noise."""
    blocks_of(32, monkeypatch)
    monkeypatch.setattr("slotmesh.ops._triton.launch._notes_pay", lambda cut: notes)
    cost = randn(2 * 3 * n + 1, seed=n, dtype=F32)[1:].view(2, 3, n)
    # Short steps: longer ones multiply the rounding of the costs, which is not what this is about.
    options: dict[str, Any] = {}
    if op is mesh:
        noise = 0.1 * randn(2 * 3 * n + 1, seed=n + 1, dtype=F32)[1:].view(2, 3, n)
        options = {"noise": noise, "potentials": "reuse", "lr": 1.0, "n_steps": 2}
    both(op, device, {"cost": cost}, n_iters=2, **options)


def _case(batch: int, m: int, n: int, **flags: bool) -> Any:
    from slotmesh.ops._triton import launch

    found = launch._launch(launch.choose, 0, (batch, m, n), HARDWARE, mesh=True, **flags)
    return found.case, found.warps


def test_sizes_of_a_class_share_their_code(device: str) -> None:
    for one, other in ((1000, 1024), (4097, 4096), (4096, 15_000), (600, 1000), (20_000, 65_536)):
        assert _case(64, 11, one) == _case(64, 11, other), (one, other)
    assert _case(64, 9, 4096) == _case(64, 16, 5000)
    assert len({_case(64, 11, n) for n in range(100, 20_000, 7)}) <= 6


def test_triton_specialises_on_no_size() -> None:
    """In a process of its own: kernels that are interpreted have no parameters to look at."""
    pytest.importorskip("triton", reason="triton is not installed")
    code = """
from slotmesh.ops._triton import backward, forward, small
kernels = (forward.forward_kernel, backward.backward_kernel, small.forward_small_kernel,
           small.backward_small_kernel)
for kernel in kernels:
    assert kernel.params[-1].is_constexpr
    assert all(p.do_not_specialize for p in kernel.params[:-1]), kernel
print("all")
"""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = str(Path(slotmesh.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "all", done.stderr


class _Compiled(list[Any]):
    """What a kernel was compiled for: the dtypes of tensors, and the types of numbers."""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[_Compiled, list[Any]]]]:
    """What each launch takes: the code, and the kinds of arguments that it gets. Nothing runs."""
    from slotmesh.ops._triton import launch

    noted: list[tuple[_Compiled, list[Any]]] = []
    kinds: list[Any] = []

    def start(how: Any, kernel: Any, batch: int, cost: Any, *others: Any) -> None:
        _, tensors, numbers = others
        kinds[:] = [(cost if x is None else x).dtype for x in tensors] + [type(x) for x in numbers]
        start_really(how, kernel, batch, cost, *others)

    def run_on(device: Any, kernel: Any, *args: Any, **options: Any) -> _Compiled:
        code = kernel if isinstance(kernel, _Compiled) else _Compiled(kinds)
        noted.append((code, list(kinds)))
        return code

    start_really = launch._start
    monkeypatch.setattr(launch, "_start", start)
    monkeypatch.setattr(launch, "run_on", run_on)
    monkeypatch.setattr(launch, "CompiledKernel", _Compiled)
    launch._launch.cache_clear()
    yield noted
    launch._launch.cache_clear()


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("other", [torch.bfloat16, torch.float16])
def test_code_is_not_used_for_another_dtype(
    device: str, learned: bool, other: torch.dtype, launched: list[tuple[_Compiled, list[Any]]]
) -> None:
    """MESH's adjusted cost and its gradient can be float32 where the plan's gradient is not."""
    for dtype in (F32, other, F32, other):
        cost = randn(2, 3, 40, seed=9, dtype=F32).to(device, dtype).requires_grad_()
        noise = torch.zeros(cost.shape, device=device, requires_grad=learned)
        potentials = "detach" if learned else "reuse"
        t = mesh(cost, noise=noise, potentials=potentials, n_iters=2, backend="triton")
        t.plan.sum().backward()
    assert len(launched) == 8
    assert all(list(code) == given for code, given in launched)
    assert len({id(code) for code, _ in launched}) == 4


@pytest.mark.parametrize("op", [sinkhorn, mesh])
@pytest.mark.parametrize("shape", [(2, 3, 40), (2, 3, 5)])
def test_an_eager_call_launches_the_kernel_alone(
    device: str,
    op: Any,
    shape: tuple[int, ...],
    launched: list[tuple[_Compiled, list[Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Besides it there are only memory and MESH's noise: all else would be one more launch."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    cost = randn(*shape, seed=9, dtype=F32).to(device).requires_grad_()
    weight = torch.ones_like(cost)
    before = set_value_checks("never")  # as on a GPU
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as noted:
            plan = op(cost, n_iters=2, temperature=0.7, backend="triton").plan
            torch.autograd.grad(plan, cost, weight)
    finally:
        set_value_checks(before)
    assert len(launched) == 2
    used = {event.name for event in noted.events() if event.name.startswith("aten::")}
    memory = {"aten::new_empty", "aten::empty", "aten::empty_like", "aten::empty_strided"}
    views = {"aten::detach", "aten::expand", "aten::view", "aten::as_strided"}
    noise = {"aten::randn_like", "aten::normal_"} if op is mesh else set[str]()
    assert used <= memory | views | noise


@pytest.mark.parametrize("name", ["lr", "step", "noise", "temperature"])
def test_whole_numbers_are_launched_as_real_ones(
    device: str, name: str, launched: list[tuple[_Compiled, list[Any]]]
) -> None:
    """Code for an integer would read the bits of the next real number as one."""
    cost = randn(2, 3, 40, seed=9, dtype=F32).to(device).requires_grad_()
    for number in (1, 0.5):
        options: dict[str, Any] = {"noise": 0, name: number}
        mesh(cost, n_iters=2, backend="triton", **options).plan.sum().backward()
        if name == "temperature":  # the kernel of small matrices
            small = cost[..., :7]
            sinkhorn(small, n_iters=2, temperature=number, backend="triton").plan.sum().backward()
    assert launched
    assert all(list(code) == given for code, given in launched)


@pytest.mark.gpu
def test_a_compiled_kernel_is_launched_again(device: str) -> None:
    """The second call of a size takes what the first one compiled, without Triton's look-up."""
    from slotmesh.ops._triton import launch

    if device == "cpu":
        pytest.skip("nothing is compiled there")
    cost = randn(3, 5, 40, seed=8, dtype=F32).to(device)
    first = sinkhorn(cost, n_iters=3, backend="triton").plan
    how = launch._launch(
        launch.choose,
        0,
        (3, 5, 40),
        launch._hardware(cost.device),
        **dict.fromkeys(("mesh", "noise", "marginals", "slot_mask", "input_mask"), False),
        **dict.fromkeys(("tau", "init", "per_entry", "relative", "fresh", "keep"), False),
    )
    assert len(how.compiled) == 1
    close(sinkhorn(cost, n_iters=3, backend="triton").plan, first, 0)
