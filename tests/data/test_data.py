"""The commands under ``slotmesh data``."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import tyro
from PIL import Image
from rich.console import Console

from slotmesh.data import (
    COMMANDS,
    Bench,
    Convert,
    Export,
    Preview,
    Stats,
    run_bench,
    run_convert,
    run_export,
    run_preview,
    run_stats,
)
from slotmesh.data.bench import check_scenes
from slotmesh.readers import READERS, BadRecord, HDF5Reader, Reader
from slotmesh.readers.hdf5_layout import WriteError
from slotmesh.report.sheet import MASK_COLOURS, colour_mask, describe, draw_sheet
from slotmesh.worlds import WORLDS, MultiDSprites, RandomObjects, Sample, register_world

from ..readers._folders import fill


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=80)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def parse(*args: str) -> object:
    return tyro.extras.subcommand_cli_from_dict(
        {name: kind for name, (kind, _) in COMMANDS.items()}, args=args
    )


def test_commands_are_read_from_the_command_line() -> None:
    assert parse("preview", "clevr", "--out", "a.png", "--n", "4") == Preview(
        world="clevr", out=Path("a.png"), n=4
    )
    assert parse("export", "multi-dsprites", "--n", "5", "--out", "a.h5") == Export(
        world="multi-dsprites", n=5, out=Path("a.h5")
    )
    line = "convert clevrer --root data --out a.h5 --split val --frames 0 127 --skip-bad"
    assert parse(*line.split()) == Convert(
        dataset="clevrer",
        root=Path("data"),
        out=Path("a.h5"),
        split="val",
        frames=(0, 127),
        skip_bad=True,
    )
    assert parse("stats", "clevr", "--n", "10") == Stats(source="clevr", n=10)
    assert parse("bench", "clevrtex", "--batch-size", "8") == Bench(world="clevrtex", batch_size=8)
    with pytest.raises(SystemExit):
        parse("preview", "no-such-world")


def test_a_world_from_outside_is_a_choice_too(tmp_path: Path, screen: Console) -> None:
    register_world("tiny", MultiDSprites, settings={"size": 16}, reader="multi-dsprites")
    try:
        preview = parse("preview", "tiny", "--n", "1", "--out", str(tmp_path / "a.png"))
        assert isinstance(preview, Preview)
        run_preview(preview, screen)
        run_stats(Stats("tiny", n=2), screen)
    finally:
        del WORLDS["tiny"]
    assert (tmp_path / "a.png").exists()
    assert any(shape in text(screen) for shape in MultiDSprites.SHAPES)
    with pytest.raises(SystemExit):
        parse("preview", "tiny")


# Preview


def test_preview_shows_images_and_masks(tmp_path: Path, screen: Console) -> None:
    out = tmp_path / "sheet.png"
    run_preview(Preview("multi-dsprites", out=out, n=3, device="cpu"), screen)
    assert str(out) in text(screen)
    assert names(tmp_path) == ["sheet.png"]
    with Image.open(out) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    # Each pixel of the first image and of its mask is a block of 2x2 somewhere on the sheet.
    sample = MultiDSprites().sample(range(3))
    for i in range(3):
        for picture in (sample.image[i].movedim(0, -1).numpy(), colour_mask(sample.mask[i])):
            assert contains(pixels, picture.repeat(2, 0).repeat(2, 1))


def contains(sheet: np.ndarray, picture: np.ndarray) -> bool:
    height, width = picture.shape[:2]
    down, across = (a - b + 1 for a, b in zip(sheet.shape, (height, width), strict=False))
    corner = (sheet[:down, :across] == picture[0, 0]).all(-1)
    return any(
        np.array_equal(sheet[y : y + height, x : x + width], picture)
        for y, x in zip(*corner.nonzero(), strict=True)
        if (sheet[y, x : x + width] == picture[0]).all()
        and (sheet[y : y + height, x] == picture[:, 0]).all()
    )


def test_preview_takes_a_seed_a_start_and_a_size(tmp_path: Path, screen: Console) -> None:
    sheets = []
    for options in ({}, {"seed": 1}, {"start": 5}, {"size": 72}):
        out = tmp_path / "a.png"
        run_preview(Preview("multi-dsprites", out=out, n=1, device="cpu", **options), screen)
        sheets.append(out.read_bytes())
    assert len(set(sheets)) == 4


def test_preview_of_vectors(tmp_path: Path, screen: Console) -> None:
    out = tmp_path / "a.png"
    run_preview(Preview("random-objects", out=out, n=2, device="cpu"), screen)
    with Image.open(out) as sheet:
        assert min(sheet.size) > 100


def test_objects_are_described(tmp_path: Path) -> None:
    sample = MultiDSprites().sample([0])
    lines = describe(sample, 0, {"shape": MultiDSprites.SHAPES})
    pixels = [int((sample.mask[0] == k).sum()) for k in (1, 2, 3)]
    assert lines[:3] == [
        f"heart 0.8 ({pixels[0]} px)",
        f"heart 0.6 ({pixels[1]} px)",
        f"ellipse 0.7 ({pixels[2]} px)",
    ]
    assert lines[3:] == ["", ""]
    assert len(set(MASK_COLOURS)) == 11


def test_video_sheets_hold_all_frames() -> None:
    one = MultiDSprites().sample(range(2))
    frames, masks = (torch.stack((x, x.flip(-1)), 1) for x in (one.image, one.mask))
    present = torch.stack((one.present, one.present), 1)
    video = Sample(frames, masks, {"shape": one.objects["shape"]}, present, one.index)
    sheet = np.asarray(draw_sheet(video))
    for i in range(2):
        for frame in range(2):
            for picture in (frames[i, frame].movedim(0, -1).numpy(), colour_mask(masks[i, frame])):
                assert contains(sheet, picture.repeat(2, 0).repeat(2, 1))


def test_preview_tells_what_is_wrong(tmp_path: Path, screen: Console) -> None:
    with pytest.raises(ValueError, match=r"ends in \.png"):
        run_preview(Preview("multi-dsprites", out=tmp_path / "a.jpg", n=1), screen)
    with pytest.raises(ValueError, match=r"could not be written: No such file.*that exists"):
        run_preview(Preview("multi-dsprites", out=tmp_path / "no" / "a.png", n=1), screen)
    with pytest.raises(ValueError, match="--n is 0"):
        run_preview(Preview("multi-dsprites", out=tmp_path / "a.png", n=0), screen)
    with pytest.raises(ValueError, match="random-objects does not take these settings"):
        run_preview(Preview("random-objects", out=tmp_path / "a.png", size=64), screen)
    assert names(tmp_path) == []


# Export and stats


def test_export_writes_the_world(tmp_path: Path, screen: Console) -> None:
    out = tmp_path / "a.h5"
    export = Export("multi-dsprites", n=50, out=out, start=7, seed=3, batch_size=16, device="cpu")
    done = run_export(export, screen)
    assert done.n == 50
    assert "50 samples" in text(screen)
    back = HDF5Reader(out).sample(range(50))
    sample = MultiDSprites(seed=3).sample(range(7, 57))
    assert torch.equal(back.image, sample.image)
    assert torch.equal(back.index, sample.index)
    with h5py.File(out) as file:
        assert file.attrs["source"] == b"multi-dsprites"
        assert json.loads(file.attrs["settings"]) == {
            "seed": 3,
            "size": 64,
            "min_visible": 16,
            "start": 7,
        }
    with pytest.raises(WriteError, match=r"exists already. .* --overwrite"):
        run_export(export, screen)


def test_export_of_vectors(tmp_path: Path, screen: Console) -> None:
    out = tmp_path / "a.h5"
    run_export(Export("random-objects", n=5, out=out, device="cpu"), screen)
    with h5py.File(out) as file:
        expected = RandomObjects().sample(range(5)).inputs.numpy()
        np.testing.assert_array_equal(file["inputs"][:], expected)


def test_stats_count_what_is_there(tmp_path: Path, screen: Console) -> None:
    out = tmp_path / "a.h5"
    run_export(Export("multi-dsprites", n=40, out=out, device="cpu"), Console(file=io.StringIO()))
    of_file = run_stats(Stats(str(out), batch_size=16), screen)
    of_world = run_stats(Stats("multi-dsprites", n=40, device="cpu"), screen)
    sample = MultiDSprites().sample(range(40))
    for summary in (of_file, of_world):
        assert summary.n == 40
        counted = torch.bincount(sample.present.sum(1)).tolist()
        assert [summary.counts[k] for k in range(6)] == counted
        hearts = int((sample.objects["shape"][sample.present] == 2).sum())
        assert summary.classes["shape"][2] == hearts
        x = np.concatenate(summary.numbers["x"])
        assert x.mean() == pytest.approx(float(sample.objects["x"][sample.present].mean()))
        seen = np.concatenate(summary.visible)
        assert sorted(seen) == sorted(sample.objects["visible"][sample.present].tolist())
        mean = sample.image.double().mean((0, 2, 3)).numpy()
        np.testing.assert_allclose(summary.colour / 40, mean)
    for word in ("square", "heart", "orientation", "pixels seen", "mean colour"):
        assert text(screen).count(word) == 2
    # The path of the file may be longer than a line, and stays whole.
    lines = [line for line in text(screen).splitlines() if line != f"{out}: 40 samples"]
    assert max(map(len, lines)) <= 80


def test_stats_without_masks(screen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of CLEVR, whose masks are all zero."""
    before = MultiDSprites.make

    def make(self: MultiDSprites, index: torch.Tensor) -> Sample:
        found = before(self, index)
        return replace(found, mask=torch.zeros_like(found.mask))

    monkeypatch.setattr(MultiDSprites, "make", make)
    run_stats(Stats("multi-dsprites", n=3, device="cpu"), screen)
    assert "pixels seen" not in text(screen)
    assert "mean colour" in text(screen)


