"""Whatever happens to a compiled library in the cache, only an intact one is ever loaded."""

import hashlib
import os
from pathlib import Path

import pytest

from slotmesh.ops._native import library, recipe

CONTENT = hashlib.shake_256(b"a library").digest(40_000)


@pytest.fixture
def load(monkeypatch, tmp_path):
    """As a new process does, with a compiler that copies; returns the path of the library."""
    right = tmp_path / "right"
    right.write_bytes(CONTENT)
    compiler = tmp_path / "compiler"
    compiler.write_text(f"""#!/bin/sh
case "$*" in *-dM*) exit;; esac
for word; do [ "$last" = -o ] && out=$word; last=$word; done
case "$out" in *.o) ;; *) cp {right} "$out"; echo >> {tmp_path}/built;; esac
""")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(library, "SHIPPED", tmp_path / "nothing")

    def check(path, origin, note=None):
        # To load it for real could kill this process.
        assert path.read_bytes() == CONTENT
        return library.Library(None, None, None, None, None, "baseline", path, origin, note)

    monkeypatch.setattr(library, "_open", check)

    def run() -> Path:
        found = library.load.__wrapped__()
        assert found.origin == "cached"
        return found.path

    return run


def damaged(content: bytes, rng) -> bytes:
    """Cut off, some bits flipped, a page of zeros as after a power cut, or a part moved."""
    at = rng.randrange(len(content))
    kind = rng.choice(["cut", "cut", "flip", "flip", "zeros", "longer", "moved"])
    if kind == "cut":
        return content[:at]
    if kind == "flip":
        bits = bytearray(content)
        for place in {at, *rng.choices(range(len(content)), k=rng.choice([0, 3]))}:
            bits[place] ^= 1 << rng.randrange(8)
        return bytes(bits)
    if kind == "zeros":
        at -= at % 4096
        return content[:at] + bytes(len(content[at : at + 4096])) + content[at + 4096 :]
    if kind == "longer":
        return content + rng.randbytes(1 + at)
    return content[at:] + content[:at] if at else content[::-1]


def test_damaged_library_is_made_again(campaign, load, tmp_path):
    rng, n = campaign.rng("native cache"), campaign.size(20, 200)
    path = load()
    for made in range(2, n + 2):
        path.write_bytes(damaged(CONTENT, rng))
        if rng.random() < 0.2:
            # What others left behind while they were killed: nobody minds.
            (path.parent / f"tmp{made}").write_bytes(rng.randbytes(100))
        assert load() == path
        assert path.read_bytes() == CONTENT
        assert len((tmp_path / "built").read_text()) == made
        assert load() == path
        assert len((tmp_path / "built").read_text()) == made
    campaign.count("damaged libraries, all made again", n)


def test_damaged_library_of_the_package_is_not_loaded(campaign, load, monkeypatch, tmp_path):
    """Then one is made on this machine."""
    rng, n = campaign.rng("shipped library"), campaign.size(20, 200)
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(library, "SHIPPED", package)
    path = package / recipe.hashed_name("shipped", CONTENT)
    for _ in range(n):
        path.write_bytes(damaged(CONTENT, rng))
        found = library.load.__wrapped__()
        assert found.origin == "cached"
        assert found.note == f"{path.name} in the package is damaged (reinstall slotmesh)"
    path.write_bytes(CONTENT)
    assert library.load.__wrapped__().origin == "shipped"
    # And without a compiler it is said.
    path.write_bytes(damaged(CONTENT, rng))
    monkeypatch.setenv("CC", "missing")
    monkeypatch.setenv("PATH", os.devnull)
    reason = library.load.__wrapped__()
    assert "is damaged" in reason
    assert "no C compiler was found" in reason
    campaign.count("damaged libraries of the package, none loaded", n)
