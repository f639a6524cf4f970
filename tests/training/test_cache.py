"""What is kept of a world in memory, and when."""

import json
import weakref
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.training import stream
from slotmesh.training.loop import run_train
from slotmesh.training.runs import load_checkpoint
from slotmesh.training.stream import Cached, KeptSets, cached
from slotmesh.training.tasks import experiment
from slotmesh.worlds import MultiDSprites, RandomObjects

from ._jobs import WORLD_TASKS, assert_same, change, count_sets, metrics, state, tiny

CPU = torch.device("cpu")


def test_a_world_kept_in_memory_gives_the_same_samples() -> None:
    world = RandomObjects(seed=0, n_background=3, dim=4)
    kept = Cached(world, 150, torch.device("cpu"))
    for index in ([0], [149, 3, 3, 70], range(60, 68), torch.tensor([64, 63])):
        a: Any = kept.sample(index)
        b = world.sample(index)
        assert torch.equal(a.index, b.index)
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)


def test_only_what_has_an_end_and_fits_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world, cpu = RandomObjects(seed=0), torch.device("cpu")
    assert cached(world, None, cpu) is world
    assert isinstance(cached(world, 3, cpu), Cached)
    monkeypatch.setattr(stream, "_LIMIT", 1000)
    assert cached(world, 3, cpu) is world


def test_half_of_the_free_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    free, held = 1 << 33, [1 << 34]
    # What torch holds for later counts as used, unless it is given back.
    monkeypatch.setattr(torch.cuda, "empty_cache", held.clear)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free - sum(held), 1 << 35))
    assert stream._limit(torch.device("cuda")) == free // 2
    assert stream._limit(torch.device("cpu")) == 4 << 30


def test_what_does_not_fit_is_said_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    world, cpu = MultiDSprites(seed=0, size=16), torch.device("cpu")
    each = 3 * 16 * 16 + 8
    monkeypatch.setattr(stream, "_LIMIT", 10 * each + 1)
    for n, before, said in (
        (11, None, "--data.val-size 10 would fit.\n"),
        (11, True, "were kept before: pixels may now differ"),
        (10, False, "renders its val samples at every step, as it did before"),
        (10, None, ""),
        (10, True, ""),
    ):
        screen = StringIO()
        kind: dict[str, Any] = {"split": "val", "reads": {"image"}, "before": before}
        made = cached(world, n, cpu, Console(file=screen, width=300), **kind)
        assert isinstance(made, Cached) == (said == "")
        assert said in screen.getvalue()
        # One line, or none.
        assert screen.getvalue().count("\n") == (said != "")
    monkeypatch.setattr(stream, "_LIMIT", 10 * each - 1)
    assert cached(world, 10, cpu, split="val", reads={"image"}) is world


@pytest.mark.parametrize("task", WORLD_TASKS)
def test_a_task_reads_what_it_says_and_nothing_else(task: str) -> None:
    """Empty fields change no number; a field that is said to be read is."""
    made = experiment(tiny(task, "SA", Path("run"), data__train_size=6))
    model = made.fresh_model()

    def numbers(split: Any, sample: Any) -> list[torch.Tensor]:
        noise = made.noise(split, 0, total=4)
        if split == "train":
            return [*made.losses(model, sample, noise).values()]
        metrics = made.metrics()
        rows = made.judge(model, sample, noise, metrics)
        found = [metric.compute() for metric in metrics.values()]
        flat = [v for x in found for v in (x.values() if isinstance(x, dict) else [x])]
        return [*rows.values(), *map(torch.as_tensor, flat)]

    for split in ("train", "val"):
        reads = made.reads(split)  # pyright: ignore
        full = made.source(split, CPU)[0].sample([0, 3, 1, 2])  # pyright: ignore
        thin = numbers(split, stream._only(full, reads))
        for a, b in zip(thin, numbers(split, full), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        for name in reads or ():
            less = stream._only(full, {*reads} - {name})  # pyright: ignore
            with pytest.raises((ValueError, RuntimeError, IndexError, KeyError)):
                numbers(split, less)


def test_fields_that_nobody_reads_are_not_kept() -> None:
    world = MultiDSprites(seed=0, size=16)
    found: Any = Cached(world, 5, CPU, reads={"image"}).sample([4, 0])
    assert found.image.shape == (2, 3, 16, 16)
    assert found.index.tolist() == [4, 0]
    assert found.mask.shape == found.present.shape == (2, 0)
    assert found.objects == {}
    assert len(found[:1]) == 1


def test_a_resumed_run_sees_the_same_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was rendered stays rendered, although it would fit now."""
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=5)
    screen = StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_LIMIT", 1)
        run_train(settings, Console(file=screen, width=300))
    assert screen.getvalue().count("would fit.") == 2
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert load_checkpoint(last)["in_memory"] == {"train": False, "val": False}
    kept = json.loads((tmp_path / "run" / "settings.json").read_text())
    (tmp_path / "run" / "settings.json").write_text(json.dumps(kept | {"steps": 8}))
    run_train(replace(settings, steps=8), Console(file=screen, width=300))
    assert screen.getvalue().count("samples at every step, as it did before.") == 2
    assert load_checkpoint(last)["in_memory"] == {"train": False, "val": False}
    # A run of its own decides for itself.
    run_train(replace(settings, out=tmp_path / "new"), Console(file=screen, width=300))
    new = load_checkpoint(tmp_path / "new" / "checkpoints" / "last.ckpt")
    assert new["in_memory"] == {"train": True, "val": True}


def test_the_next_run_takes_the_sets_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = count_sets(monkeypatch)
    kept, quiet = KeptSets(), Console(quiet=True)
    run_train(tiny("random-objects", "SA", tmp_path / "first"), quiet, kept=kept)
    assert made == [18, 6]
    # Another model and another seed of the run, on the same samples.
    second = tiny("random-objects", "SA-SH", tmp_path / "second", seed=3)
    run_train(second, quiet, kept=kept)
    assert made == [18, 6]
    run_train(replace(second, out=tmp_path / "alone"), quiet)
    assert made == [18, 6, 18, 6]
    assert_same(state(tmp_path / "second"), state(tmp_path / "alone"))
    assert metrics(tmp_path / "second") == metrics(tmp_path / "alone")


@pytest.mark.parametrize("name", ["sigma", "seed", "train_size"])
def test_other_samples_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kept, quiet = KeptSets(), Console(quiet=True)
    first = tiny("random-objects", "SA", tmp_path / "first")
    run_train(first, quiet, kept=kept)
    before = [weakref.ref(one) for _, one in kept._sets.values()]
    held: list[bool] = []
    made = count_sets(monkeypatch, lambda: held.append(before[0]() is not None))
    value = 17 if name == "train_size" else 2
    second = change(first, out=tmp_path / "second", **{f"data__{name}": value})
    run_train(second, quiet, kept=kept)
    assert made == [17 if name == "train_size" else 18, 6]
    # The old set is gone before the new one is made, and both are gone in the end.
    assert held == [False, False]
    assert [one() for one in before] == [None, None]
    run_train(replace(second, out=tmp_path / "alone"), quiet)
    assert_same(state(tmp_path / "second"), state(tmp_path / "alone"))


def test_a_run_that_rendered_its_samples_does_not_take_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=5)
    quiet = Console(quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_LIMIT", 1)
        run_train(settings, quiet)
    kept = KeptSets()
    run_train(replace(settings, out=tmp_path / "other"), quiet, kept=kept)
    path = tmp_path / "run" / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 8}))
    run_train(replace(settings, steps=8), quiet, kept=kept)
    last = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert last["in_memory"] == {"train": False, "val": False}
