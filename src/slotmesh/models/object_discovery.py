"""Object discovery by reconstruction: the paper's network for Multi-dSprites and ClevrTex."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.models.model import Model, default_init, discovery_transport, prepare
from slotmesh.models.segmentation import Segmentation, Square, segment_image
from slotmesh.nn import (
    ConvEncoder,
    SlotAttention,
    SlotInitializer,
    SlotTransport,
    SpatialBroadcastDecoder,
    compose,
)
from slotmesh.ops import Transport


class DiscoveryOutput(NamedTuple):
    """What :class:`ObjectDiscovery` returns."""

    reconstruction: Tensor
    """``(batch, 3, H, W)``: the images of the slots, weighted by their masks."""
    rgb: Tensor
    """``(batch, m, 3, H, W)``: the image of each slot."""
    masks: Tensor
    """``(batch, m, H, W)``: the share of each slot in each pixel; sums to 1 over slots."""
    slots: Tensor
    """``(batch, m, slot_dim)``."""
    attention: Tensor
    """``(batch, m, n)``, over the cells of ``encoder.out_grid``, row by row."""
    transport: Transport
    """The transport behind it."""
    trace: Tensor | None
    """``(batch, n_iters, m, n)``: the attention of every iteration, if ``trace=True``."""


class ObjectDiscovery(Model):
    """Discover objects without labels, by reconstructing an image from its slots.

    The defaults are for Multi-dSprites; for ClevrTex use ``ObjectDiscovery(11, channels=64,
    slot_dim=128, mlp_dim=256)``. The loss is the mean squared error between ``reconstruction`` and
    :func:`to_unit(image) <slotmesh.models.to_unit>`.

    Args:
        n_slots: Number of slots: the largest number of objects, plus one for the background.
        transport: As for :class:`~slotmesh.SlotAttention`; default ``Mesh(grad="implicit")``, or
            ``Mesh()`` with ``implicit``, where gradients pass through one iteration only.
        n_iters: Number of iterations of slot attention.
        resolution: Height and width of the image.
        channels: Channels of encoder and decoder.
        slot_dim: Size of a slot.
        mlp_dim: Width of the hidden layers in slot attention.
        init: Initial slots; default :class:`~slotmesh.nn.LearnedGaussian`, or
            :class:`~slotmesh.nn.FixedGaussian` with ``implicit``.
        implicit: Differentiate slots implicitly, which the authors do not do here.

    Example:
        >>> import torch
        >>> from slotmesh.models import ObjectDiscovery
        >>> model = ObjectDiscovery(n_slots=6)
        >>> out = model(torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8))
        >>> out.reconstruction.shape, out.masks.shape
        (torch.Size([1, 3, 64, 64]), torch.Size([1, 6, 64, 64]))
    """

    def __init__(
        self,
        n_slots: int = 6,
        transport: SlotTransport | None = None,
        *,
        n_iters: int = 3,
        resolution: Sequence[int] = (64, 64),
        channels: int = 32,
        slot_dim: int = 64,
        mlp_dim: int = 128,
        init: SlotInitializer | None = None,
        implicit: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = ConvEncoder(channels, resolution=resolution)
        self.attention = SlotAttention(
            self.encoder.out_dim,
            slot_dim,
            n_slots,
            discovery_transport(transport, implicit),
            n_iters,
            mlp_dim=mlp_dim,
            init=default_init(init, implicit),
            implicit=implicit,
        )
        self.decoder = SpatialBroadcastDecoder(slot_dim, channels, resolution)
        self.record(self.attention)

    def forward(
        self,
        image: Tensor,
        *,
        slots: Tensor | None = None,
        n_slots: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        trace: bool = False,
    ) -> DiscoveryOutput:
        """Find objects and reconstruct the image.

        Args:
            image: ``(batch, 3, H, W)``: uint8, or floats from 0 to 1.
            slots: Initial slots ``(batch, m, slot_dim)``; default from ``init``.
            n_slots: Number of slots in this call.
            generator: Random generator for initial slots and MESH's noise.
            seed: Instead of a generator: the same seed gives the same result. In evaluation mode,
                the default is 0, and an image gives the same result alone and in any batch; in
                training mode, the default is new noise in every call.
            trace: Also return the attention of every iteration.

        Returns:
            A :class:`DiscoveryOutput`.
        """
        generator = self.source_of_noise(generator, seed)
        shape = ("batch", 3, *self.encoder.resolution)
        pixels = prepare("ObjectDiscovery", "image", image, shape, self.attention.to_key.weight)
        found = self.attention(
            self.encoder(pixels), slots, n_slots=n_slots, generator=generator, trace=trace
        )
        decoded = self.decoder(found.slots)
        reconstruction, masks = compose(decoded)
        return DiscoveryOutput(reconstruction, decoded.rgb, masks, *found)

    def segment(
        self,
        image: object,
        *,
        seed: int = 0,
        square: Square = "squeeze",
        n_slots: int | None = None,
        merge: float | None = None,
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
            merge: Merge slots whose pictures differ by at most this, from 0 to 1, so that the
                background becomes one segment (see :func:`~slotmesh.models.same_picture`). By
                default, no slots are merged.

        Returns:
            A :class:`~slotmesh.models.Segmentation`, on the CPU.

        Example:
            >>> import torch
            >>> from slotmesh.models import ObjectDiscovery
            >>> model = ObjectDiscovery(4, resolution=(32, 32), channels=8)
            >>> found = model.segment(torch.rand(3, 90, 120))
            >>> found.masks.shape, found.labels.shape
            (torch.Size([4, 90, 120]), torch.Size([90, 120]))
        """
        return segment_image(self, image, seed=seed, square=square, n_slots=n_slots, merge=merge)
