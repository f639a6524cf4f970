"""Where samples come from: worlds, and real datasets."""

import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.data import Export, run_export
from slotmesh.training.settings import ImageData
from slotmesh.training.tasks import experiment
from slotmesh.training.tasks.sources import open_source, world_seed
from slotmesh.worlds import make_world

from ._jobs import WORLD_TASKS, flags, metrics, run_job, state, tiny, two_processes

CPU = torch.device("cpu")
SPLITS = ("train", "val", "test")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the splits of the Multi-dSprites world as files: 18, 6 and 8 samples."""
    folder = tmp_path_factory.mktemp("real")
    for split, n in zip(SPLITS, (18, 6, 8), strict=True):
        seed = world_seed(0, split)
        run_export(
            Export("multi-dsprites", n, folder / f"{split}.h5", seed=seed, size=32, device="cpu"),
            Console(file=StringIO()),
        )
    return folder


def opened(split: Any, **changes: Any) -> Any:
    data = replace(ImageData(train_size=18, val_size=6, test_size=8, size=32), **changes)
    return open_source(data, split, CPU, world="multi-dsprites", reader="multi-dsprites")


def test_splits_share_no_sample() -> None:
    seeds = [world_seed(seed, split) for seed in range(50) for split in SPLITS]
    assert len({*seeds}) == len(seeds)


@pytest.mark.parametrize("task", WORLD_TASKS)
def test_sizes_of_the_splits(task: str) -> None:
    made = experiment(tiny(task, "SA", Path("run"), data__train_size=None))
    assert [made.source(split, CPU)[1] for split in SPLITS] == [None, 6, 8]
    one, _ = made.source("val", CPU)
    other, _ = made.source("test", CPU)
    a, b = (source.sample([0]) for source in (one, other))
    picture = "inputs" if task == "random-objects" else "image"
    assert not torch.equal(getattr(a, picture), getattr(b, picture))


def test_a_file_gives_what_the_world_gives(root: Path) -> None:
    for split, n in zip(SPLITS, (18, 6, 8), strict=True):
        source, length = opened(split, root=root)
        assert length == n
        world = make_world("multi-dsprites", seed=world_seed(0, split), device=CPU, size=32)
        a, b = source.sample([3, 1]), world.sample([3, 1])
        assert torch.equal(a.image, b.image)
        assert torch.equal(a.mask, b.mask)


def test_the_easy_world() -> None:
    source, n = opened("val", easy=True)
    assert (source.easy, source.max_objects, n) == (True, 3, 6)
    world: Any = make_world("multi-dsprites", seed=world_seed(0, "val"), size=32, easy=True)
    assert torch.equal(source.sample([5]).image, world.sample([5]).image)
    assert not torch.equal(source.sample([5]).image, opened("val")[0].sample([5]).image)


def test_no_more_samples_than_the_dataset_has(root: Path) -> None:
    assert opened("train", root=root, train_size=None)[1] == 18
    assert opened("val", root=root, val_size=100)[1] == 6
    assert opened("test", root=root, test_size=3)[1] == 3


def test_what_does_not_fit(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has images of 32x32 pixels.*--data.size 32"):
        opened("train", root=root, size=64)
    with pytest.raises(ValueError, match=r"--data.root is .*gone, which .* Correct the path"):
        opened("train", root=root / "gone")
    (tmp_path / "train.h5").symlink_to(root / "train.h5")
    assert opened("train", root=tmp_path)[1] == 18
    with pytest.raises(ValueError, match=r"has train.h5, but no val.h5"):
        opened("val", root=tmp_path)
    with pytest.raises(ValueError, match=r"--data.size.* 16 to 1024"):
        opened("train", size=15)


@pytest.mark.slow
def test_trained_and_evaluated_from_files(root: Path, tmp_path: Path) -> None:
    """Whoever reads the samples, and from where: the numbers are those of the world."""
    # Said, as the sizes of a quick run on a dataset are not those on the easy world.
    changes = {"steps": 5, "val_every": 4, "model__slot_dim": 12, "model__mlp_dim": 12}
    words = {
        "world": flags(tiny("multi-dsprites", "SA", tmp_path / "world", **changes)),
        "alone": [
            *flags(tiny("multi-dsprites", "SA", tmp_path / "alone", data__root=root, **changes)),
            *("--data.workers", "0"),
        ],
        "helped": [
            *flags(tiny("multi-dsprites", "SA", tmp_path / "helped", data__root=root, **changes)),
            *("--data.workers", "1"),
        ],
    }
    for name, line in words.items():
        code, said = run_job(tmp_path / "log", "main", words=line)
        assert code == 0, said
        assert metrics(tmp_path / name) == metrics(tmp_path / "world")
    found = {}
    for name, more in {"helped": [], "world": ["--root", str(root)]}.items():
        line = ["evaluate", str(tmp_path / name), *more]
        code, said = run_job(tmp_path / "log", "main", words=line)
        assert code == 0, said
        found[name] = (tmp_path / name / "evaluation.csv").read_text()
    assert found["helped"] == found["world"]


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_to_readers_too(root: Path, tmp_path: Path, signum: str, code: int) -> None:
    """A terminal and SLURM signal all processes; those that read go on until the run is saved."""
    more = {"data__root": root, "data__workers": 1, "hardware__devices": 2, "val_every": 11}
    words = flags(tiny("multi-dsprites", "SA", tmp_path / "run", **more))
    stop = f"{signal.Signals[signum]:d} 1 0 all"
    ends = two_processes(tmp_path / "log", "main", words=words, stop=stop)
    assert [ended for ended, _ in ends] == [code, code], ends
    assert "Stopped at step 10 and saved" in ends[0][1]
    assert not any("Traceback" in said for _, said in ends)
    assert state(tmp_path / "run")["global_step"] == 10


def test_a_dataset_smaller_than_a_batch(root: Path, tmp_path: Path) -> None:
    start = tiny("multi-dsprites", "SA", tmp_path / "run", data__root=root, data__batch_size=20)
    line = flags(start)[: flags(start).index("--data.train-size")]
    rest = flags(start)[flags(start).index("--data.train-size") + 2 :]
    code, said = run_job(tmp_path / "log", "main", words=[*line, "--data.train-size", "20", *rest])
    assert code == 1
    assert "slotmesh: --data.batch-size is 20, but there are only 18 training samples." in said
