"""Frozen features: which models they take, that they stay frozen, and what is refused."""

import copy
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slotmesh.nn import BackboneError, FrozenFeatures

from ._vits import DIM, PATCH, SIDE, FakeViT, fake_timm, timm_folder, vit_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vits")
    about = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "crop_size": 16}
    return {
        "vit": vit_folder(root / "vit"),
        "dinov2": vit_folder(root / "dinov2", "dinov2"),
        "cropped": vit_folder(root / "cropped", **about),
        "other": vit_folder(root / "other", seed=1),
    }


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", fake_timm())


@pytest.mark.parametrize("kind", ["vit", "dinov2"])
def test_a_model_of_transformers(folders: dict[str, Path], kind: str) -> None:
    made = FrozenFeatures(folders[kind])
    assert (made.out_grid, made.out_dim, made.resolution) == ((4, 4), DIM, (SIDE, SIDE))
    image = torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8)
    found = made(image)
    assert found.shape == (2, 16, DIM)
    assert not found.requires_grad
    # The class token is left out, and ImageNet's colours are subtracted.
    mean, std = made.normalisation
    assert mean == (0.485, 0.456, 0.406)
    pixels = (image / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    tokens = made.backbone(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(found, tokens[:, 1:])
    torch.testing.assert_close(made(image / 255), found)


def test_preprocessing_comes_from_the_folder(folders: dict[str, Path]) -> None:
    made = FrozenFeatures(str(folders["cropped"]))
    assert made.resolution == (16, 16)
    assert made.out_grid == (2, 2)
    assert made.normalisation == ((0.5,) * 3, (0.25,) * 3)
    larger = FrozenFeatures(folders["cropped"], resolution=(48, 32), mean=(0, 0, 0), std=(1, 1, 1))
    assert larger.out_grid == (6, 4)
    assert larger(torch.rand(1, 3, 48, 32)).shape == (1, 24, DIM)
    assert larger.normalisation[0] == (0, 0, 0)


@pytest.mark.parametrize(
    ("about", "size"),
    [
        ({"size": {"height": 24, "width": 24}}, (24, 24)),
        ({"size": {"shortest_edge": 40}, "crop_size": {"height": 16, "width": 24}}, (16, 24)),
        ({"size": {"shortest_edge": 40}, "crop_size": 16, "do_center_crop": False}, (40, 40)),
        ({"size": 16, "do_resize": False}, (32, 32)),
    ],
)
def test_the_size_after_resizing_and_cropping(
    tmp_path: Path, folders: dict[str, Path], about: dict[str, Any], size: tuple[int, int]
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folders["vit"] / name).read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(about))
    assert FrozenFeatures(tmp_path).resolution == size


def test_it_stays_frozen(folders: dict[str, Path]) -> None:
    made = FrozenFeatures(folders["vit"])
    outer = nn.ModuleDict({"features": made, "layer": nn.Linear(DIM, 1)}).train()
    assert not made.backbone.training
    assert not any(p.requires_grad for p in made.backbone.parameters())
    assert not list(made.parameters())
    assert [*outer.state_dict()] == ["features.fingerprint", "layer.weight", "layer.bias"]
    image = torch.rand(1, 3, SIDE, SIDE)
    before = made(image)
    outer["layer"](made(image)).sum().backward()
    assert torch.equal(made(image), before)
    # It moves and converts with what holds it, and is copied with it.
    half = copy.deepcopy(outer).to(torch.float64)
    assert next(half["features"].backbone.parameters()).dtype == torch.float64
    assert next(made.backbone.parameters()).dtype == torch.float32
    torch.testing.assert_close(half["features"](image).float(), before, rtol=1e-3, atol=1e-4)


def test_the_fingerprint_is_that_of_the_weights(folders: dict[str, Path], tmp_path: Path) -> None:
    one, same, other = (FrozenFeatures(folders[k]) for k in ("vit", "vit", "other"))
    assert one.hash == same.hash
    assert one.hash != other.hash
    assert one.hash != FrozenFeatures(folders["vit"], mean=(0, 0, 0)).hash
    # Saved with the whole, and compared when that is loaded.
    same.load_state_dict(one.state_dict())
    with pytest.raises(BackboneError, match=r"other weights .* hash is \w{12}, expected \w{12}"):
        other.load_state_dict(one.state_dict())
    with pytest.raises(RuntimeError, match="fingerprint"):
        one.load_state_dict({})
    assert FrozenFeatures.from_description(one.describe()).hash == one.hash
    with pytest.raises(BackboneError, match="other weights"):
        FrozenFeatures.from_description(other.describe() | {"name": str(folders["vit"])})


def test_any_module() -> None:
    convolution = nn.Conv2d(3, 6, 8, stride=8)
    made = FrozenFeatures(convolution, resolution=(16, 24))
    image = torch.rand(2, 3, 16, 24)
    torch.testing.assert_close(made(image), convolution(image).flatten(2).mT)
    assert made.out_grid == (2, 3)
    assert made.name == "Conv2d"

    class Tokens(FakeViT):
        patch_size = PATCH

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward_features(x)

    found = FrozenFeatures(Tokens(DIM, PATCH), resolution=16)
    assert found.out_grid == (2, 2)
    assert found(torch.rand(1, 3, 16, 16)).shape == (1, 4, DIM)
    with pytest.raises(BackboneError, match="a module of your own, Conv2d"):
        FrozenFeatures.from_description(made.describe())


@pytest.mark.parametrize("of", [int, float])
def test_whole_numbers_normalise_like_others(of: type) -> None:
    """They once made pixels whole numbers too."""
    features = FrozenFeatures(nn.Identity(), resolution=(8, 8), mean=[of(0)] * 3, std=[of(2)] * 3)
    image = torch.rand(1, 3, 8, 8)
    torch.testing.assert_close(features(image), image.flatten(2).mT / 2)


def test_a_resolution_of_numpy_is_a_number() -> None:
    eight: Any = np.int64(8)
    made = FrozenFeatures(nn.Conv2d(3, 4, 4, stride=4), resolution=eight)
    assert made.resolution == (8, 8)
    assert all(type(size) is int for size in made.resolution)


@pytest.mark.usefixtures("timm")
def test_a_model_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = timm_folder(tmp_path / "vit")
    made = FrozenFeatures(folder)
    assert (made.out_grid, made.out_dim, made.resolution) == ((4, 4), DIM, (SIDE, SIDE))
    assert made.normalisation == ((0.5,) * 3, (0.25,) * 3)
    image = torch.rand(1, 3, SIDE, SIDE)
    tokens = made.backbone.forward_features((image - 0.5) / 0.25)  # pyright: ignore
    torch.testing.assert_close(made(image), tokens[:, 1:])
    assert isinstance(made.backbone.head, nn.Identity)
    # A network without patches has a grid.
    grid = FrozenFeatures(timm_folder(tmp_path / "cnn", "tiny_cnn"))
    assert (grid.out_grid, grid.out_dim) == ((8, 8), 6)
    # By name: what timm says is on the hub, and nothing but safetensors.
    asked: list[Any] = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, [p for p in allow_patterns if p.endswith((".bin", ".pt", "*"))]))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    names = ("tiny_vit", "tiny_vit_auto", "timm/tiny_vit.random", "someone/a-vit")
    for name in names:
        assert FrozenFeatures(name).hash == made.hash
    assert [name for name, _ in asked] == [
        "timm/tiny_vit.random",
        "timm/tiny_vit_auto",
        *names[2:],
    ]
    assert not any(pickles for _, pickles in asked)
    with pytest.raises(BackboneError, match="timm has no weights of this name"):
        FrozenFeatures("no_weights")
    with pytest.raises(BackboneError, match="timm has no weights of this name"):
        FrozenFeatures("vit_no_such")


