"""No kernel leaves its tensors, however large they are: every address is looked at.

Tensors of more than 2^31 elements do not fit into memory here, and need not: they are on the meta
device, each has a stretch of addresses of its own, and loads there give ones.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slotmesh.ops._distance import distance_backward, distance_op
from slotmesh.ops._kernel_types import Incoming, Operands, Past, Results, Wanted
from slotmesh.ops._operator import plan_adjoint, transport_backward, transport_op
from slotmesh.ops.assignment import assign_small
from slotmesh.ops.emd.triton import emd_small
from slotmesh.ops.logit import logit_backward, logit_op
from slotmesh.ops.problem import SolverSettings

F32 = torch.float32
# Addresses of each argument; of a tensor of 2^44 bytes at most.
STRETCH = 44


class Walk:
    """Runs the first and the last program of every launch, and keeps what each argument saw."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.furthest: dict[tuple[str, str], int] = {}
        self.names: dict[int, tuple[str, str]] = {}
        self.kernel = ""
        self.skipped: tuple[str, ...] = ()
        self.whole = self.program = (0, 0, 0)

    def check(self, pointers: Any, mask: Any, width: int) -> None:
        at = np.broadcast_to(pointers, np.broadcast_shapes(pointers.shape, mask.shape))[mask]
        for address in np.unique(at >> np.uint64(STRETCH)) if at.size else ():
            here = at[(at >> np.uint64(STRETCH)) == address]
            offset = int(here.max()) - (int(address) << STRETCH)
            name = self.names.get(int(address))
            assert name is not None, f"{self.kernel} leaves all of its tensors"
            assert offset + width <= self.sizes[int(address)], f"{name} ends before {offset}"
            self.furthest[name] = max(self.furthest.get(name, 0), offset)

    def launch(self, kernel: Any, grid: tuple[int, ...], args: Any, options: Any) -> None:
        import triton
        import triton.language as tl
        from triton.runtime import interpreter

        self.kernel = kernel.__name__
        if self.kernel in self.skipped:
            return
        self.sizes, self.names = {}, {}
        given: list[Any] = []
        for i, (name, x) in enumerate(zip(kernel.arg_names, args, strict=False)):
            if isinstance(x, Tensor):
                self.sizes[i + 1] = x.numel() * x.element_size()
                self.names[i + 1] = (kernel.__name__, name)
                kind = tl.str_to_ty(triton.runtime.jit.mangle_type(x), None)
                place = np.array([(i + 1) << STRETCH], dtype=np.uint64)
                x = tl.tensor(interpreter.TensorHandle(place, kind), kind)
            given.append(x)
        whole = (*grid, 1, 1)[:3]
        run = interpreter.GridExecutor(kernel.rewrite(), kernel.arg_names, (1,))
        for program in ((0, 0, 0), tuple(k - 1 for k in whole)):
            self.whole, self.program = whole, program
            run(*given, **options)


@pytest.fixture
def walk(device: str, monkeypatch: pytest.MonkeyPatch) -> Walk:
    if device != "cpu":
        pytest.skip("for the interpreter, which knows the addresses")
    from triton.runtime import interpreter

    found = Walk()

    def load(self: Any, at: Any, mask: Any, other: Any, *_: Any) -> Any:
        kind = at.get_element_ty()
        dtype = interpreter._get_np_dtype(kind)
        found.check(at.data, mask.data, dtype.itemsize)
        outside = np.zeros((), dtype) if other is None else other.data
        return interpreter.TensorHandle(np.where(mask.data, 1, outside).astype(dtype), kind)

    def store(self: Any, at: Any, value: Any, mask: Any, *_: Any) -> None:
        found.check(at.data, mask.data, interpreter._get_np_dtype(at.get_element_ty()).itemsize)

    kind = interpreter.InterpreterBuilder
    set_dim, set_idx = kind.set_grid_dim, kind.set_grid_idx
    monkeypatch.setattr(kind, "create_masked_load", load)
    monkeypatch.setattr(kind, "create_masked_store", store)
    monkeypatch.setattr(kind, "set_grid_dim", lambda self, *_: set_dim(self, *found.whole))
    monkeypatch.setattr(kind, "set_grid_idx", lambda self, *_: set_idx(self, *found.program))
    monkeypatch.setattr(
        interpreter.InterpretedFunction,
        "__getitem__",
        lambda self, grid: lambda *args, **options: found.launch(self, grid, args, options),
    )
    return found


