"""Compiled libraries in the user's cache folder, used only if nobody else can have put them there.

The name of a library contains the hash of its bytes. So one rename puts it there, several processes
may do so at once, and a file truncated by a power cut is recognised.
"""

import contextlib
import os
import stat
import sys
from pathlib import Path

from slotmesh.files import write_whole
from slotmesh.ops._native.recipe import SUFFIX, hashed_name, is_intact


class UntrustedError(OSError):
    """Somebody else could have written there."""


def folder() -> Path:
    """The folder of the libraries, with links resolved, as they may change after the check."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError(str(error)) from None
    usual = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    # Its specification says to ignore relative paths.
    base = given if given.is_absolute() else usual
    if not base.is_absolute():
        raise OSError(f"HOME is {str(home)!r}, which is not an absolute path")
    return (base / "slotmesh").resolve()


def find(key: str) -> Path | None:
    """An intact library, or None."""
    here = folder()
    if not here.exists():
        return None
    _check(here)
    return next((path for path in _libraries(here, key) if _is_ours(path)), None)


def keep(library: Path, key: str) -> Path:
    """Put a library there in place of older ones; an OSError if that is impossible or unsafe."""
    here = folder()
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check(here)
    content = library.read_bytes()
    kept = here / hashed_name(f"native-{key}", content)
    write_whole(kept, content, mode=0o700)
    _sync_folder(here)
    for path in _libraries(here, key):
        if path != kept:
            with contextlib.suppress(OSError):
                path.unlink()
    if not _is_ours(kept):
        raise OSError(f"what was written to {here} cannot be read back")
    return kept


def _libraries(here: Path, key: str) -> list[Path]:
    return sorted(here.glob(f"native-{key}-*{SUFFIX}"))


def _is_ours(path: Path) -> bool:
    try:
        info = path.lstat()
        return stat.S_ISREG(info.st_mode) and _complaint(info) is None and is_intact(path)
    except OSError:
        return False


def _check(here: Path) -> None:
    """Check that nobody else can change the content of a folder or replace the folder."""
    for path in (here, *here.parents):
        info = path.stat()
        # In a folder such as /tmp, nobody can move files of another user.
        shared = path != here and bool(info.st_mode & stat.S_ISVTX)
        complaint = _complaint(info, shared=shared)
        if complaint is not None:
            raise UntrustedError(f"{path} {complaint}")


def _complaint(info: os.stat_result, *, shared: bool = False) -> str | None:
    """Why others may have written to a file or folder, or None."""
    if info.st_uid not in (0, os.geteuid()):
        return f"belongs to user {info.st_uid}"
    if shared:
        return None
    if info.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if info.st_mode & stat.S_IWGRP and not _is_private(info.st_gid, info.st_uid):
        return f"can be written by group {info.st_gid}"
    return None


def _is_private(group: int, user: int) -> bool:
    """Whether a group is the user's own, as on many systems; then it may write."""
    import grp
    import pwd

    try:
        known, owner = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    alone = set(known.gr_mem) <= {owner.pw_name}
    return alone and owner.pw_gid == group and known.gr_name == owner.pw_name


def _sync_folder(here: Path) -> None:
    """Sync a folder if possible; otherwise a power cut may lose the name, which is harmless."""
    with contextlib.suppress(OSError):
        number = os.open(here, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
