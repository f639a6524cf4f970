"""How the C files here become a shared library, when the wheel is built or on first use.

The build of the wheel runs this file on its own, so it imports only the standard library.

On x86-64 the files that compute are compiled once per instruction level, into one library that runs
on every processor: levels.c says which of them to call.
"""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent
SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
SHARED = "-dynamiclib" if sys.platform == "darwin" else "-shared"
# Not finite-math-only, as NaN must stay NaN, and not fast-math, which affects the whole process.
FLAGS = (
    *("-std=c11", "-O3", "-fPIC", "-pthread"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
# The instructions of each level are those that levels.c asks the processor for. Tuned for the first
# processors that had them: generic code of the implicit gradient is a seventh slower on AVX-512.
BASELINE = {"baseline": ()}
X86_64 = BASELINE | {
    "avx2": ("-mavx2", "-mfma", "-mtune=haswell"),
    "avx512": (
        *("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl"),
        "-mtune=skylake-avx512",
    ),
}
COMPUTE = ("adjoint.c", "assign.c", "scaling.c", "transport.c")
COMMON = ("crew.c", "levels.c")
# Compilers take seconds; do not wait for one that hangs.
PATIENCE_S = 120

# How gcc and clang report that a program which they started was killed by a signal.
_KILLED = re.compile(
    r"signal terminated program|terminated with signal|due to signal"
    r"|(internal compiler error|unable to execute command): (Killed|Terminated|Interrupt)"
)


# Signals that terminals and schedulers send to whole groups of processes.
OTHERS_BUSINESS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


class BuildError(Exception):
    """There is no library, for a permanent reason."""


class KilledError(RuntimeError):
    """A compiler was killed by a signal; ``code`` is its exit status."""

    def __init__(self, said: str, code: int) -> None:
        super().__init__(said)
        self.code = code


def find_compiler() -> tuple[str, ...]:
    """The command of a C compiler, possibly with arguments."""
    given = (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang")
    for line in given:
        try:
            name, *arguments = shlex.split(line or "") or [""]
        except ValueError as error:
            raise BuildError(f"CC is {line!r}: {error}") from None
        path = shutil.which(name)
        if path is not None:
            return path, *arguments
    raise BuildError("no C compiler was found: neither $CC, cc, gcc nor clang")


def ingredients(compiler: tuple[str, ...], machine: str) -> Iterator[bytes]:
    """Everything that the library depends on."""
    for path in sorted(SOURCES.glob("*.[ch]")):
        yield path.name.encode()
        yield path.read_bytes()
    yield repr((_flags(machine), _levels(machine))).encode()
    # All macros of the compiler, which include version and target.
    (said,) = _run([*compiler, *_flags(machine), "-dM", "-E", "-x", "c", os.devnull])
    yield said


def build(compiler: tuple[str, ...], folder: Path, machine: str, *flags: str) -> Path:
    """Compile everything into a folder, for a machine as ``platform.machine()`` names it."""
    levels = _levels(machine)
    units = [(name, level, extra) for name in COMPUTE for level, extra in levels.items()]
    units += [(name, "baseline", ()) for name in COMMON]
    flags = (*_flags(machine), *flags)
    objects: list[str] = []
    commands: list[list[str]] = []
    for name, level, extra in units:
        objects.append(str(folder / f"{name}-{level}.o"))
        what = (f"-DLEVEL={level}", "-c", str(SOURCES / name), "-o", objects[-1])
        commands.append([*compiler, *flags, *extra, *what])
    _run(*commands, scratch=folder)
    library = folder / f"library{SUFFIX}"
    _run([*compiler, SHARED, *flags, "-o", str(library), *objects, "-lm"], scratch=folder)
    return library


def hashed_name(name: str, content: bytes) -> str:
    """The file name of a library, which contains the hash of its bytes."""
    return f"{name}-{_hash(content)}{SUFFIX}"


def is_intact(path: Path) -> bool:
    """Whether a library matches its name; loading a truncated one kills the process."""
    return path.stem.rpartition("-")[2] == _hash(path.read_bytes())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _levels(machine: str) -> dict[str, tuple[str, ...]]:
    return X86_64 if machine.lower() in ("x86_64", "amd64") else BASELINE


def _flags(machine: str) -> tuple[str, ...]:
    """Compiler flags; on macOS a compiler can target either of two architectures."""
    return (*FLAGS, "-arch", machine) if sys.platform == "darwin" else FLAGS


def _run(*commands: list[str], scratch: Path | None = None) -> list[bytes]:
    """Run commands in parallel and return their output.

    A thread starts and ends them, so that no signal handler can raise halfway.
    """
    given_up, ended = threading.Event(), threading.Event()
    found: list[list[bytes] | Exception] = []

    def work() -> None:
        # Inherited by the processes started here.
        signal.pthread_sigmask(signal.SIG_BLOCK, OTHERS_BUSINESS)
        try:
            found.append(_run_all(commands, scratch, given_up))
        except Exception as error:  # noqa: BLE001
            found.append(error)
        finally:
            ended.set()

    # Not joined: join takes a thread for ended if a signal handler raises meanwhile.
    thread = threading.Thread(target=work)
    try:
        thread.start()
        # A signal just before a wait does not end it.
        while not ended.wait(0.1):
            pass
    except BaseException:
        given_up.set()
        if thread.ident is not None:
            ended.wait()
        raise
    (result,) = found
    if isinstance(result, Exception):
        raise result
    return result


def _run_all(
    commands: tuple[list[str], ...], scratch: Path | None, given_up: threading.Event
) -> list[bytes]:
    """Run each command in its own session, as Ctrl-C signals everything in the current one."""
    environment = {**os.environ, "LC_ALL": "C"}
    if scratch is not None:
        environment["TMPDIR"] = str(scratch)
    started: list[subprocess.Popen[bytes]] = []
    end = time.monotonic() + PATIENCE_S

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        if given_up.is_set():
            raise BuildError("the build was cancelled")
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        return process

    def finish(process: subprocess.Popen[bytes], command: list[str]) -> bytes:
        for _ in range(3):
            try:
                return _result(process, command[0], end, given_up)
            except KilledError as error:
                # Sent to our group before the process had its own session.
                if -error.code not in OTHERS_BUSINESS:
                    raise
                process = start(command)
        return _result(process, command[0], end, given_up)

    try:
        running = [start(command) for command in commands]
        return [
            finish(process, command) for process, command in zip(running, commands, strict=True)
        ]
    finally:
        for process in started:
            _end(process)


def _result(
    process: subprocess.Popen[bytes], name: str, end: float, given_up: threading.Event
) -> bytes:
    while True:
        try:
            out, err = process.communicate(timeout=0.1)
            break
        except subprocess.TimeoutExpired:
            if given_up.is_set():
                raise BuildError(f"{name} was stopped before it had ended") from None
            if time.monotonic() > end:
                raise BuildError(f"{name} timed out after {PATIENCE_S} seconds") from None
    said = err.decode(errors="replace").strip()
    code = process.returncode
    # A shell adds 128 to the number of the signal.
    if code < 0 or 128 < code <= 192 or _KILLED.search(said):
        raise KilledError(
            f"{name} was killed by a signal while it compiled slotmesh's C: exit status {code}. "
            "Call again to compile again, or set SLOTMESH_NATIVE=0 to compute in torch. "
            f"It wrote: {said[-500:] or 'nothing'}",
            code,
        )
    if code != 0:
        raise BuildError(f"{name} failed: {said[-500:]}")
    return out


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with everything that it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
