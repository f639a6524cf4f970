"""The C of the CPU's path: how it is compiled and kept, and what happens where it cannot be."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from slotmesh.ops import _native, sinkhorn
from slotmesh.ops._native import library

from ._compiled import needs_c


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache folder; nothing is loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(library.SWITCH, raising=False)
    return tmp_path / "cache" / "slotmesh"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Makes a shell script the compiler."""

    def make(script):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CC", f"{path} -pthread")
        return path

    return make


def load():
    """As in a new process."""
    return library.load.__wrapped__()


@needs_c
def test_compiled_once(cache):
    assert isinstance(load(), ctypes.CDLL)
    (kept,) = cache.iterdir()
    made = kept.stat().st_mtime_ns
    assert isinstance(load(), ctypes.CDLL)
    assert kept.stat().st_mtime_ns == made


@needs_c
def test_concurrent_first_use(cache):
    with ThreadPoolExecutor(4) as pool:
        found = [f.result() for f in [pool.submit(load) for _ in range(4)]]
    assert all(isinstance(x, ctypes.CDLL) for x in found)
    assert len(list(cache.iterdir())) == 1


@needs_c
def test_another_processor_or_source_has_a_library_of_its_own(
    cache, compiler, monkeypatch, tmp_path
):
    command = shlex.join(library._compiler())
    for count, processor in enumerate(("old", "new"), start=1):
        compiler(f'case "$*" in *-dM*) echo {processor};; *) exec {command} "$@";; esac')
        assert isinstance(load(), ctypes.CDLL)
        assert len(list(cache.iterdir())) == count
    changed = shutil.copytree(library.SOURCES, tmp_path / "sources")
    monkeypatch.setattr(library, "SOURCES", changed)
    for count, name in enumerate(("scaling.c", "job.h"), start=3):
        with (changed / name).open("a") as file:
            file.write("\n")
        assert isinstance(load(), ctypes.CDLL)
        assert len(list(cache.iterdir())) == count


def test_no_compiler(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "missing-cc")
    assert load().startswith("no C compiler was found")
    assert not cache.exists()


BROKEN = {
    "fails": ("echo no licence >&2; exit 1", "failed: no licence"),
    "fails_late": ('case "$*" in *-dM*) ;; *) echo no disk >&2; exit 1;; esac', "failed: no disk"),
    "writes_nothing": ("exit 0", "No such file"),
    "writes_rubbish": (
        'for word; do [ "$last" = -o ] && echo x > "$word"; last=$word; done; true',
        "file too short",
    ),
    "hangs": ("sleep 60", "timed out"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_compiler(cache, compiler, monkeypatch, how):
    script, reason = BROKEN[how]
    compiler(script)
    monkeypatch.setattr(library, "PATIENCE_S", 0.5 if how == "hangs" else 100)
    assert reason in load()
    # No folder that was worked in is left behind.
    assert not cache.exists() or all(x.is_file() for x in cache.iterdir())


def test_unbalanced_quotes(cache, monkeypatch):
    monkeypatch.setenv("CC", "gcc '")
    assert "quotation" in load()


@needs_c
def test_unwritable_cache(cache):
    cache.parent.write_text("not a folder")
    assert "Not a directory" in load() or "File exists" in load()


def test_switch(cache, monkeypatch):
    monkeypatch.setenv(library.SWITCH, "0")
    assert load() == "SLOTMESH_NATIVE is 0"
    assert not cache.exists()


WITHOUT = {
    "switch": ({library.SWITCH: "0"}, "SLOTMESH_NATIVE is 0"),
    "no_compiler": ({library.SWITCH: "1", "PATH": "", "CC": ""}, "no C compiler was found"),
}


@pytest.mark.parametrize("why", WITHOUT)
def test_plain_torch_without_c(why, tmp_path):
    """Not a word is said, but where C was asked for by name."""
    code = """if True:
        import torch
        from slotmesh.ops import mesh, sinkhorn
        cost = torch.randn(2, 3, 4)
        for op, options in ((mesh, {"noise": 0.0}), (sinkhorn, {})):
            found = []
            for backend in ("auto", "torch"):
                tracked = cost.clone().requires_grad_()
                t = op(tracked, backend=backend, **options)
                found.append((*t, *torch.autograd.grad(t.plan[..., 0].sum(), tracked)))
            assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))
            try:
                op(cost, backend="cpu")
            except ValueError as error:
                print(error)
    """
    changes, reason = WITHOUT[why]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **changes, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    for op, line in zip(("mesh", "sinkhorn"), done.stdout.splitlines(), strict=True):
        expected = (
            f"{op}: backend is 'cpu', which does not work here: its C cannot be had ({reason}"
        )
        assert line.startswith(expected)
    assert not done.stderr


@needs_c
def test_exponentials_and_logarithms():
    """Differences of these costs are exact: what is left is the rounding of the functions."""
    steps = torch.arange(64 * 60, dtype=torch.float32) / 64
    cost = torch.stack((torch.zeros_like(steps), steps))
    b = torch.linspace(0.5, 1.5, len(steps))
    fast = sinkhorn(cost, b=b, n_iters=1, backend="cpu")
    truth = sinkhorn(cost.double(), b=b.double(), n_iters=1)
    torch.testing.assert_close(fast.plan.double(), truth.plan, rtol=1e-6, atol=0)
    torch.testing.assert_close(fast.v.double(), truth.v, rtol=3e-7, atol=1e-7)
    torch.testing.assert_close(fast.u.double(), truth.u, rtol=1e-6, atol=0)


@needs_c
@pytest.mark.parametrize("n_iters", [5, 10**11, 10**30])
def test_memory_that_is_not_there(monkeypatch, n_iters):
    refused = SimpleNamespace(slotmesh_solve=lambda job: 1)
    monkeypatch.setattr(_native, "load", lambda: refused)
    with pytest.raises(MemoryError, match=rf"costs of 2 x 300 and {n_iters} iterations"):
        sinkhorn(torch.zeros(2, 300), n_iters=n_iters, backend="cpu")
