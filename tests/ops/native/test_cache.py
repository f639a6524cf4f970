"""Which libraries in the cache folder are loaded: intact ones that only we can have put there."""

import grp
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slotmesh.ops._native import cache as cache_module
from slotmesh.ops._native import library, recipe

from .._compiled import needs_c

STRANGER = 54321


def load():
    """As in a new process."""
    return library.load.__wrapped__()


@pytest.fixture
def give_away(monkeypatch):
    """Makes a path belong to somebody else; without the right to, as far as Python can see."""
    given = set()
    for name in ("stat", "lstat"):
        real = getattr(Path, name)

        def fake(self, *args, real=real, **options):
            info = real(self, *args, **options)
            if str(self) not in given:
                return info
            fields = list(info)
            fields[4] = STRANGER
            return os.stat_result(fields)

        monkeypatch.setattr(Path, name, fake)

    def give(path):
        if os.geteuid() == 0:
            os.chown(path, STRANGER, STRANGER)
        else:
            given.add(str(path))

    return give


@pytest.fixture
def kept(cache, quick, prebuilt, monkeypatch):
    """A library in the cache, made once. Others would be a reason to fail, and are not loaded."""

    def fake(path, origin, note=None):
        assert path.read_bytes() == prebuilt.read_bytes()
        return library.Library(None, None, None, None, None, "baseline", path, origin, note)

    monkeypatch.setattr(library, "_open", fake)
    found = load()
    assert found.origin == "cached"
    assert len(quick.read_text()) == 1
    return found.path


def test_truncated_library_kills_no_process(cache, quick):
    """A power cut may leave any part of a file. To run into its end is SIGBUS."""
    path = load().path
    part = path.read_bytes()[:8192]
    path.unlink()  # this process has it loaded
    path.write_bytes(part)
    code = """if True:
        import torch
        from pathlib import Path
        from slotmesh.ops import _native, mesh
        _native.library.SHIPPED = Path("nothing")
        mesh(torch.zeros(2, 2), backend="cpu")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done
    assert len(quick.read_text()) == 2


DAMAGE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "all_but_one": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "another": lambda content: b"rubbish",
    "one_bit": lambda content: content[:5000] + bytes([content[5000] ^ 16]) + content[5001:],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_library_is_made_again(kept, quick, how):
    right = kept.read_bytes()
    kept.write_bytes(DAMAGE[how](right))
    assert load().path == kept
    assert kept.read_bytes() == right
    assert len(quick.read_text()) == 2
    load()
    assert len(quick.read_text()) == 2


def test_on_the_disk_before_it_has_its_name(cache, quick, monkeypatch):
    """And the name, too, before it is used."""
    done = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(number):
        done.append("folder" if os.path.isdir(f"/dev/fd/{number}") else "file")  # noqa: PTH112
        real_sync(number)

    def replace(self, target):
        done.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    assert load().origin == "cached"
    assert done == ["file", "rename", "folder"]


def foreign_file(kept, give_away):
    give_away(kept)


def loose_file(kept, give_away):
    kept.chmod(0o777)


def link(kept, give_away):
    elsewhere = shutil.move(kept, kept.parent / "elsewhere")
    kept.symlink_to(elsewhere)


def not_a_file(kept, give_away):
    kept.unlink()
    kept.mkdir()


@pytest.mark.parametrize("how", [foreign_file, loose_file, link, not_a_file])
def test_library_that_may_be_from_another_is_made_again(kept, quick, give_away, how):
    how(kept, give_away)
    found = load()
    assert len(quick.read_text()) == 2
    if how is not_a_file:
        assert found.origin == "temporary"
    elif how is not foreign_file or os.geteuid() == 0:
        assert found.origin == "cached"
        assert kept.lstat().st_uid == os.geteuid()
        assert kept.lstat().st_mode & 0o777 == 0o700
        assert not kept.is_symlink()


def foreign_folder(kept, give_away):
    give_away(kept.parent)
    return kept.parent, "belongs to user"


def foreign_parent(kept, give_away):
    give_away(kept.parent.parent)
    return kept.parent.parent, "belongs to user"


def open_folder(kept, give_away):
    kept.parent.chmod(0o777)
    return kept.parent, "written by everybody"


def sticky_folder(kept, give_away):
    """Good enough above a folder of one's own, but not as one."""
    kept.parent.chmod(0o1777)
    return kept.parent, "written by everybody"


def open_parent(kept, give_away):
    kept.parent.parent.chmod(0o777)
    return kept.parent.parent, "written by everybody"


def parent_of_a_group(kept, give_away):
    kept.parent.parent.chmod(0o775)
    return kept.parent.parent, "written by group"