def test_stats_of_video_and_of_vectors(screen: Console) -> None:
    summary = run_stats(Stats("random-objects", n=10, device="cpu"), screen)
    assert summary.counts == {5: 10}
    with pytest.raises(ValueError, match=r"neither a world .* nor a file"):
        run_stats(Stats("nothing.h5"), screen)


# Convert


class Pictures(Reader):
    """A dataset of 30 pictures, a few of which are broken."""

    name = "clevr"
    max_objects = 5
    bad: tuple[int, ...] = ()
    asked: list[int] = []  # noqa: RUF012

    def __init__(self, root: Path | str, split: str = "train", *, size: int = 64) -> None:
        self.split = split
        self.world = MultiDSprites(seed=9, size=size)

    def __len__(self) -> int:
        return 30

    def make(self, index: Sequence[int]) -> Sample:
        self.asked.extend(index)
        for i in index:
            if i in self.bad:
                raise BadRecord(f"{i}.png", None, "it is not a PNG:\n[cut short]")
        return self.world.sample(index)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Pictures]]:
    monkeypatch.setitem(READERS, "clevr", Pictures)
    monkeypatch.setattr(Pictures, "asked", [])
    return Pictures


def test_convert_writes_the_dataset(
    tmp_path: Path, screen: Console, pictures: type[Pictures]
) -> None:
    out = tmp_path / "a.h5"
    convert = Convert("clevr", root=tmp_path, out=out, split="val", size=72)
    done = run_convert(convert, screen)
    assert (done.n, done.skipped) == (30, ())
    back = HDF5Reader(out).sample(range(30))
    assert torch.equal(back.image, MultiDSprites(seed=9, size=72).sample(range(30)).image)
    with h5py.File(out) as file:
        assert file.attrs["source"] == b"clevr"
        assert json.loads(file.attrs["settings"]) == {
            "split": "val",
            "size": 72,
            "root": tmp_path.name,
        }
    assert run_stats(Stats(str(out)), screen).n == 30


