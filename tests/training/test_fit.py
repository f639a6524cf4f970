"""``slotmesh.fit``: a model from whatever holds images."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import slotmesh
from slotmesh.models import ObjectDiscovery
from slotmesh.training.runs import open_run

from ..readers._folders import fill, pixels

QUICK: dict[str, Any] = {"n_slots": 3, "steps": 2, "size": 8, "device": "cpu", "progress": False}
PIXELS = np.stack([pixels(i, 12, 12) for i in range(8)])
TENSOR = torch.from_numpy(PIXELS).movedim(-1, 1)


class Named(Dataset[Any]):
    """Items with names; not iterable."""

    def __len__(self) -> int:
        return len(TENSOR)

    def __getitem__(self, i: int) -> Any:
        return {"image": TENSOR[i] / 255, "label": i}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter((Image.fromarray(x), 0) for x in PIXELS)


@pytest.fixture(scope="module")
def expected() -> ObjectDiscovery:
    return slotmesh.fit(TENSOR, **QUICK)


@pytest.mark.parametrize(
    "images",
    [PIXELS, TENSOR / 255, TensorDataset(TENSOR), Named(), Stream(), list(PIXELS)],
    ids=["array", "floats", "tensors", "dicts", "stream", "list"],
)
def test_whatever_holds_them(images: Any, expected: ObjectDiscovery) -> None:
    model = slotmesh.fit(images, **QUICK)
    for key, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


def test_the_model(expected: ObjectDiscovery) -> None:
    assert not expected.training
    assert expected.encoder.resolution == (8, 8)
    assert expected.segment(TENSOR[0]).masks.shape == (3, 12, 12)


def test_a_folder_and_a_list_of_paths(tmp_path: Path) -> None:
    root = fill(tmp_path / "x", 8)
    assert isinstance(slotmesh.fit(root, **QUICK), ObjectDiscovery)
    paths = sorted(root.glob("*.png"))
    assert isinstance(slotmesh.fit(paths, **QUICK), ObjectDiscovery)
    assert isinstance(slotmesh.fit([str(path) for path in paths], **QUICK), ObjectDiscovery)


def test_a_run_that_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = slotmesh.fit(TENSOR, **QUICK | {"progress": True}, out=tmp_path / "run", seed=1)
    said = capsys.readouterr().out.replace("\n", "")
    assert f"Next: slotmesh segment {tmp_path / 'run'} {tmp_path / 'run-images'}" in said
    run = open_run(tmp_path / "run")
    assert (run.settings.seed, run.settings.model.n_slots) == (1, 3)
    again = run.load_model().state_dict()
    assert all(torch.equal(again[k], v) for k, v in model.state_dict().items())
    assert run.experiment.source("test", torch.device("cpu"))[1] > 0
    with pytest.raises(ValueError, match=r"run-images, where the images .* is not empty"):
        slotmesh.fit(TENSOR, **QUICK, out=tmp_path / "run")


def test_progress_does_not_speak_of_a_temporary_folder(capsys: pytest.CaptureFixture[str]) -> None:
    slotmesh.fit(TENSOR, **QUICK | {"progress": True})
    said = capsys.readouterr().out
    assert "step 2/2" in said
    assert "Next: slotmesh" not in said
    assert "tmp" not in said


BAD = [
    (7, "images is a int, expected a folder, a list of paths, a tensor"),
    (TENSOR[0], r"images have shape \(3, 12, 12\), expected \(N, 3, H, W\)"),
    (PIXELS[0], r"expected \(N, H, W, 3\)"),
    (TENSOR[:2], "got 2 images, expected at least 3"),
    ({"a": TENSOR[0]}, "images is a dict, expected a list of them: pass its values"),
    ([], "got 0 images, expected at least 3"),
    (TENSOR / 127.5 - 1, "values from -.* expected uint8, or floats from 0 to 1"),
    ([{"picture": 1}] * 3, "an item has picture, expected 'image'"),
    (["no.png"] * 3, r"no.png: the file is missing"),
    ("nothing", "fit: images: nothing does not exist, expected a folder"),
]


@pytest.mark.parametrize(("images", "message"), BAD)
def test_what_holds_none(images: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        slotmesh.fit(images, **QUICK)


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="fit: variant is 'SB', expected one of"):
        slotmesh.fit(TENSOR, **QUICK, variant="SB")
    with pytest.raises(ValueError, match=r"backbone is a Conv2d, expected the folder or the name"):
        slotmesh.fit(TENSOR, **QUICK, backbone=nn.Conv2d(3, 8, 8))  # pyright: ignore
    with pytest.raises(ValueError, match="fit: steps is 0"):
        slotmesh.fit(TENSOR, **QUICK | {"steps": 0})
    with pytest.raises(ValueError, match="fit: steps is '10', expected a whole number"):
        slotmesh.fit(TENSOR, **QUICK | {"steps": "10"})
    with pytest.raises(ValueError, match="fit: batch_size is 0, expected at least 1"):
        slotmesh.fit(TENSOR, **QUICK | {"batch_size": 0})
    with pytest.raises(ValueError, match="fit: batch_size is 99, but images has only 6 samples"):
        slotmesh.fit(TENSOR, **QUICK | {"batch_size": 99})
    with pytest.raises(ValueError, match="fit: start is 'fast', expected quick or paper"):
        slotmesh.fit(TENSOR, **QUICK, start="fast")  # pyright: ignore
    with pytest.raises(ValueError, match="square is '', expected 'crop' or 'squeeze'"):
        slotmesh.fit(TENSOR, **QUICK, square="")  # pyright: ignore
    with pytest.raises(ValueError, match="expected cpu, cuda or auto"):
        slotmesh.fit(TENSOR, **QUICK | {"device": "tpu"})


def test_a_folder_with_another_run(tmp_path: Path) -> None:
    root = fill(tmp_path / "x", 8)
    slotmesh.fit(root, **QUICK, out=tmp_path / "run")
    # Without the flag, which fit does not have.
    with pytest.raises(ValueError, match=r"but got 4\. Choose another folder with out\.$"):
        slotmesh.fit(root, **QUICK | {"n_slots": 4}, out=tmp_path / "run")
