"""The compiled C library: shipped with the package, or compiled on this machine.

A wheel for a platform has a library in this folder. Elsewhere the C is compiled on first use and
kept in the user's cache folder or, if that cannot be used, compiled for one process.
"""

import ctypes
import functools
import hashlib
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from slotmesh.ops._native import cache, recipe

SWITCH = "SLOTMESH_NATIVE"
SWITCHED_OFF = f"{SWITCH} is 0"
SHIPPED = Path(__file__).parent
REMEDY = (
    "Windows Subsystem for Linux has it"
    if sys.platform == "win32"
    else "Install a C compiler (gcc or clang), or a wheel of slotmesh for this platform"
)

Origin = Literal["shipped", "cached", "temporary"]


class Library(NamedTuple):
    """Functions in C, for the instructions of this processor."""

    solve: Any
    pull_back: Any
    adjoint: Any
    assign: Any
    transport: Any
    level: str
    """Instruction level of recipe.py."""
    path: Path
    origin: Origin
    """Shipped with the package, from the cache folder, or compiled for this process alone."""
    note: str | None
    """Why it had to be compiled, in words, or None."""


@functools.cache
def load() -> Library | str:
    """The library, or why there is none, in words.

    Raises:
        RuntimeError: If a compiler was killed, so that a second attempt may succeed.
    """
    if os.environ.get(SWITCH) == "0":
        return SWITCHED_OFF
    found = _shipped()
    if isinstance(found, Library):
        return found
    try:
        return _compiled(found)
    except (OSError, recipe.BuildError) as error:
        return str(error) if found is None else f"{found}, and {error}"


_loaded_by = os.getpid()


@functools.cache
def torch_threads(process: int) -> int | None:
    """Address of GOMP_parallel in torch's OpenMP, whose threads wait for work, or None.

    A fork has none of these threads. There, and without OpenMP, each call starts its own.
    """
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if process != _loaded_by:
        return None
    try:
        found: Any = ctypes.CDLL(str(torch_cpu)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    return ctypes.cast(found, ctypes.c_void_p).value


def _shipped() -> Library | str | None:
    """The library of the package, why it cannot be used, or None if there is none."""
    problem = None
    for path in sorted(SHIPPED.glob(f"shipped-*{recipe.SUFFIX}")):
        try:
            if recipe.is_intact(path):
                return _open(path, "shipped")
            problem = f"{path.name} in the package is damaged (reinstall slotmesh)"
        except (OSError, recipe.BuildError) as error:
            problem = f"{path.name} in the package cannot be loaded: {error}"
    return problem


def _compiled(note: str | None) -> Library:
    if sys.platform == "win32":
        raise recipe.BuildError("there is none for Windows")
    machine, compiler = platform.machine(), recipe.find_compiler()
    known = b"\0".join(recipe.ingredients(compiler, machine))
    key = hashlib.sha256(known).hexdigest()[:32]
    try:
        kept = cache.find(key)
        if kept is not None:
            return _open(kept, "cached", note)
    except (OSError, recipe.BuildError):
        pass  # compiled again below, which also reports what is wrong
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        built = recipe.build(compiler, Path(folder), machine)
        try:
            return _open(cache.keep(built, key), "cached", note)
        except OSError as error:
            return _open(built, "temporary", f"{note}, and {error}" if note else str(error))


def _at_most(wanted: str | None, best: str) -> str:
    """The instruction level to use: the best one, unless a lower one is requested."""
    levels = list(recipe.X86_64)
    if wanted in levels and levels.index(wanted) < levels.index(best):
        return wanted
    return best


def _open(path: Path, origin: Origin, note: str | None = None) -> Library:
    library = ctypes.CDLL(str(path))
    try:
        library.slotmesh_level.restype = ctypes.c_char_p
        level = _at_most(os.environ.get(SWITCH), library.slotmesh_level().decode())
        names = ("solve", "pull_back", "adjoint", "assign", "transport")
        functions = {name: getattr(library, f"slotmesh_{name}_{level}") for name in names}
    except AttributeError as error:
        raise recipe.BuildError(f"a function is missing: {error}") from None
    return Library(**functions, level=level, path=path, origin=origin, note=note)