def test_convert_writes_a_folder_whole(tmp_path: Path, screen: Console) -> None:
    root = fill(tmp_path / "photos", 12)
    made = run_convert(Convert("images", root, tmp_path / "all.h5", size=16), screen)
    assert made.n == 12
    made = run_convert(Convert("images", root, tmp_path / "val.h5", size=16, split="val"), screen)
    assert made.n < 12


def test_convert_stops_at_a_bad_record(
    tmp_path: Path, screen: Console, pictures: type[Pictures], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pictures, "bad", (4, 17))
    with pytest.raises(BadRecord, match=r"4\.png: it is not a PNG"):
        run_convert(Convert("clevr", root=tmp_path, out=tmp_path / "a.h5"), screen)
    assert not (tmp_path / "a.h5").exists()


def test_convert_can_skip_bad_records(
    tmp_path: Path, screen: Console, pictures: type[Pictures], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pictures, "bad", (4, 17))
    out = tmp_path / "a.h5"
    done = run_convert(Convert("clevr", root=tmp_path, out=out, skip_bad=True), screen)
    assert done.n == 28
    assert [s.index for s in done.skipped] == [4, 17]
    assert HDF5Reader(out).sample(range(28)).index.tolist() == [
        i for i in range(30) if i not in (4, 17)
    ]
    shown = text(screen)
    assert "Skipped 2 records" in shown
    assert "17: 17.png: it is not a PNG: [cut short]" in shown


