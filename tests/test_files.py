"""Files that are whole or not there."""

import errno
import os
import stat
from pathlib import Path

import pytest

from slotmesh.files import keep_also_as, make_folder, make_room, parts, slug, write_whole


def test_a_file_is_replaced_and_nothing_else_left(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")
    write_whole(path, b"new", old=tmp_path / "before.html")
    assert path.read_text() == "new"
    assert (tmp_path / "before.html").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")
    with pytest.raises(TypeError):
        write_whole(path, 7)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_nobody_else_may_write_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    sync = os.fsync

    def look(number: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(number).st_mode))
        sync(number)

    monkeypatch.setattr(os, "fsync", look)
    before = os.umask(0)
    try:
        write_whole(tmp_path / "library", b"code", mode=0o700)
    finally:
        os.umask(before)
    assert seen == [0o700]
    assert stat.S_IMODE((tmp_path / "library").stat().st_mode) == 0o700


def test_what_a_kill_leaves_is_found(tmp_path: Path) -> None:
    (tmp_path / ".a.ckpt.12.part").touch()
    (tmp_path / ".b.json.12.part").touch()
    assert parts(tmp_path, "*.ckpt") == [tmp_path / ".a.ckpt.12.part"]


def test_a_second_name(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "one")
    write_whole(tmp_path / "b", "two")
    keep_also_as(tmp_path / "a", tmp_path / "b")
    keep_also_as(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "one"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--out is .*file, which is a file; expected a folder"):
        make_folder(tmp_path / "file")
    with pytest.raises(ValueError, match=r"--to is .*below, which cannot be made: Not a directory"):
        make_folder(tmp_path / "file" / "below", "--to")


def test_names_keep_the_letters_of_any_alphabet() -> None:
    for name, expected in (
        ("Söme pics", "söme-pics"),
        ("So\u0308me pics", "söme-pics"),
        ("写真 2024/06", "写真-2024-06"),
        ("हिन्दी", "हिन्दी"),
        ("../a b_", "a-b"),
    ):
        assert slug(name, ascii_only=False) == expected


def test_an_error_names_the_file_and_not_its_part(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as failed:
        write_whole(tmp_path / "missing" / "x.json", "new")
    assert failed.value.filename == str(tmp_path / "missing" / "x.json")
    assert ".part" not in str(failed.value)


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is computed for it."""
    # Some users, such as root, may write anywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"--out is .*, a folder that cannot be written"):
        make_folder(tmp_path)


def test_what_to_do_depends_on_the_error() -> None:
    assert make_room(OSError(errno.ENOSPC, "No space left on device")) == "Free some space"
    assert make_room(PermissionError(errno.EACCES, "Permission denied")) == "Make it writable"
