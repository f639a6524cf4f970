"""Checkpoints with flipped bits and cut short: refused, or the one before takes their place."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.cli import main
from slotmesh.models import SetCopier
from slotmesh.training.checkpoint import DamagedError, last_sound, load_checkpoint, packed
from slotmesh.training.loop import run_train
from slotmesh.training.runs import open_run
from slotmesh.training.settings import Settings

from ..training._jobs import assert_same, state, tiny
from .conftest import Campaign

NAMES = ("last", "previous", "best")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, dict[str, bytes]]:
    """A run that stopped after 4 of 6 steps, and its checkpoints, of steps 4 and 2."""
    folder = tmp_path_factory.mktemp("made") / "run"
    settings = tiny("random-objects", "SA", folder, steps=6, val_every=4, save_every=2)
    with pytest.MonkeyPatch.context() as patch:
        stop_before(patch, 4)
        with pytest.raises(ValueError, match="here it stops"):
            run_train(settings, Console(file=io.StringIO()))
    files = {name: (folder / "checkpoints" / f"{name}.ckpt").read_bytes() for name in NAMES}
    return settings, files


def stop_before(patch: pytest.MonkeyPatch, step: int) -> None:
    """Let training end with an error."""
    from slotmesh.training.loop import Training

    old = Training.learn

    def learn(self: Training, batch: Any) -> None:
        if self.step == step:
            raise ValueError("here it stops")
        old(self, batch)

    patch.setattr(Training, "learn", learn)


def flipped(content: bytes, dice: Random) -> bytes:
    found = bytearray(content)
    found[dice.randrange(len(found))] ^= 1 << dice.randrange(8)
    return bytes(found)


def cut(content: bytes, dice: Random) -> bytes:
    # Half of the time within the last bytes, where the hash and the table of contents are.
    return content[: -dice.choice([dice.randint(1, 200), dice.randint(1, len(content))])]


def zeroed(content: bytes, dice: Random) -> bytes:
    """As a block that never reached the disk."""
    at = dice.randrange(len(content))
    return content[:at] + bytes(len(content[at : at + 4096])) + content[at + 4096 :]


DAMAGES: dict[str, Callable[[bytes, Random], bytes]] = {
    "with a bit flipped": flipped,
    "cut short": cut,
    "with a block of zeros": zeroed,
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_never_accepted(
    made: tuple[Settings, dict[str, bytes]], tmp_path: Path, how: str, campaign: Campaign
) -> None:
    dice, whole, path = campaign.rng(how), made[1]["last"], tmp_path / "x.ckpt"
    n = campaign.size(40, 400)
    tried = 0
    for _ in range(n):
        content = DAMAGES[how](whole, dice)
        if content == whole:  # zeros in place of zeros
            continue
        tried += 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.ckpt (cannot be read|is refused)"):
            load_checkpoint(path)
    assert tried > n / 4
    campaign.count(f"checkpoints {how}: refused", tried)


def test_every_byte_of_the_end(made: tuple[Settings, dict[str, bytes]], tmp_path: Path) -> None:
    """Where the file says that it has a hash, and which."""
    whole, path = made[1]["last"], tmp_path / "x.ckpt"
    for i in range(1, 110):
        other = bytearray(whole)
        other[-i] ^= 1
        for content in (whole[:-i], other):
            path.write_bytes(content)
            with pytest.raises(DamagedError):
                load_checkpoint(path)


def test_without_a_hash_the_sums_are_checked(
    made: tuple[Settings, dict[str, bytes]], tmp_path: Path, campaign: Campaign
) -> None:
    """As in older checkpoints: a flipped bit is refused, or was in nothing that counts."""
    dice, path = campaign.rng("no hash"), tmp_path / "x.ckpt"
    path.write_bytes(made[1]["last"])
    content = load_checkpoint(path)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    path.write_bytes(buffer.getvalue())
    assert_same(load_checkpoint(path), content)
    with zipfile.ZipFile(path) as archive:
        weights = [i for i in archive.infolist() if "/data/" in i.filename]
    n, refused = campaign.size(40, 400), 0
    for i in range(n):
        damaged = bytearray(buffer.getvalue())
        at = dice.randrange(len(damaged))
        inside = i % 2 == 0
        if inside:
            part = dice.choice(weights)
            # Behind its header, whose last two numbers are the sizes of what stands between.
            sizes = struct.unpack_from("<HH", damaged, part.header_offset + 26)
            at = part.header_offset + 30 + sum(sizes) + dice.randrange(part.file_size)
        damaged[at] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        try:
            found = load_checkpoint(path)
        except ValueError:
            refused += 1
        else:
            assert not inside
            assert_same(found, content)
    campaign.count("checkpoints without a hash: refused", refused)
    campaign.count("checkpoints without a hash: nothing that counts was damaged", n - refused)


def test_a_part_that_is_marked_as_a_folder_is_damage(
    made: tuple[Settings, dict[str, bytes]], tmp_path: Path
) -> None:
    """Without a hash: the sums are right, but torch would read nothing."""
    path = tmp_path / "x.ckpt"
    path.write_bytes(made[1]["last"])
    buffer = io.BytesIO()
    torch.save(load_checkpoint(path), buffer)
    damaged = bytearray(buffer.getvalue())
    # The attributes of the last part with weights, in the list of all parts.
    entry = damaged.rindex(b"PK\1\2", 0, damaged.rindex(b"/data/"))
    damaged[entry + 38] ^= 0x10
    path.write_bytes(damaged)
    with pytest.raises(DamagedError, match="is marked as a folder"):
        load_checkpoint(path)


def resumed(made: tuple[Settings, dict[str, bytes]], folder: Path, **files: bytes | None) -> str:
    """Resume a copy of the run with other checkpoints; what was said."""
    settings = made[0].__class__(**{**vars(made[0]), "out": folder})
    (folder / "checkpoints").mkdir(parents=True)
    source = made[0].folder / "settings.json"
    (folder / "settings.json").write_bytes(source.read_bytes())
    for name, content in {**made[1], **files}.items():
        if content is not None:
            (folder / "checkpoints" / f"{name}.ckpt").write_bytes(content)
    screen = io.StringIO()
    run_train(settings, Console(file=screen, width=500))
    return screen.getvalue()


def test_the_one_before_takes_its_place(
    made: tuple[Settings, dict[str, bytes]], tmp_path: Path, campaign: Campaign
) -> None:
    """And the run ends with the bits of one whose checkpoint was whole."""
    whole = tmp_path / "whole"
    assert "damaged" not in resumed(made, whole)
    n = campaign.size(1, 10)
    dice = campaign.rng("fall back")
    for i in range(n):
        folder = tmp_path / str(i)
        said = resumed(made, folder, last=cut(made[1]["last"], dice))
        [line] = [line for line in said.splitlines() if "damaged" in line]
        assert "last.ckpt cannot be read as a checkpoint: it is damaged" in line
        assert line.endswith("Resuming from the one before it, of step 2.")
        for name in ("last", "best"):
            assert_same(state(folder, name), state(whole, name), name)
    campaign.count("runs resumed from the checkpoint before a damaged one", n)


def test_the_one_before_is_not_lost_by_it(
    made: tuple[Settings, dict[str, bytes]], tmp_path: Path
) -> None:
    """It stands under both names until the next is written: no kill finds two damaged ones."""
    for name in NAMES:
        (tmp_path / f"{name}.ckpt").write_bytes(made[1][name])
    (tmp_path / "last.ckpt").write_bytes(b"")
    said: list[str] = []
    assert last_sound(tmp_path, said.append) == tmp_path / "last.ckpt"
    assert len(said) == 1
    for name in ("last", "previous"):
        assert (tmp_path / f"{name}.ckpt").read_bytes() == made[1]["previous"]
    assert last_sound(tmp_path, said.append) == tmp_path / "last.ckpt"
    assert len(said) == 1
    # A rename that a kill cut in two where there are no hard links.
    (tmp_path / "last.ckpt").unlink()
    assert last_sound(tmp_path, said.append) == tmp_path / "last.ckpt"
    assert "is missing. Resuming from the one before it, of step 2" in said[1]
    assert not list(tmp_path.glob(".*"))


def test_two_damaged_ones_are_an_error(
    made: tuple[Settings, dict[str, bytes]], tmp_path: Path
) -> None:
    with pytest.raises(DamagedError, match=r"last\.ckpt .* before, .*previous\.ckpt .*--overwrite"):
        resumed(made, tmp_path / "a", last=b"PK", previous=b"PK")
    with pytest.raises(DamagedError, match=r"last\.ckpt .* no earlier one .*--overwrite"):
        resumed(made, tmp_path / "b", last=b"PK", previous=None)


def test_a_damaged_best_is_said(made: tuple[Settings, dict[str, bytes]], tmp_path: Path) -> None:
    """Training needs it not; an evaluation of other weights would be another result."""
    said = resumed(made, tmp_path / "run", best=made[1]["best"][:-1], last=made[1]["previous"])
    assert "best.ckpt cannot be read as a checkpoint: it is damaged" in said
    (tmp_path / "run" / "checkpoints" / "best.ckpt").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"best\.ckpt .*damaged.* last\.ckpt, previous\.ckpt"):
        open_run(tmp_path / "run").load_model()


MARKS = 50_000_000


def zipped(content: bytes, kind: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        lambda: b"(" * MARKS,
        lambda: b"\x80\x02" + b"(" * MARKS + b".",
        lambda: zipped(b"\x80\x02" + b"(" * MARKS + b".", zipfile.ZIP_STORED),
        lambda: zipped(b"\x80\x02" + b"]" * MARKS + b".", zipfile.ZIP_DEFLATED),
    ],
    ids=["marks", "pickle", "archive", "compressed"],
)
def test_a_pickle_of_marks_is_not_read(
    tmp_path: Path, content: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 50 million marks would make an object: minutes, and gigabytes."""

    def load(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it is read")

    path = tmp_path / "x.ckpt"
    path.write_bytes(content())
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(ValueError, match=r"x\.ckpt (is refused|cannot be read)"):
        load_checkpoint(path)


def test_the_hash_costs_torch_nothing(tmp_path: Path) -> None:
    """The file is still one that torch and others read."""
    content = {"state_dict": {"w": torch.arange(5.0)}}
    (tmp_path / "x.ckpt").write_bytes(packed(content))
    assert_same(torch.load(tmp_path / "x.ckpt", weights_only=True), content)
    assert zipfile.is_zipfile(tmp_path / "x.ckpt")


def test_exported_weights(
    made: tuple[Settings, dict[str, bytes]], tmp_path: Path, campaign: Campaign
) -> None:
    """safetensors checks no sums: what is loaded is what was written, or nothing is."""
    dice = campaign.rng("safetensors")
    main(["export", str(made[0].folder), "--out", str(tmp_path)])
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    weights = open_run(tmp_path).load_model().state_dict()
    assert_same(SetCopier.from_pretrained(tmp_path).state_dict(), weights)
    begin = 8 + int.from_bytes(whole[:8], "little")
    n, refused = campaign.size(40, 400), 0
    for i in range(n):
        damaged = bytearray(whole)
        inside = i % 2 == 0
        at = dice.randrange(begin if inside else 0, len(whole))
        damaged[at] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        for load in (lambda: open_run(tmp_path).load_model(), load_pretrained(tmp_path)):
            try:
                found = load().state_dict()
            except ValueError as error:
                assert str(path) in str(error)  # noqa: PT017
                refused += 1
            else:
                assert not inside
                assert_same(found, weights)
    campaign.count("exported weights with a bit flipped: refused, twice each", refused)


def load_pretrained(folder: Path) -> Callable[[], Any]:
    return lambda: SetCopier.from_pretrained(folder)
