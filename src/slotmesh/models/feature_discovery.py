"""Object discovery by reconstructing the features of a frozen vision model, as DINOSAUR does."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slotmesh.models.model import Model, default_init, discovery_transport
from slotmesh.models.segmentation import Segmentation, Square, segment_image
from slotmesh.nn import (
    BackboneError,
    FeatureDecoder,
    FrozenFeatures,
    SlotAttention,
    SlotInitializer,
    SlotTransport,
)
from slotmesh.ops import Transport


class FeatureOutput(NamedTuple):
    """What :class:`FeatureDiscovery` returns."""

    reconstruction: Tensor
    """``(batch, n, dim)``: the features of the slots, weighted by their masks."""
    features: Tensor
    """``(batch, n, dim)``: the features of the frozen model, which are the target."""
    masks: Tensor
    """``(batch, m, H, W)``: the share of each slot in each pixel, enlarged from those of the
    patches; sums to 1 over slots."""
    patch_masks: Tensor
    """``(batch, m, rows, columns)``: the share of each slot in each patch."""
    slots: Tensor
    """``(batch, m, slot_dim)``."""
    attention: Tensor
    """``(batch, m, n)``, over the patches, row by row."""
    transport: Transport
    """The transport behind it."""
    trace: Tensor | None
    """``(batch, n_iters, m, n)``: the attention of every iteration, if ``trace=True``."""


class FeatureDiscovery(Model):
    """Discover objects in photographs, by reconstructing the features of a frozen vision model.

    Unlike colours, the features of a model trained on many photographs, such as DINOv2, are similar
    within an object and differ between kinds of objects. Slot attention runs on the features of the
    patches, after a small MLP, and another MLP decodes each slot at each patch. The defaults are
    those of DINOSAUR (Seitzer et al., 2023). The loss is the mean squared error between
    ``reconstruction`` and ``features``.

    The weights of the frozen model are not saved with this one, only its name and a hash of its
    weights, which is checked on loading.

    Args:
        backbone: A :class:`~slotmesh.nn.FrozenFeatures`, or its first argument: a folder, the name
            of a model, or a module.
        n_slots: Number of slots: the largest number of objects, plus one for the background.
        transport: As for :class:`~slotmesh.SlotAttention`; default ``Mesh(grad="implicit")``, or
            ``Mesh()`` with ``implicit``, where gradients pass through one iteration only.
        n_iters: Number of iterations of slot attention.
        slot_dim: Size of a slot.
        mlp_dim: Width of the hidden layers in slot attention; default ``4 * slot_dim``.
        hidden: Widths of the hidden layers of the decoder.
        init: Initial slots; default :class:`~slotmesh.nn.LearnedGaussian`, or
            :class:`~slotmesh.nn.FixedGaussian` with ``implicit``.
        implicit: Differentiate slots implicitly.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from slotmesh.models import FeatureDiscovery
        >>> from slotmesh.nn import FrozenFeatures
        >>> features = FrozenFeatures(nn.Conv2d(3, 16, 8, stride=8), resolution=(64, 64))
        >>> model = FeatureDiscovery(features, n_slots=5, slot_dim=32, hidden=(64,))
        >>> out = model(torch.rand(1, 3, 64, 64))
        >>> out.masks.shape, out.reconstruction.shape
        (torch.Size([1, 5, 64, 64]), torch.Size([1, 64, 16]))
        >>> loss = (out.reconstruction - out.features).square().mean()
    """

    def __init__(
        self,
        backbone: FrozenFeatures | nn.Module | dict[str, Any] | Path | str,
        n_slots: int = 7,
        transport: SlotTransport | None = None,
        *,
        n_iters: int = 3,
        slot_dim: int = 256,
        mlp_dim: int | None = None,
        hidden: Sequence[int] = (2048, 2048, 2048),
        init: SlotInitializer | None = None,
        implicit: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(backbone, dict):
            # As described in config.json.
            backbone = FrozenFeatures.from_description(backbone)
        elif not isinstance(backbone, FrozenFeatures):
            backbone = FrozenFeatures(backbone)
        self.encoder = backbone
        dim = backbone.out_dim
        self.project = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, slot_dim)
        )
        self.attention = SlotAttention(
            slot_dim,
            slot_dim,
            n_slots,
            discovery_transport(transport, implicit),
            n_iters,
            mlp_dim=4 * slot_dim if mlp_dim is None else mlp_dim,
            init=default_init(init, implicit),
            implicit=implicit,
        )
        self.decoder = FeatureDecoder(slot_dim, dim, backbone.out_grid, hidden)
        self.record(self.attention)
        config: Any = self._hub_mixin_config
        config.update(backbone=backbone.describe(), hidden=list(hidden))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Self:
        """Load what ``save_pretrained`` wrote, in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder, or the name of a model on the Hugging Face hub.
            kwargs: As for any model; ``backbone``, if it is a module of your own.

        Raises:
            ValueError: If a file is missing, damaged or does not match, or the backbone has other
                weights or another grid of patches.
        """
        model = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        file = Path(pretrained_model_name_or_path) / "config.json"
        about = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        trained = about.get("backbone", {})
        found = model.encoder.out_grid
        # Files of earlier versions do not contain the grid.
        rows, columns = trained.get("out_grid", found)
        if (rows, columns) != found:
            raise BackboneError(
                f"from_pretrained: the backbone has a grid of {found[0]} x {found[1]} patches, "
                f"expected {rows} x {columns} as in training. Pass FrozenFeatures(..., resolution="
                f"{tuple(trained['resolution'])})."
            )
        return model

    def forward(
        self,
        image: Tensor | None = None,
        *,
        features: Tensor | None = None,
        slots: Tensor | None = None,
        n_slots: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        trace: bool = False,
        enlarge: bool = True,
    ) -> FeatureOutput:
        """Find objects and reconstruct the features of the image.

        Args:
            image: ``(batch, 3, H, W)``: uint8, or floats from 0 to 1.
            features: ``(batch, n, dim)``: the features of the image, if you have computed them
                already; ``image`` is then ignored.
            slots: Initial slots ``(batch, m, slot_dim)``; default from ``init``.
            n_slots: Number of slots in this call.
            generator: Random generator for initial slots and MESH's noise.
            seed: Instead of a generator: the same seed gives the same result. In evaluation mode,
                the default is 0, and an element gives the same result alone and in any batch; in
                training mode, the default is new noise in every call.
            trace: Also return the attention of every iteration.
            enlarge: Whether to enlarge masks to the size of the image; otherwise, ``masks`` are
                those of the patches, which is all that a loss needs.

        Returns:
            A :class:`FeatureOutput`.
        """
        generator = self.source_of_noise(generator, seed)
        if features is None:
            if image is None:
                raise ValueError(
                    "FeatureDiscovery: got neither an image nor features, expected one of them."
                )
            features = self.encoder(image)
        assert features is not None
        weight = self.attention.to_key.weight
        features = self._checked(features).to(weight.dtype)
        found = self.attention(
            self.project(features).to(weight.dtype),
            slots,
            n_slots=n_slots,
            generator=generator,
            trace=trace,
        )
        decoded = self.decoder(found.slots)
        masks = decoded.masks
        if enlarge:
            size = self.encoder.resolution
            masks = F.interpolate(masks, size=size, mode="bilinear", align_corners=False)
        return FeatureOutput(decoded.features, features, masks, decoded.masks, *found)

    def segment(
        self,
        image: object,
        *,
        seed: int = 0,
        square: Square = "squeeze",
        n_slots: int | None = None,
    ) -> Segmentation:
        """Segment one image of any size, and show it in a notebook.

        Args:
            image: A path; a Pillow image; a tensor ``(3, H, W)``, or an array ``(H, W, 3)`` or
                ``(H, W)``, of uint8 or of floats from 0 to 1.
            seed: Seed of the initial slots and of MESH's noise; the same seed gives the same
                result.
            square: How to fit the image to the size of the model: ``"squeeze"`` the whole image, or
                ``"crop"`` its central square.
            n_slots: Number of slots; default: as in training.

        Returns:
            A :class:`~slotmesh.models.Segmentation`, on the CPU. Its ``reconstruction`` shows three
            principal components of the reconstructed features as colours, a pixel per patch.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from slotmesh.models import FeatureDiscovery
            >>> from slotmesh.nn import FrozenFeatures
            >>> features = FrozenFeatures(nn.Conv2d(3, 16, 8, stride=8), resolution=(64, 64))
            >>> model = FeatureDiscovery(features, n_slots=5, slot_dim=32, hidden=(64,))
            >>> model.segment(torch.rand(3, 90, 120)).labels.shape
            torch.Size([90, 120])
        """
        return segment_image(self, image, seed=seed, square=square, n_slots=n_slots)

    def _checked(self, features: Tensor) -> Tensor:
        rows, columns = self.encoder.out_grid
        expected = (rows * columns, self.encoder.out_dim)
        if features.ndim != 3 or tuple(features.shape[1:]) != expected:
            raise ValueError(
                f"FeatureDiscovery: features have shape {tuple(features.shape)}, expected (batch, "
                f"{expected[0]}, {expected[1]}), as model.encoder(image) gives them."
            )
        return features