@pytest.mark.usefixtures("timm")
def test_weights_of_timm_that_do_not_fit(tmp_path: Path) -> None:
    folder = timm_folder(tmp_path / "vit")
    about = json.loads((folder / "config.json").read_text())
    other = about | {"architecture": "tiny_cnn", "model_args": {}}
    (folder / "config.json").write_text(json.dumps(other))
    with pytest.raises(
        BackboneError, match=r"model\.safetensors does not fit timm's tiny_cnn"
    ) as e:
        FrozenFeatures(folder)
    assert "\n" not in str(e.value)
    (folder / "config.json").write_text(json.dumps(about | {"architecture": "gone"}))
    with pytest.raises(BackboneError, match="timm cannot make its architecture 'gone'"):
        FrozenFeatures(folder)


def test_what_is_not_here_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setitem(sys.modules, "timm", None)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text('{"model_type": "vit"}')
    (pickled / "pytorch_model.bin").write_bytes(b"x")
    unknown = timm_folder(tmp_path / "unknown")
    (unknown / "config.json").write_text("{}")
    broken = timm_folder(tmp_path / "broken")
    (broken / "config.json").write_text("{")
    for name, said in (
        (tmp_path / "gone", "does not exist, expected the folder of a model"),
        ("a/b/c", "does not exist, expected the folder of a model"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "empty", "has no config.json"),
        (pickled, r"has pytorch_model.bin, a pickle, which can run code; expected model.safetens"),
        (unknown, "has neither a model_type"),
        (broken, "cannot be read"),
        ("someone/a-vit", r"fetching someone/a-vit from the Hugging Face hub failed \(no route\)"),
        ("vit_small_patch14_dinov2", r"Install it with pip install timm"),
        (timm_folder(tmp_path / "timm"), r"with timm, which is not installed"),
    ):
        with pytest.raises(BackboneError, match=said) as error:
            FrozenFeatures(name)
        assert "\n" not in str(error.value)