FOLDERS = [
    foreign_folder,
    foreign_parent,
    open_folder,
    sticky_folder,
    open_parent,
    parent_of_a_group,
]


@pytest.mark.parametrize("how", FOLDERS)
def test_folder_in_which_others_can_write_is_not_used(kept, quick, give_away, monkeypatch, how):
    """Then each process compiles for itself, and says why."""
    monkeypatch.setattr(cache_module, "_is_private", lambda group, user: False)
    path, complaint = how(kept, give_away)
    found = load()
    assert found.origin == "temporary"
    assert found.note.startswith(f"{path} ")
    assert complaint in found.note
    assert len(quick.read_text()) == 2
    assert not found.path.exists()


def test_sticky_folder_above_is_fine(kept, quick):
    kept.parent.parent.chmod(0o1777)
    assert load().origin == "cached"
    assert len(quick.read_text()) == 1


def test_group_of_one_user_may_write(kept, quick, monkeypatch):
    """Many systems give each user such a group, and let it write by default."""
    kept.parent.parent.chmod(0o775)
    user = pwd.getpwuid(os.geteuid())
    members: list[str] = []

    def group(number):
        return grp.struct_group((user.pw_name, "x", number, members))

    monkeypatch.setattr(grp, "getgrgid", group)
    private = pwd.struct_passwd((*user[:3], kept.stat().st_gid, *user[4:]))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: private)
    assert load().origin == "cached"
    members.append("somebody-else")
    assert load().origin == "temporary"


@needs_c
def test_planted_library_does_not_run(cache, quick, give_away, tmp_path):
    """By a stranger who can write to the cache folder, and knows which name to give it."""
    source, mark = tmp_path / "evil.c", tmp_path / "it-ran"
    function = f'void run(void) {{ fopen("{mark}", "w"); }}'
    source.write_text(f"#include <stdio.h>\n__attribute__((constructor)) {function}\n")
    evil = tmp_path / "evil"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to make the planted library with")
    subprocess.run([compiler, recipe.SHARED, "-fPIC", "-o", evil, source], check=True)
    name = load().path.name
    key = name.split("-")[1]
    content = evil.read_bytes()
    planted = cache / recipe.hashed_name(f"native-{key}", content)
    (cache / name).unlink()
    shutil.copy(evil, planted)
    for path in (planted, cache):
        give_away(path)
    cache.chmod(0o777)
    assert load().origin == "temporary"
    assert not mark.exists()
    # It would have.
    library.ctypes.CDLL(str(evil))
    assert mark.exists()


def test_links_to_a_folder_of_ones_own_are_followed(cache, quick, tmp_path):
    (tmp_path / "large-disk").mkdir()
    cache.parent.symlink_to(tmp_path / "large-disk")
    found = load()
    assert found.origin == "cached"
    assert found.path.parent == (tmp_path / "large-disk" / "slotmesh").resolve()


def test_relative_cache_folder_is_ignored(quick, cache, monkeypatch, tmp_path):
    """As the XDG Base Directory Specification says; the working directory may be anybody's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = load()
    assert found.origin == "cached"
    assert found.path.is_relative_to((tmp_path / "home").resolve())
    assert not (tmp_path / "here").exists()


def no_home(monkeypatch, tmp_path, cache):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    return "home directory"


def relative_home(monkeypatch, tmp_path, cache):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "here")
    return "not an absolute path"


def not_a_folder(monkeypatch, tmp_path, cache):
    cache.parent.write_text("not a folder")
    return "Not a directory"


def read_only(monkeypatch, tmp_path, cache):
    """Root writes where permissions say no, but not on a file system that is read-only."""
    real = os.mkdir

    def refuse(path, *args, **options):
        if str(path).startswith(str(cache.parent)):
            raise OSError(30, "Read-only file system", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "mkdir", refuse)
    return "Read-only file system"


def full(monkeypatch, tmp_path, cache):
    def refuse(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    return "No space left on device"


@pytest.mark.parametrize("how", [no_home, relative_home, not_a_folder, read_only, full])
def test_without_a_cache_folder(cache, quick, monkeypatch, tmp_path, how):
    """The C is there all the same, and nothing is left behind."""
    reason = how(monkeypatch, tmp_path, cache)
    found = load()
    assert found.origin == "temporary"
    assert reason in found.note
    assert not cache.is_dir() or not list(cache.iterdir())


def test_full_disk_everywhere(cache, compiler):
    compiler('case "$*" in *-dM*) ;; *) echo "error: No space left on device" >&2; exit 1;; esac')
    assert "No space left on device" in load()
    assert not cache.exists()
