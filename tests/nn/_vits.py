"""Tiny vision transformers with random weights, as folders; and what timm would be."""

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SIDE, PATCH, DIM = 32, 8, 16


def vit_folder(folder: Path, kind: str = "vit", seed: int = 0, **about: Any) -> Path:
    """A ViT or DINOv2 of 4 x 4 patches, as ``save_pretrained`` writes it."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": DIM, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"image_size": SIDE, "patch_size": PATCH}
    logging = transformers.utils.logging
    logging.disable_progress_bar()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "vit":
            config = transformers.ViTConfig(intermediate_size=DIM, **sizes)
            model = transformers.ViTModel(config, add_pooling_layer=False)
        else:
            config = transformers.Dinov2Config(mlp_ratio=1, **sizes)
            model = transformers.Dinov2Model(config)
    model.save_pretrained(folder)
    logging.enable_progress_bar()
    if about:
        (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


class FakeViT(nn.Module):
    """As far as timm's vision transformers are used: a class token, then the patches."""

    num_prefix_tokens = 1

    def __init__(self, dim: int, patch: int, num_classes: int = 10) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, stride=patch)
        self.patch_embed.patch_size = (patch, patch)  # pyright: ignore
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x).flatten(2).mT
        return torch.cat((self.cls_token.expand(len(x), -1, -1), tokens), 1)


class FakeCNN(nn.Module):
    """A network of timm without patches: a grid of features."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, stride=4)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stem(x)


def fake_timm() -> ModuleType:
    """The functions of timm that slotmesh calls, with their arguments."""

    def create_model(
        model_name: str, pretrained: bool = False, num_classes: int = 10, **options: Any
    ) -> nn.Module:
        assert not pretrained, "timm must not fetch weights by itself"
        if model_name == "tiny_cnn":
            if options:
                raise TypeError(f"unexpected {[*options]}")
            return FakeCNN(num_classes)
        if model_name != "tiny_vit":
            raise RuntimeError(f"Unknown model ({model_name})")
        assert options.pop("dynamic_img_size")
        return FakeViT(num_classes=num_classes, **options)

    def get_pretrained_cfg(model_name: str) -> Any:
        if model_name == "tiny_vit":
            return SimpleNamespace(hf_hub_id="timm/tiny_vit.random")
        if model_name == "tiny_vit_auto":
            return SimpleNamespace(hf_hub_id="timm/")
        if model_name == "no_weights":
            return SimpleNamespace(hf_hub_id=None)
        raise RuntimeError(f"Unknown model ({model_name})")

    module = ModuleType("timm")
    module.__spec__ = SimpleNamespace()  # pyright: ignore
    module.create_model = create_model  # pyright: ignore
    module.get_pretrained_cfg = get_pretrained_cfg  # pyright: ignore
    return module


def timm_folder(folder: Path, name: str = "tiny_vit") -> Path:
    """A model as timm pushes it to the hub: config.json, and weights with their classifier."""
    torch.manual_seed(1)
    model = FakeViT(DIM, PATCH) if name == "tiny_vit" else FakeCNN()
    config = {
        "architecture": name,
        "model_args": {"dim": DIM, "patch": PATCH} if name == "tiny_vit" else {},
        "pretrained_cfg": {"input_size": [3, SIDE, SIDE], "mean": [0.5] * 3, "std": [0.25] * 3},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder
