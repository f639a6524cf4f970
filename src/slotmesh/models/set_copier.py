"""Slot attention by itself: the network of the paper's random objects."""

import torch
from torch import Tensor

from slotmesh.models._model import Model
from slotmesh.nn import (
    FixedGaussian,
    SlotAttention,
    SlotAttentionOutput,
    SlotInitializer,
    SlotTransport,
)


class SetCopier(Model):
    """Finds the vectors of a set that are not background: its slots are the prediction.

    "We directly apply slot attention" (paper, appendix F): no encoder and no head. Slot attention
    normalises its inputs, which takes the mean and the norm of each vector away, so that 32 numbers
    cannot be copied with a smaller root mean squared error than about 0.215 of their deviation.

    Args:
        dim: Size of an input and of a slot.
        n_slots: Number of slots: of vectors to find.
        transport: As for :class:`~slotmesh.SlotAttention`, like the rest; default
            :class:`~slotmesh.nn.Mesh`.
        n_iters: Iterations.
        mlp_dim: Width of the hidden layers.
        init: Where slots start; default :class:`~slotmesh.nn.FixedGaussian`.
        implicit: Differentiate slots implicitly, as the paper does here.
        extra_step: Take the differentiated iteration in addition to ``n_iters``.

    Example:
        >>> from slotmesh.models import SetCopier
        >>> from slotmesh.worlds import RandomObjects
        >>> sets = RandomObjects().sample(range(8))
        >>> SetCopier()(sets.inputs).slots.shape, sets.targets.shape
        (torch.Size([8, 5, 32]), torch.Size([8, 5, 32]))
    """

    def __init__(
        self,
        dim: int = 32,
        n_slots: int = 5,
        transport: SlotTransport | None = None,
        *,
        n_iters: int = 3,
        mlp_dim: int = 64,
        init: SlotInitializer | None = None,
        implicit: bool = True,
        extra_step: bool = False,
    ) -> None:
        super().__init__()
        self.attention = SlotAttention(
            dim,
            dim,
            n_slots,
            transport,
            n_iters,
            mlp_dim=mlp_dim,
            init=FixedGaussian() if init is None else init,
            implicit=implicit,
            extra_step=extra_step,
        )
        self.record(self.attention)

    def forward(
        self, inputs: Tensor, *, generator: torch.Generator | None = None, trace: bool = False
    ) -> SlotAttentionOutput:
        """Copy.

        Args:
            inputs: ``(..., n, dim)``.
            generator: Source of the slots' randomness and of MESH's noise.
            trace: Also return the attention of every iteration.

        Returns:
            A :class:`~slotmesh.nn.SlotAttentionOutput` whose ``slots`` ``(..., m, dim)`` are the
            prediction.
        """
        return self.attention(inputs, generator=generator, trace=trace)
