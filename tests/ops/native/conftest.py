"""A cache folder and a compiler for each test of how the C is compiled and kept."""

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slotmesh.ops._native import library, recipe


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, and no library in the package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(library, "SHIPPED", tmp_path / "nothing")
    return tmp_path / "cache" / "slotmesh"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a shell script the compiler."""

    def make(script: str) -> Path:
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CC", f"{path} -pthread")
        return path

    return make


@pytest.fixture(scope="session")
def prebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that works."""
    folder = tmp_path_factory.mktemp("prebuilt")
    found = library.load()
    if isinstance(found, str):
        pytest.skip(f"no C: {found}")
    if found.path.exists():
        return Path(shutil.copy(found.path, folder / "library"))
    return recipe.build(recipe.find_compiler(), folder, platform.machine())


@pytest.fixture
def quick(compiler: Callable[[str], Path], prebuilt: Path, tmp_path: Path) -> Path:
    """A compiler that takes no time, as it has compiled before, and a line for each library."""
    log = tmp_path / "built"
    log.touch()
    compiler(f"""
case "$*" in *-dM*) echo version 1; exit;; esac
for word; do [ "$last" = -o ] && out=$word; last=$word; done
case "$out" in *.o) : > "$out";; *) cp {prebuilt} "$out"; echo >> {log};; esac
""")
    return log
