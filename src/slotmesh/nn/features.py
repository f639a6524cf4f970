"""Features of a pretrained vision model whose weights stay fixed."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from slotmesh.nn.backbones import Backbone, BackboneError, load_backbone, wrap_module
from slotmesh.nn.convolutional import check_resolution
from slotmesh.ops import checks

# Class and register tokens before those of the patches.
_MOST_PREFIX = 32
_TOLERANCE = 1e-2


class FrozenFeatures(nn.Module):
    """Patch features of a pretrained vision model, for slots that reconstruct them.

    The model is frozen: it stays in evaluation mode and gets no gradients. Its weights are neither
    parameters of this module nor part of its state, so an optimiser does not see them, and a
    checkpoint holds only ``fingerprint``, a hash of the weights that is compared on loading.

    Features are the model's last hidden state, after its final normalisation, without the class
    and register tokens.

    Args:
        backbone: The folder of a transformers or timm model; the name of one, such as
            ``"facebook/dinov2-small"`` on the Hugging Face hub or ``"vit_small_patch14_dinov2"`` in
            timm, which is downloaded unless it is in the hub's cache; or any module that maps
            images ``(batch, 3, H, W)`` to tokens ``(batch, n, dim)`` or to a grid ``(batch, dim,
            rows, columns)``, which is frozen in place. Weights are read as safetensors, never as a
            pickle.
        resolution: Height and width of the images, multiples of the patch size. Default: the size
            that the model was trained with. Required for a module.
        mean: Mean of each colour, subtracted from pixels between 0 and 1. Default: that of the
            model's configuration; 0 for a module.
        std: Standard deviation of each colour, by which the result is divided. Default: that of the
            model's configuration; 1 for a module.

    Attributes:
        out_dim: Size of a feature.
        out_grid: Rows and columns of the patches.
        resolution: Height and width of the images.
        name: Name of the backbone as you passed it; for a module, the name of its class.
        fingerprint: SHA-256 of the weights and the normalisation, uint8 ``(32,)``.

    Raises:
        BackboneError: If the model does not exist, has no patch grid, or needs a package that is
            not installed. A subclass of ValueError.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from slotmesh.nn import FrozenFeatures
        >>> encoder = FrozenFeatures(nn.Conv2d(3, 16, 8, stride=8), resolution=(64, 64))
        >>> encoder(torch.rand(2, 3, 64, 64)).shape, encoder.out_grid
        (torch.Size([2, 64, 16]), (8, 8))
    """

    def __init__(
        self,
        backbone: str | Path | nn.Module,
        *,
        resolution: int | Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(backbone, nn.Module):
            made = wrap_module(backbone)
            self.name = type(backbone).__name__
        elif isinstance(backbone, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            made = load_backbone(backbone)
            self.name = str(backbone)
        else:
            raise ValueError(
                f"FrozenFeatures: backbone is a {type(backbone).__name__}, expected a folder, the "
                "name of a model, or a module."
            )
        self.is_named = not isinstance(backbone, nn.Module)
        """Whether the backbone can be loaded again by its name."""
        made.model.eval().requires_grad_(False)
        # Not registered with torch: no optimiser, checkpoint or export may hold it.
        self.__dict__["_backbone"] = made
        size: Any = checks.plain(resolution)
        size = (size, size) if isinstance(size, int) else size
        if size is None and made.resolution is None:
            raise BackboneError(
                f"FrozenFeatures: {self.name} does not say for which images it is. Pass the height "
                "and width as resolution=(224, 224)."
            )
        self.resolution = check_resolution("FrozenFeatures", size or made.resolution)
        self._check_patches(made.patch_size)
        values = (
            tuple(made.mean if mean is None else mean),
            tuple(made.std if std is None else std),
        )
        for name, value in zip(("mean", "std"), values, strict=True):
            if len(value) != 3 or (name == "std" and min(value) <= 0):
                raise ValueError(
                    f"FrozenFeatures: {name} is {value}, expected three numbers"
                    f"{' above 0' if name == 'std' else ''}, one per colour."
                )
        self.normalisation = values
        for name, value in zip(("mean", "std"), values, strict=True):
            one = torch.tensor(value, dtype=torch.get_default_dtype(), device="cpu")
            self.register_buffer(name, one.reshape(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor
        digest = torch.frombuffer(bytearray(_digest(made.model, values)), dtype=torch.uint8)
        self.register_buffer("fingerprint", digest)
        self.fingerprint: Tensor
        self.out_grid, self.out_dim = self._probe()

    @property
    def backbone(self) -> nn.Module:
        """The model itself."""
        return self.__dict__["_backbone"].model

    @property
    def hash(self) -> str:
        """The fingerprint in hexadecimal."""
        return _hex(self.fingerprint)

    def forward(self, image: Tensor) -> Tensor:
        """The features of every patch, row by row.

        Args:
            image: ``(batch, 3, H, W)``: uint8, or floats from 0 to 1.

        Returns:
            ``(batch, n, out_dim)``, ``n`` the number of cells of ``out_grid``, without a graph.
        """
        pixels = self._prepared(image)
        if self.backbone.training:
            # The caller's module may be part of another one, which was set to training mode.
            self.backbone.eval()
        with torch.no_grad():
            return self._features(pixels)[0]

    def describe(self) -> dict[str, Any]:
        """What :meth:`from_description` needs, ready for JSON."""
        mean, std = self.normalisation
        return {
            "name": self.name,
            "is_named": self.is_named,
            "resolution": list(self.resolution),
            "out_grid": list(self.out_grid),
            "mean": list(mean),
            "std": list(std),
            "sha256": self.hash,
        }

    @classmethod
    def from_description(cls, about: dict[str, Any]) -> "FrozenFeatures":
        """Load the features that :meth:`describe` described, and check the hash of their weights.

        Raises:
            BackboneError: If the backbone is missing, or has other weights.
        """
        if not about.get("is_named"):
            raise BackboneError(
                f"the features come from a module of your own, {about.get('name')}, which is not "
                "saved with the model. Pass it: from_pretrained(FOLDER, backbone=FrozenFeatures("
                "module, resolution=...))."
            )
        made = cls(
            about["name"],
            resolution=about["resolution"],
            mean=about["mean"],
            std=about["std"],
        )
        if made.hash != about["sha256"]:
            raise other_backbone(made.name, made.hash, about["sha256"])
        return made

    def _features(self, pixels: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Features ``(batch, n, dim)`` and the grid of normalised images."""
        made: Backbone = self.__dict__["_backbone"]
        out: Any = made.call(made.model, pixels)
        if not isinstance(out, Tensor) or out.ndim not in (3, 4):
            found = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise self._no_grid(f"it returns {found}")
        if out.ndim == 4:
            out = out if made.channels_last else out.movedim(1, -1)
            return out.flatten(1, 2), (out.shape[1], out.shape[2])
        n = out.shape[1]
        height, width = self.resolution
        if made.patch_size is not None:
            grid = height // made.patch_size[0], width // made.patch_size[1]
        else:
            side = round(n**0.5)
            grid = (side, side) if height == width else (0, 0)
        prefix = n - grid[0] * grid[1]
        most = 0 if made.patch_size is None else _MOST_PREFIX
        if not 0 <= prefix <= most or 0 in grid:
            raise self._no_grid(f"it returns {n} tokens for {height} x {width} pixels")
        return out[:, prefix:], grid

    def _no_grid(self, found: str) -> BackboneError:
        return BackboneError(
            f"FrozenFeatures: {self.name} has no patch grid: {found}; expected tokens (batch, n, "
            "dim) of a square grid, or a grid (batch, dim, rows, columns). Choose a vision "
            "transformer, such as facebook/dinov2-small."
        )

    def _probe(self) -> tuple[tuple[int, int], int]:
        model = self.backbone
        weight = next(iter(model.parameters()), torch.zeros((), device="cpu"))
        pixels = torch.zeros(1, 3, *self.resolution, device=weight.device, dtype=weight.dtype)
        try:
            with torch.no_grad():
                features, grid = self._features(pixels)
        except BackboneError:
            raise
        except (RuntimeError, ValueError, AssertionError, TypeError, AttributeError) as error:
            said = str(error).strip().partition("\n")[0]
            raise BackboneError(
                f"FrozenFeatures: {self.name} cannot compute features of images of "
                f"{self.resolution[0]} x {self.resolution[1]} pixels: {said}. Pass another "
                "resolution."
            ) from error
        return grid, features.shape[-1]

    def _check_patches(self, patch: tuple[int, int] | None) -> None:
        if patch is None or all(s % p == 0 for s, p in zip(self.resolution, patch, strict=True)):
            return
        side = self.resolution[0] // patch[0]
        raise BackboneError(
            f"FrozenFeatures: images of {self.resolution[0]} x {self.resolution[1]} pixels cannot "
            f"be cut into the patches of {self.name}, {patch[0]} x {patch[1]}; expected multiples, "
            f"such as {max(1, side) * patch[0]} or {(side + 1) * patch[0]}."
        )

    def _prepared(self, image: Any) -> Tensor:
        """Normalised pixels in the precision of the backbone."""
        shape = (3, *self.resolution)
        if not isinstance(image, Tensor) or image.ndim != 4 or tuple(image.shape[1:]) != shape:
            kind: Any = type(image)  # pyright: ignore[reportUnknownVariableType]
            found = f"shape {tuple(image.shape)}" if isinstance(image, Tensor) else kind.__name__
            raise ValueError(
                f"FrozenFeatures: image has {found}, expected (batch, {', '.join(map(str, shape))})"
                ". Resize it, or make the features for its size."
            )
        if image.dtype == torch.uint8:
            unit = image.to(torch.float32) / 255.0
        else:
            _check_range(image)
            unit = image
        weight = next(iter(self.backbone.parameters()), self.mean)
        return ((unit - self.mean) / self.std).to(weight.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and convert the backbone too."""
        self.backbone._apply(fn)  # pyright: ignore
        return cast(Self, super()._apply(fn, recurse))  # pyright: ignore

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Compare the fingerprint instead of loading it."""
        saved = state_dict.get(f"{prefix}fingerprint")
        if saved is None:
            missing_keys.append(f"{prefix}fingerprint")
        elif not torch.equal(saved.cpu(), self.fingerprint.cpu()):
            raise other_backbone(self.name, self.hash, _hex(saved))

    def extra_repr(self) -> str:
        """Name and sizes of the backbone."""
        return f"{self.name!r}, resolution={self.resolution}, out_grid={self.out_grid}, " + (
            f"out_dim={self.out_dim}"
        )


def other_backbone(name: str, found: str, expected: str) -> BackboneError:
    """The error for a model that was trained on features of other weights."""
    return BackboneError(
        f"the backbone {name} has other weights (or another normalisation) than the one that this "
        f"model was trained with: its hash is {found[:12]}, expected {expected[:12]}. Use the "
        "backbone weights that it was trained with, or train again."
    )


def _hex(fingerprint: Tensor) -> str:
    return fingerprint.cpu().numpy().tobytes().hex()


def _digest(model: nn.Module, values: tuple[tuple[float, ...], ...]) -> bytes:
    """SHA-256 of names, types, shapes and values of the weights, and of mean and deviation."""
    config = getattr(model, "config", None)
    about = (type(model).__name__, getattr(config, "num_attention_heads", None))
    numbers = [[float(one) for one in part] for part in values]
    found = hashlib.sha256(repr((about, numbers)).encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(whole.view(torch.uint8).numpy().tobytes())
    return found.digest()


def _check_range(image: Tensor) -> None:
    if not image.is_floating_point():
        raise ValueError(
            f"FrozenFeatures: image has dtype {image.dtype}, expected torch.uint8, or floats from "
            "0 to 1."
        )
    if checks.can_read_values(image) and image.numel():
        low, high = (float(x) for x in image.detach().aminmax())
        if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):
            raise ValueError(
                f"FrozenFeatures: image has values from {low:.4g} to {high:.4g}, expected floats "
                "from 0 to 1; they are normalised here. Pass pixels from 0 to 255 as uint8."
            )
