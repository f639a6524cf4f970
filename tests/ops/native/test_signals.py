"""A signal while the C is compiled must not decide what the rest of a run computes with."""

import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from slotmesh.ops._native import library


@pytest.fixture
def load():
    """As in a new process, and again in the same one."""
    return functools.cache(library.load.__wrapped__)


KILLED = {
    "itself": "kill -9 $$",
    "below_a_shell": "sh -c 'kill -9 $$'; exit $?",
    "below_gcc": "echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1",
    "linker": "echo 'collect2: fatal error: ld terminated with signal 9 [Killed]' >&2; exit 1",
    "below_clang": "echo 'clang: error: unable to execute command: Killed' >&2; exit 254",
}


@pytest.mark.parametrize("when", ["probed", "compiling"])
@pytest.mark.parametrize("how", KILLED)
def test_killed_compiler_is_not_a_missing_one(cache, quick, tmp_path, load, how, when):
    path = tmp_path / "compiler"
    right = path.read_text()
    first = KILLED[how]
    if when == "compiling":
        first = f'case "$*" in *-dM*) ;; *) {first};; esac'
    path.write_text(right.replace("#!/bin/sh\n", f"#!/bin/sh\n{first}\n"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"killed by a signal .* SLOTMESH_NATIVE=0"):
            load()
    assert not cache.exists()
    path.write_text(right)
    assert load().origin == "cached"


def test_a_signal_to_the_group_at_the_start_is_not_for_the_compiler(cache, quick, tmp_path, load):
    """Between its fork and its own session it is in our group, and a shell unblocks signals."""
    path, seen = tmp_path / "compiler", tmp_path / "seen"
    # A shell such as dash lets signals in when it has started a program.
    first = f"if [ ! -e {seen} ]; then : > {seen}; kill -INT $$; sleep 0; fi"
    path.write_text(path.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{first}\n"))
    assert load().origin == "cached"
    assert seen.exists()


CHILD = """if True:
    import signal, torch
    # It may be inherited as ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from slotmesh.ops import _native, backends, mesh
    _native.library.SHIPPED = _native.library.Path("nothing")
    try:
        mesh(torch.zeros(2, 2))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    input()
    # As training does, which then ends after the step.
    signal.signal(signal.SIGINT, lambda *_: print("noticed", flush=True))
    mesh(torch.zeros(2, 2))
    print(backends().auto["cpu"], backends().cpu.library, flush=True)
"""


def wait_for(condition):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_interrupt_while_compiling(cache, quick, monkeypatch, tmp_path):
    """Ctrl-C signals all that runs in a terminal. An exception ends it, a handler does not."""
    compiler, started, go = tmp_path / "compiler", tmp_path / "started", tmp_path / "go"
    scratch = tmp_path / "scratch"
    for folder in (started, scratch):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    slow = f"case $* in *.c*) : > {started}/$$; until [ -e {go} ]; do sleep 0.05; done;; esac"
    compiler.write_text(compiler.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{slow}\n"))

    def compiling():
        return len(list(started.iterdir())) > 0

    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            wait_for(compiling)
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
            for path in started.iterdir():
                with pytest.raises(ProcessLookupError):
                    os.kill(int(path.name), 0)
                path.unlink()
            assert not list(scratch.iterdir())
            assert not cache.exists()

            child.stdin.write("\n")
            child.stdin.flush()
            wait_for(compiling)
            os.killpg(child.pid, signal.SIGINT)
            assert child.stdout.readline() == "noticed\n"
            go.touch()
            assert child.stdout.readline() == "cpu cached\n"
            assert child.wait() == 0
        finally:
            go.touch()
            child.kill()
