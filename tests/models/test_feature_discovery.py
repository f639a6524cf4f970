"""Slots on frozen features: shapes, learning, saving without the backbone, segmenting."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slotmesh.metrics import slot_usage
from slotmesh.models import FeatureDiscovery
from slotmesh.models.feature_colours import feature_colours
from slotmesh.nn import EMD, BackboneError, FrozenFeatures, Mesh, Sinkhorn, Softmax

from ..nn._vits import DIM, SIDE, vit_folder

SMALL: dict[str, Any] = {"slot_dim": 12, "mlp_dim": 16, "hidden": (16, 16)}


def patches(dim: int = 6) -> FrozenFeatures:
    """Features of 4 x 4 patches that need no transformers."""
    torch.manual_seed(3)
    return FrozenFeatures(nn.Conv2d(3, dim, 8, stride=8), resolution=(32, 32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vit_folder(tmp_path_factory.mktemp("vit") / "vit")


@pytest.mark.parametrize("transport", [Softmax, Sinkhorn, Mesh, EMD])
def test_every_transport(transport: Any) -> None:
    model = FeatureDiscovery(patches(), 3, transport(), **SMALL)
    image = torch.rand(2, 3, 32, 32)
    out = model(image, trace=True, seed=1)
    assert out.masks.shape == (2, 3, 32, 32)
    assert out.patch_masks.shape == (2, 3, 4, 4)
    assert out.reconstruction.shape == out.features.shape == (2, 16, 6)
    assert out.attention.shape == (2, 3, 16)
    torch.testing.assert_close(out.masks.sum(1), torch.ones(2, 32, 32))
    assert torch.equal(out.features, model.encoder(image))
    (out.reconstruction - out.features).square().mean().backward()
    lacking = [name for name, p in model.named_parameters() if p.grad is None]
    assert not lacking
    # The slots' diagnostics take it as it is.
    usage = slot_usage(out.masks.detach(), slots=out.slots.detach(), trace=out.trace.detach())
    assert usage.attention_entropy is not None
    assert usage.attention_entropy.shape == (2, 3)


def test_known_features_are_not_computed_again() -> None:
    model = FeatureDiscovery(patches(), 3, **SMALL).eval()
    image = torch.rand(2, 3, 32, 32)
    features = model.encoder(image)
    whole, known = model(image), model(features=features)
    assert torch.equal(whole.masks, known.masks)
    few = model(features=features, enlarge=False)
    assert torch.equal(few.masks, whole.patch_masks)
    with pytest.raises(ValueError, match="neither an image nor features"):
        model()
    with pytest.raises(ValueError, match=r"expected \(batch, 16, 6\)"):
        model(features=features[:, :15])


def test_it_learns() -> None:
    """A good part of the loss of the best constant is gone after a few steps."""
    torch.manual_seed(0)
    model = FeatureDiscovery(patches(), 2, Softmax(), **SMALL)
    # Two halves of one colour each.
    image = torch.rand(16, 3, 1, 2).repeat_interleave(32, 2).repeat_interleave(16, 3)
    features = model.encoder(image)
    constant = (features - features.mean(0)).square().mean()
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for step in range(60):
        out = model(features=features, seed=step, enlarge=False)
        loss = (out.reconstruction - features).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert min(losses) < 0.75 * constant.item()


def test_saving_leaves_the_backbone_out(folder: Path, tmp_path: Path) -> None:
    model = FeatureDiscovery(folder, 4, Mesh(n_steps=2), **SMALL).eval()
    image = torch.rand(1, 3, SIDE, SIDE)
    model.save_pretrained(tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    from safetensors.torch import load_file

    names = [*load_file(tmp_path / "out" / "model.safetensors")]
    assert [name for name in names if name.startswith("encoder")] == ["encoder.fingerprint"]
    about = json.loads((tmp_path / "out" / "config.json").read_text())["backbone"]
    assert (about["name"], about["sha256"]) == (str(folder), model.encoder.hash)
    again = FeatureDiscovery.from_pretrained(tmp_path / "out")
    assert torch.equal(again(image).masks, model(image).masks)
    assert not again.encoder.backbone.training


def test_another_backbone_is_refused(folder: Path, tmp_path: Path) -> None:
    mine = vit_folder(tmp_path / "vit")
    FeatureDiscovery(mine, 4, **SMALL).save_pretrained(tmp_path / "out")
    vit_folder(tmp_path / "vit", seed=1)
    with pytest.raises(BackboneError, match="other weights"):
        FeatureDiscovery.from_pretrained(tmp_path / "out")
    # The same weights from elsewhere are the same backbone.
    same = FeatureDiscovery.from_pretrained(tmp_path / "out", backbone=FrozenFeatures(folder))
    assert same.encoder.out_dim == DIM
    with pytest.raises(BackboneError, match="other weights"):
        FeatureDiscovery.from_pretrained(
            tmp_path / "out", backbone=FrozenFeatures(folder, mean=(0, 0, 0))
        )
    for file in mine.iterdir():
        file.unlink()
    mine.rmdir()
    with pytest.raises(BackboneError, match="does not exist, expected the folder of a model"):
        FeatureDiscovery.from_pretrained(tmp_path / "out")


def test_a_module_of_ones_own_is_passed_again(tmp_path: Path) -> None:
    model = FeatureDiscovery(patches(), 3, **SMALL).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(BackboneError, match=r"a module of your own, Conv2d.*Pass it"):
        FeatureDiscovery.from_pretrained(tmp_path)
    again = FeatureDiscovery.from_pretrained(tmp_path, backbone=patches())
    image = torch.rand(1, 3, 32, 32)
    assert torch.equal(again(image).slots, model(image).slots)


def test_segment() -> None:
    model = FeatureDiscovery(patches(), 3, **SMALL)
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    found = model.segment(image)
    assert found.masks.shape == (3, 50, 70)
    assert found.attention.shape == (3, 4, 4)
    assert found.reconstruction.shape == (3, 4, 4)
    assert found.reconstruction.dtype == torch.uint8
    assert torch.equal(found.labels, model.segment(image).labels)
    assert model.segment(image, n_slots=5, square="crop").masks.shape == (5, 50, 50)
    assert found._repr_png_().startswith(b"\x89PNG")


def test_features_as_colours() -> None:
    """Patches that are alike have one colour, and others another; a shift changes nothing."""
    two = torch.eye(5)[torch.tensor([0, 0, 1, 1, 2, 0])]
    shown, same = feature_colours(two + 7, two + 7, (2, 3))
    flat = shown.flatten(1).T.tolist()
    assert flat[0] == flat[1] == flat[5]
    assert flat[2] == flat[3]
    assert len({tuple(colour) for colour in flat}) == 3
    assert torch.equal(shown, same)
    assert feature_colours(two[:, :2], two[:, :2], (2, 3))[0].shape == (3, 2, 3)


def test_a_copy_does_not_share_the_backbone() -> None:
    model = FeatureDiscovery(patches(), 3, Softmax(), **SMALL).eval()
    image = torch.rand(1, 3, 32, 32)
    twin, expected = copy.deepcopy(model), model(image).masks
    with torch.no_grad():
        model.encoder.backbone.weight.zero_()
    assert torch.equal(twin(image).masks, expected)
    assert twin.double()(image.double()).masks.dtype == torch.float64


def test_a_backbone_with_another_grid_is_refused(tmp_path: Path) -> None:
    convolution = nn.Conv2d(3, 6, 8, stride=8)
    FeatureDiscovery(FrozenFeatures(convolution, resolution=(16, 32)), 3, **SMALL).save_pretrained(
        tmp_path
    )
    turned = FrozenFeatures(convolution, resolution=(32, 16))
    with pytest.raises(BackboneError, match=r"4 x 2 patches, expected 2 x 4 .*\(16, 32\)"):
        FeatureDiscovery.from_pretrained(tmp_path, backbone=turned)
    FeatureDiscovery.from_pretrained(
        tmp_path, backbone=FrozenFeatures(convolution, resolution=(16, 32))
    )
    # Files that do not say are loaded.
    config = json.loads((tmp_path / "config.json").read_text())
    del config["backbone"]["out_grid"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    FeatureDiscovery.from_pretrained(tmp_path, backbone=turned)