def test_models_that_take_no_images(tmp_path: Path, folders: dict[str, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    config = transformers.BertConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        vocab_size=9,
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "text")
    transformers.utils.logging.enable_progress_bar()
    with pytest.raises(BackboneError, match="of type bert, which takes input_ids"):
        FrozenFeatures(tmp_path / "text")
    (tmp_path / "vit").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "vit" / name).write_bytes((folders["vit"] / name).read_bytes())
    about = json.loads((tmp_path / "vit" / "config.json").read_text())
    (tmp_path / "vit" / "config.json").write_text(json.dumps(about | {"num_hidden_layers": 2}))
    with pytest.raises(BackboneError, match="has no weights for"):
        FrozenFeatures(tmp_path / "vit")


def test_bad_input(folders: dict[str, Path]) -> None:
    made = FrozenFeatures(folders["vit"])
    for image, said in (
        (torch.rand(1, 3, 16, 16), r"shape \(1, 3, 16, 16\), expected \(batch, 3, 32, 32\)"),
        (torch.zeros(1, 3, SIDE, SIDE, dtype=torch.int64), "dtype torch.int64"),
        (torch.full((1, 3, SIDE, SIDE), 255.0), "values from 255 to 255"),
    ):
        with pytest.raises(ValueError, match=said):
            made(image)
    with pytest.raises(ValueError, match="32 x 20 pixels cannot be cut into the patches"):
        FrozenFeatures(folders["vit"], resolution=(32, 20))
    with pytest.raises(ValueError, match="Pass the height and width"):
        FrozenFeatures(nn.Conv2d(3, 4, 4))
    with pytest.raises(ValueError, match="no patch grid: it returns shape"):
        FrozenFeatures(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), resolution=8)
    with pytest.raises(ValueError, match="no patch grid: it returns 3 tokens"):
        FrozenFeatures(nn.Flatten(2), resolution=8)
    with pytest.raises(ValueError, match="cannot compute features"):
        FrozenFeatures(nn.Conv2d(4, 4, 4), resolution=8)
    with pytest.raises(ValueError, match="std is"):
        FrozenFeatures(folders["vit"], std=(1, 1, 0))
    with pytest.raises(ValueError, match="backbone is a int"):
        FrozenFeatures(3)  # pyright: ignore


@pytest.mark.parametrize("kind", ["module", "vit", "dinov2", "timm"])
@pytest.mark.usefixtures("timm")
def test_a_copy_has_a_backbone_of_its_own(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    if kind == "module":
        made = FrozenFeatures(nn.Conv2d(3, 6, 8, stride=8), resolution=SIDE)
    elif kind == "timm":
        made = FrozenFeatures(timm_folder(tmp_path / "timm"))
    else:
        made = FrozenFeatures(folders[kind])
    image = torch.rand(1, 3, *made.resolution)
    before = made(image)
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    copies = {
        "deepcopy": copy.deepcopy(made),
        "pickle": pickle.loads(pickle.dumps(made)),
        "torch.save": torch.load(file, weights_only=False),
    }
    with torch.no_grad():
        for value in made.backbone.parameters():
            value.zero_()
    for name, one in copies.items():
        assert torch.equal(one(image), before), name
        assert one.double()(image.double()).dtype == torch.float64, name
    assert not torch.equal(made(image), before)


def test_a_module_that_is_part_of_another_one_stays_in_evaluation_mode() -> None:
    backbone = nn.Sequential(nn.Conv2d(3, 6, 8, stride=8), nn.Dropout(0.5))
    made = FrozenFeatures(backbone, resolution=16)
    image = torch.rand(1, 3, 16, 16)
    before = made(image)
    nn.ModuleDict({"features": made, "also": backbone}).train()
    assert torch.equal(made(image), before)
