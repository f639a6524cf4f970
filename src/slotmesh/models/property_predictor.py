"""Property prediction: the paper's network for CLEVR."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slotmesh.models.model import Model, default_init, prepare
from slotmesh.nn import ConvEncoder, SlotAttention, SlotInitializer, SlotTransport
from slotmesh.ops import Transport, checks


class PropertyOutput(NamedTuple):
    """What :class:`PropertyPredictor` returns."""

    properties: Tensor
    """``(batch, m, n_properties)``: the output of a linear layer."""
    slots: Tensor
    """``(batch, m, slot_dim)``."""
    attention: Tensor
    """``(batch, m, n)``, over the cells of ``encoder.out_grid``, row by row."""
    transport: Transport
    """The transport behind it."""
    trace: Tensor | None
    """``(batch, n_iters, m, n)``: the attention of every iteration, if ``trace=True``; one more
    with ``extra_step``."""


class PropertyPredictor(Model):
    """Predict the properties of a set of objects: encoder, slot attention, and an MLP per slot.

    The defaults are for CLEVR at 128x128: 1024 inputs, ten slots, 19 properties (three
    coordinates, eight colours, three shapes, two materials, two sizes, and whether there is an
    object at all; the loss decides their order).

    Args:
        n_slots: Number of slots: the largest number of objects in an image.
        transport: As for :class:`~slotmesh.SlotAttention`; default :class:`~slotmesh.nn.Mesh`.
        n_iters: Number of iterations of slot attention.
        resolution: Height and width of the image.
        channels: Channels of the encoder.
        slot_dim: Size of a slot.
        mlp_dim: Width of the hidden layers in slot attention.
        n_properties: How many numbers to predict per slot.
        init: Initial slots; default :class:`~slotmesh.nn.FixedGaussian` with ``implicit``,
            :class:`~slotmesh.nn.LearnedGaussian` without.
        implicit: Differentiate slots implicitly, as in the paper's main table.
        extra_step: Make the differentiated iteration an additional one after ``n_iters``.
        strides: Strides of the encoder's convolutions.

    Example:
        >>> import torch
        >>> from slotmesh.models import PropertyPredictor
        >>> model = PropertyPredictor()
        >>> image = torch.randint(0, 256, (1, 3, 128, 128), dtype=torch.uint8)
        >>> model(image).properties.shape, model.encoder.out_grid
        (torch.Size([1, 10, 19]), (32, 32))
    """

    def __init__(
        self,
        n_slots: int = 10,
        transport: SlotTransport | None = None,
        *,
        n_iters: int = 3,
        resolution: Sequence[int] = (128, 128),
        channels: int = 64,
        slot_dim: int = 64,
        mlp_dim: int = 128,
        n_properties: int = 19,
        init: SlotInitializer | None = None,
        implicit: bool = True,
        extra_step: bool = False,
        strides: Sequence[int] = (1, 2, 2, 1),
    ) -> None:
        super().__init__()
        n_properties = checks.as_count("PropertyPredictor", "n_properties", n_properties, 1)
        self.encoder = ConvEncoder(channels, strides=strides, resolution=resolution)
        self.attention = SlotAttention(
            self.encoder.out_dim,
            slot_dim,
            n_slots,
            transport,
            n_iters,
            mlp_dim=mlp_dim,
            init=default_init(init, implicit),
            implicit=implicit,
            extra_step=extra_step,
        )
        self.head = nn.Sequential(
            nn.Linear(slot_dim, slot_dim), nn.ReLU(), nn.Linear(slot_dim, n_properties)
        )
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
    ) -> PropertyOutput:
        """Predict the properties of the objects.

        Args:
            image: ``(batch, 3, H, W)``: uint8, or floats from 0 to 1.
            slots: Initial slots ``(batch, m, slot_dim)``; default from ``init``.
            n_slots: Number of slots in this call.
            generator: Random generator for initial slots and MESH's noise.
            seed: Instead of a generator: the same seed gives the same result. In evaluation mode,
                the default is 0, and an element gives the same result alone and in any batch; in
                training mode, the default is new noise in every call.
            trace: Also return the attention of every iteration.

        Returns:
            A :class:`PropertyOutput`.
        """
        generator = self.source_of_noise(generator, seed)
        shape = ("batch", 3, *self.encoder.resolution)
        pixels = prepare("PropertyPredictor", "image", image, shape, self.attention.to_key.weight)
        found = self.attention(
            self.encoder(pixels), slots, n_slots=n_slots, generator=generator, trace=trace
        )
        return PropertyOutput(self.head(found.slots), *found)
