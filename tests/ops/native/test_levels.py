"""Every level of instructions that this processor has gives the same numbers, up to rounding."""

import ctypes
import os

import pytest
import torch

from slotmesh.ops import _native, backends, mesh
from slotmesh.ops._native import library, recipe

from .._reference import gradients, leaf, randn

LEVELS = tuple(recipe.X86_64)


@pytest.fixture(params=LEVELS)
def level(request, prebuilt, monkeypatch):
    """Computes with the functions of a level."""
    best = library.load().level
    if LEVELS.index(request.param) > LEVELS.index(best):
        pytest.skip(f"this processor has {best} at most")
    found = ctypes.CDLL(str(prebuilt))
    functions = {
        name: getattr(found, f"slotmesh_{name}_{request.param}")
        for name in ("solve", "pull_back", "adjoint")
    }
    chosen = library.load()._replace(**functions)
    monkeypatch.setattr(_native, "load", lambda: chosen)
    return request.param


@pytest.mark.parametrize("grad", ["straight_through", "implicit"])
@pytest.mark.parametrize("shape", [(3, 5, 105), (2, 6, 1000), (4, 2, 3)])
def test_same_numbers(level, grad, shape):
    cost = randn(*shape, seed=0, dtype=torch.float32)
    found = []
    for c, backend in ((leaf(cost), "cpu"), (leaf(cost.double()), "torch")):
        t = mesh(c, noise=0.0, n_steps=2, grad=grad, backend=backend)
        found.append((t.plan, t.u, t.v, t.cost, *gradients(t.plan, [c])))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-3, atol=1e-4)


def test_level_of_this_processor():
    """Another program's opinion: torch's."""
    status = backends().cpu
    if "ATEN_CPU_CAPABILITY" in os.environ:
        pytest.skip("ATEN_CPU_CAPABILITY is set, which is not the processor's")
    if not status.available:
        pytest.skip(f"no C: {status.reason}")
    theirs = torch.backends.cpu.get_cpu_capability()
    expected = {"AVX512": {"avx512"}, "AVX2": {"avx2", "avx512"}}
    assert status.instructions in expected.get(theirs, {"baseline"})
