"""The C files beside this one, compiled the first time that they are needed.

The result is kept in the user's cache folder under a name made of the sources and of all that the
compiler says of itself and of the processor, so that machines may share a home directory.
"""

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch

SOURCES = Path(__file__).parent
# Neither finite-math-only, as NaN must stay NaN, nor fast-math, which changes the whole process.
FLAGS = (
    *("-std=c11", "-O3", "-march=native", "-fPIC", "-shared", "-pthread"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
SWITCH = "SLOTMESH_NATIVE"
# A compiler takes a second; one that hangs is not waited for.
PATIENCE_S = 120


@functools.cache
def load() -> ctypes.CDLL | str:
    """The library, or why there is none, in words."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    try:
        return ctypes.CDLL(str(_built(_compiler(), cache_folder())))
    except subprocess.CalledProcessError as error:
        said: bytes = error.stderr
        return f"{error.cmd[0]} failed: {said.decode(errors='replace').strip()[-500:]}"
    except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)


_loaded_by = os.getpid()


@functools.cache
def torch_threads(process: int) -> int | None:
    """The address of GOMP_parallel in torch's OpenMP, whose threads wait for work; None without.

    They stay behind in a fork. There, and without OpenMP, each call starts threads of its own.
    """
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if process != _loaded_by:
        return None
    try:
        found: Any = ctypes.CDLL(str(torch_cpu)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    return ctypes.cast(found, ctypes.c_void_p).value


def cache_folder() -> Path:
    """Where libraries are kept."""
    if sys.platform == "darwin":
        usual = Path.home() / "Library" / "Caches"
    else:
        usual = Path.home() / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "slotmesh"


def _compiler() -> tuple[str, ...]:
    """The command of a C compiler; it may have arguments."""
    given = (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang")
    for line in given:
        name, *arguments = shlex.split(line or "") or [""]
        path = shutil.which(name)
        if path is not None:
            return path, *arguments
    raise RuntimeError("no C compiler was found: neither $CC, cc, gcc nor clang")


def _built(compiler: tuple[str, ...], folder: Path) -> Path:
    """The compiled library."""
    # All macros of the compiler: its version, and what it found the processor to have.
    said = _run(*compiler, *FLAGS, "-dM", "-E", "-x", "c", os.devnull)
    sources = sorted(SOURCES.glob("*.[ch]"))
    known = (*(path.read_bytes() for path in sources), repr(FLAGS).encode(), said)
    key = hashlib.sha256(b"\0".join(known)).hexdigest()[:32]
    library = folder / f"native-{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Several processes may be here at once: each has a folder, and a rename is all or nothing.
        with tempfile.TemporaryDirectory(dir=folder) as own:
            fresh = Path(own) / library.name
            compiled = [str(path) for path in sources if path.suffix == ".c"]
            _run(*compiler, *FLAGS, "-o", str(fresh), *compiled, "-lm")
            fresh.replace(library)
    return library


def _run(*command: str) -> bytes:
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S
    )
    return done.stdout