def meta(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# Elements of a batch of 2 x 32 matrices that has 2^32 entries.
MANY = 2**26


def test_transport_of_a_large_batch(walk: Walk) -> None:
    cost, a, b = meta(MANY, 2, 32), meta(MANY, 2), meta(MANY, 32)
    masses = (a, b, meta(MANY, 2).bool(), meta(MANY, 32).bool(), meta(MANY))
    few = SolverSettings(n_iters=2)
    small = Results(*transport_op._init_fn(*Operands(cost, None, *masses, a), *few))
    transport_backward._init_fn(
        *Operands(cost, None, *masses, None),
        *Past(small.trace, None),
        *Incoming(cost, a, b, None),
        *few,
        *Wanted(True, True, True, F32),
    )
    assert walk.furthest["forward_small_kernel", "cost"] > 2**33
    assert walk.furthest["backward_small_kernel", "g_cost"] > 2**33
    settings = SolverSettings(n_iters=2, mesh=True, n_steps=2, length=1.0, reuse=True, keep=True)
    found = Results(*transport_op._init_fn(*Operands(cost, cost, *masses, None), *settings))
    transport_backward._init_fn(
        *Operands(found.changed, None, *masses, None),
        *Past(found.trace, found.history),
        *Incoming(cost, a, b, cost),
        *settings,
        *Wanted(True, True, True, F32),
    )
    for name in ("cost", "plan", "history"):
        assert walk.furthest["forward_kernel", name] > 2**33
    assert walk.furthest["backward_kernel", "g_cost"] > 2**33


def test_the_implicit_gradient_of_a_large_batch(walk: Walk) -> None:
    plan_adjoint._init_fn(meta(MANY, 2, 32), meta(MANY, 2, 32), 1.0)
    assert walk.furthest["adjoint_apply_kernel", "grad_cost"] > 2**33


def test_exact_solvers_of_a_large_batch(walk: Walk) -> None:
    cost, slots = meta(MANY, 2, 32), meta(MANY, 2)
    emd_small._init_fn(cost, slots, meta(MANY, 32), slots.bool(), meta(MANY, 32).bool())
    small = meta(2**29, 2, 4)
    assign_small._init_fn(small, meta(2**29, 2).bool(), meta(2**29, 4).bool(), False)
    assert walk.furthest["emd_kernel", "plan"] > 2**34
    assert walk.furthest["assign_kernel", "cost"] > 2**33


@pytest.mark.parametrize(("batch", "m", "n", "d"), [(2**24, 2, 130, 3), (1, 3, 2**30, 2)])
def test_distances(walk: Walk, batch: int, m: int, n: int, d: int) -> None:
    queries, keys, cost = meta(batch, m, d), meta(batch, n, d), meta(batch, m, n)
    distance_op._init_fn(queries, keys, False)
    assert walk.furthest["distance_kernel", "cost"] == 4 * (cost.numel() - 1)
    walk.skipped = ("distance_fold_kernel",)  # which would add up millions of parts
    distance_backward._init_fn(queries, keys, cost, cost, False)
    assert walk.furthest["distance_backward_kernel", "grad"] == 4 * (cost.numel() - 1)
    assert walk.furthest["distance_backward_kernel", "grad_keys"] == 4 * (keys.numel() - 1)


def test_many_parts_of_many_queries(walk: Walk) -> None:
    from slotmesh.ops._triton import distance
    from slotmesh.ops._triton.launch import run_on

    parts, size = meta(1, 2**11, 2**21), 2**21
    folds = size // distance.FOLD["S"]
    args = (parts, meta(1, size), 2**11, size, folds)
    run_on(parts.device, distance.distance_fold_kernel, (folds,), *args, **distance.FOLD)
    assert walk.furthest["distance_fold_kernel", "parts"] == 4 * (parts.numel() - 1)


@pytest.mark.parametrize(("n", "d"), [(2**24 + 5, 128), (2**30 - 1, 3)])
def test_logits(walk: Walk, n: int, d: int) -> None:
    layer = (meta(n, d, dtype=torch.bfloat16), meta(16, d), meta(16), meta(16))
    logit_op._init_fn(*layer)
    assert walk.furthest["logit_kernel", "x"] == 2 * (n * d - 1)


def test_the_gradient_of_logits(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    from slotmesh.ops._triton import logit

    n, d = 2**24 + 5, 128
    # A program for each block, or the last would walk over thousands of them.
    monkeypatch.setattr(logit, "PROGRAMS", n)
    walk.skipped = ("logit_fold_kernel",)
    layer = (meta(n, d, dtype=torch.bfloat16), meta(16, d), meta(16), meta(16))
    logit_backward._init_fn(*layer, meta(n))
    assert walk.furthest["logit_backward_kernel", "grad_x"] == 2 * (n * d - 1)


def test_grids_fit(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first dimension of a grid end at 65,535."""
    grids: list[tuple[int, ...]] = []
    monkeypatch.setattr(walk, "launch", lambda kernel, grid, *_: grids.append(grid))
    queries, keys, cost = meta(2, 2**15, 256), meta(2, 2**20, 256), meta(2, 2**15, 2**20)
    distance_op._init_fn(queries, keys, False)
    distance_backward._init_fn(queries, keys, cost, cost, False)
    plan_adjoint._init_fn(meta(1, 64, 65_536), meta(1, 64, 65_536), 1.0)
    assert len(grids) == 5
    for grid in grids:
        assert grid[0] < 2**31
        assert math.prod(grid[1:]) <= 65_535
