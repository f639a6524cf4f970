"""How the C of the CPU's path is compiled, and what happens where it cannot be."""

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from slotmesh.ops import _native, sinkhorn
from slotmesh.ops._native import library, recipe

from .._compiled import needs_c


def load():
    """As in a new process."""
    return library.load.__wrapped__()


@needs_c
def test_compiled_once(cache):
    """By the compiler of this machine."""
    assert load().origin == "cached"
    (kept,) = cache.iterdir()
    made = kept.stat().st_mtime_ns
    assert load().path == kept
    assert kept.stat().st_mtime_ns == made
    assert cache.stat().st_mode & 0o777 == 0o700


def test_concurrent_first_use(cache, quick):
    with ThreadPoolExecutor(4) as pool:
        found = [f.result() for f in [pool.submit(load) for _ in range(4)]]
    assert all(x.origin == "cached" for x in found)
    assert len(list(cache.iterdir())) == 1


def test_another_compiler_machine_or_source_has_a_library_of_its_own(
    cache, quick, compiler, monkeypatch, tmp_path
):
    assert load().origin == "cached"
    path = tmp_path / "compiler"
    path.write_text(path.read_text().replace("version 1", "version 2"))
    assert load().origin == "cached"
    assert len(list(cache.iterdir())) == 2
    changed = shutil.copytree(recipe.SOURCES, tmp_path / "sources")
    monkeypatch.setattr(recipe, "SOURCES", changed)
    for count, name in enumerate(("scaling.c", "job.h"), start=3):
        with (changed / name).open("a") as file:
            file.write("\n")
        assert load().origin == "cached"
        assert len(list(cache.iterdir())) == count
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    monkeypatch.setattr(platform, "machine", lambda: other)
    assert load().origin == "cached"
    assert len(list(cache.iterdir())) == 5


def test_no_compiler(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "missing-cc")
    assert load().startswith("no C compiler was found")
    assert not cache.exists()


BROKEN = {
    "fails": ("echo no licence >&2; exit 1", "failed: no licence"),
    "fails_late": ('case "$*" in *-dM*) ;; *) echo no disk >&2; exit 1;; esac', "failed: no disk"),
    "has_no_linker": (
        'case "$*" in *-shared*) echo "unable to execute command: no ld" >&2; exit 1;; esac',
        "failed: unable",
    ),
    "writes_nothing": ("exit 0", "No such file"),
    "writes_rubbish": (
        'for word; do [ "$last" = -o ] && echo x > "$word"; last=$word; done; true',
        "file too short",
    ),
    "hangs": ("sleep 60", "timed out"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_compiler(cache, compiler, monkeypatch, tmp_path, how):
    script, reason = BROKEN[how]
    compiler(script)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(recipe, "PATIENCE_S", 0.5 if how == "hangs" else 60)
    assert reason in load()
    # Nothing that was worked in is left behind.
    assert not list((tmp_path / "temporary").iterdir())
    assert not cache.exists() or all(x.is_file() for x in cache.iterdir())


def test_rubbish_stays_no_longer_than_the_compiler_that_makes_it(cache, quick, prebuilt, tmp_path):
    """Also where it is a library that can be loaded, and not ours."""
    path = tmp_path / "compiler"
    right = path.read_text()
    torch_library = next((Path(torch.__file__).parent / "lib").glob("libc10.*"))
    path.write_text(right.replace(str(prebuilt), str(torch_library)))
    assert "a function is missing" in load()
    path.write_text(right)
    assert load().origin == "cached"
    assert load().origin == "cached"
    assert len(quick.read_text()) == 2
    assert len(list(cache.iterdir())) == 1


def test_unbalanced_quotes(cache, monkeypatch):
    monkeypatch.setenv("CC", "gcc '")
    assert "quotation" in load()


def test_switch(cache, monkeypatch):
    monkeypatch.setenv(library.SWITCH, "0")
    assert load() == "SLOTMESH_NATIVE is 0"
    assert not cache.exists()


def test_windows(cache, quick, monkeypatch):
    """Nothing that only other systems have is asked for."""
    monkeypatch.setattr(sys, "platform", "win32")
    for name in ("geteuid", "killpg"):
        monkeypatch.delattr(os, name)
    monkeypatch.setitem(sys.modules, "pwd", None)
    monkeypatch.setitem(sys.modules, "grp", None)
    assert load() == "there is none for Windows"


WITHOUT = {
    "switch": ({library.SWITCH: "0"}, "SLOTMESH_NATIVE is 0", False),
    "no_compiler": ({"PATH": "", "CC": ""}, "no C compiler was found", True),
}


@pytest.mark.parametrize("why", WITHOUT)
def test_plain_torch_without_c(why, tmp_path):
    """The same numbers as torch; "auto" warns once, unless that was chosen; "cpu" is an error."""
    code = """if True:
        import torch, warnings
        from slotmesh.ops import _native, backends, mesh, sinkhorn
        _native.library.SHIPPED = _native.library.Path("nothing")
        warnings.simplefilter("always")
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
        assert backends().auto["cpu"] == "torch"
        assert not backends().cpu.available
        print(backends().cpu.reason)
    """
    changes, reason, warned = WITHOUT[why]
    environment = {**os.environ, library.SWITCH: "1", **changes}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    *errors, last = done.stdout.splitlines()
    for op, line in zip(("mesh", "sinkhorn"), errors, strict=True):
        assert line.startswith(
            f"{op}: backend is 'cpu', which does not work here: the C backend is unavailable"
        )
        assert reason in line
    assert reason in last
    assert done.stderr.count("UserWarning") == warned
    if warned:
        assert "several times slower" in done.stderr
        assert reason in done.stderr
        assert "Install a C compiler" in done.stderr
        assert "SLOTMESH_NATIVE=0" in done.stderr
    else:
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
    refused = SimpleNamespace(solve=lambda job: 1)
    monkeypatch.setattr(_native, "load", lambda: refused)
    with pytest.raises(MemoryError, match=rf"costs of 2 x 300 and {n_iters} iterations"):
        sinkhorn(torch.zeros(2, 300), n_iters=n_iters, backend="cpu")