def test_convert_goes_on_where_it_was(
    tmp_path: Path, screen: Console, pictures: type[Pictures], monkeypatch: pytest.MonkeyPatch
) -> None:
    from slotmesh.readers import hdf5_layout as layout

    monkeypatch.setattr(layout, "_BLOCK_BYTES", 150_000)  # Blocks of 8 pictures.
    monkeypatch.setattr(Pictures, "bad", (20,))
    convert = Convert("clevr", root=tmp_path, out=tmp_path / "a.h5")
    with pytest.raises(BadRecord):
        run_convert(convert, screen)
    monkeypatch.setattr(Pictures, "bad", ())
    monkeypatch.setattr(Pictures, "asked", [])
    done = run_convert(convert, screen)
    assert done.resumed_at == 16
    assert Pictures.asked == list(range(16, 30))
    expected = MultiDSprites(seed=9).sample(range(30)).image
    assert torch.equal(HDF5Reader(tmp_path / "a.h5").sample(range(30)).image, expected)


def test_convert_tells_of_an_option_that_does_not_fit(tmp_path: Path, screen: Console) -> None:
    with pytest.raises(ValueError, match="no option 'frames'"):
        run_convert(Convert("clevr", root=tmp_path, out=tmp_path / "a.h5", frames=(0,)), screen)


# Bench


@pytest.mark.parametrize("world", ["multi-dsprites", "random-objects"])
def test_bench_writes_what_it_measured(tmp_path: Path, screen: Console, world: str) -> None:
    bench = Bench(world, batch_size=8, seconds=0.2, device="cpu", threads=1, out=tmp_path / "r")
    threads = torch.get_num_threads()
    path = run_bench(bench, screen)
    assert torch.get_num_threads() == threads
    result = json.loads(path.read_text(encoding="utf-8"))
    assert path.name.startswith(f"{world}_")
    assert torch.__version__.replace("+", "-") in path.name
    assert result["batch_size"] == 8
    assert result["threads"] == 1
    assert result["torch"] == torch.__version__
    assert result["device"]
    # What is written as the command gives the same settings.
    assert parse(*result["command"].split()[2:]) == replace(bench, out=Path("benchmarks/results"))
    assert 0.2 <= result["seconds"] < 60
    assert result["images_per_second"] == result["samples_per_second"] > 0
    assert "images/s" in text(screen)


def test_bench_refuses_wrong_scenes() -> None:
    world = MultiDSprites()
    check_scenes(world, MultiDSprites())
    with pytest.raises(ValueError, match="differs from what the CPU computes"):
        check_scenes(world, MultiDSprites(seed=1))


def test_bench_tells_what_is_wrong(tmp_path: Path, screen: Console) -> None:
    with pytest.raises(ValueError, match="--seconds is 0"):
        run_bench(Bench("multi-dsprites", seconds=0, out=tmp_path), screen)
