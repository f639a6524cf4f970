"""Every level of instructions that this processor has gives the same numbers, up to rounding."""

import ctypes
import platform
from pathlib import Path

import pytest
import torch

from slotmesh.ops import _native, mesh
from slotmesh.ops._native import library, recipe

from .._compiled import needs_c
from .._reference import gradients, leaf, randn

LEVELS = tuple(recipe.X86_64)


@pytest.fixture(params=LEVELS)
def level(request, prebuilt, monkeypatch):
    """Computes with the functions of a level."""
    found = ctypes.CDLL(str(prebuilt))
    found.slotmesh_level.restype = ctypes.c_char_p
    best = found.slotmesh_level().decode()
    if LEVELS.index(request.param) > LEVELS.index(best):
        pytest.skip(f"this processor has {best} at most")
    functions = {
        name: getattr(found, f"slotmesh_{name}_{request.param}")
        for name in ("solve", "pull_back", "adjoint")
    }
    chosen = library.load()._replace(**functions)
    monkeypatch.setattr(_native, "load", lambda: chosen)
    return request.param


@pytest.fixture(scope="module")
def gcc_8(prebuilt, tmp_path_factory):
    """A library without what gcc 8 lacks."""
    compiler, machine = recipe.find_compiler(), platform.machine()
    *_, macros = recipe.ingredients(compiler, machine)
    if b"__clang__" in macros:
        pytest.skip("the compiler is clang")
    folder = tmp_path_factory.mktemp("gcc_8")
    built = recipe.build(compiler, folder, machine, "-U__GNUC__", "-D__GNUC__=8")
    assert built.read_bytes() != prebuilt.read_bytes()
    return library._open(built, "temporary")


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


@needs_c
@pytest.mark.parametrize("grad", ["straight_through", "implicit"])
def test_compiler_that_cannot_convert_vectors(gcc_8, grad):
    """The loops that replace its missing function round alike."""
    cost = randn(3, 5, 105, seed=0, dtype=torch.float32)
    found = []
    for chosen in (library.load(), gcc_8):
        c = leaf(cost)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_native, "load", lambda chosen=chosen: chosen)
            t = mesh(c, noise=0.0, n_steps=2, grad=grad, backend="cpu")
            found.append((t.plan, t.u, t.v, t.cost, *gradients(t.plan, [c])))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("switch", [None, *LEVELS])
def test_level_of_this_processor(prebuilt, monkeypatch, switch):
    """The best that the kernel says it has, or less where that is asked for."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        pytest.skip("this system has no /proc/cpuinfo")
    best = 0
    if {"avx2", "fma"} <= flags:
        best = 2 if {f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")} <= flags else 1
    if switch is None:
        monkeypatch.delenv(library.SWITCH, raising=False)
    else:
        monkeypatch.setenv(library.SWITCH, switch)
        best = min(best, LEVELS.index(switch))
    assert library._open(prebuilt, "cached").level == LEVELS[best]
