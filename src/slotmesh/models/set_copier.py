"""Slot attention on its own: the paper's network for random objects."""

from typing import Any

import torch
from torch import Tensor, nn

from slotmesh.models.model import Model
from slotmesh.nn import (
    FixedGaussian,
    SlotAttention,
    SlotAttentionOutput,
    SlotInitializer,
    SlotTransport,
)
from slotmesh.ops import checks


class SetCopier(Model):
    """Find the vectors of a set that are not background; the slots are the prediction.

    "We directly apply slot attention" (paper, appendix F): no encoder and no head. Slot attention
    normalises its inputs, which discards the mean and the norm of each vector, so vectors of 32
    numbers cannot be copied with a root mean squared error below about 0.216 of their standard
    deviation. ``raw_values`` removes that bound, ``rescale`` gives all sets the same scale, and
    ``head`` lets slots differ from the vectors. None of the three is in the paper.

    Args:
        dim: Size of an input, and of a slot unless ``slot_dim`` is given.
        n_slots: Number of slots, which is the number of vectors to find.
        transport: As for :class:`~slotmesh.SlotAttention`; default :class:`~slotmesh.nn.Mesh`.
        n_iters: Number of iterations of slot attention.
        mlp_dim: Width of the hidden layers.
        init: Initial slots; default :class:`~slotmesh.nn.FixedGaussian`.
        implicit: Differentiate slots implicitly, as the paper does here.
        extra_step: Make the differentiated iteration an additional one after ``n_iters``.
        raw_values: Compute values from the vectors without normalising them.
        rescale: Divide each set by its root mean square (over ``n_slots`` vectors, since the others
            are zero), and multiply the prediction by it.
        head: Predict with a linear layer on the slots.
        slot_dim: Size of a slot; a size other than ``dim`` needs ``head=True``.

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
        raw_values: bool = False,
        rescale: bool = False,
        head: bool = False,
        slot_dim: int | None = None,
    ) -> None:
        super().__init__()
        slot_dim = dim if slot_dim is None else slot_dim
        if slot_dim != dim and not head:
            raise ValueError(
                f"SetCopier: slot_dim is {slot_dim} and dim is {dim}, expected the same without a "
                "head. Pass head=True, or leave slot_dim out."
            )
        self.attention = SlotAttention(
            dim,
            slot_dim,
            n_slots,
            transport,
            n_iters,
            mlp_dim=mlp_dim,
            init=FixedGaussian() if init is None else init,
            implicit=implicit,
            extra_step=extra_step,
            raw_values=raw_values,
        )
        self.rescale = rescale
        self.head = nn.Linear(slot_dim, dim) if head else None
        self.record(self.attention)

    def live_settings(self) -> dict[str, Any]:
        """Settings that can be changed after construction, as they are now, ready for JSON."""
        return super().live_settings() | {"rescale": self.rescale}

    def forward(
        self,
        inputs: Tensor,
        *,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        trace: bool = False,
    ) -> SlotAttentionOutput:
        """Find and copy the vectors.

        Args:
            inputs: ``(..., n, dim)``.
            generator: Random generator for initial slots and MESH's noise.
            seed: Instead of a generator: the same seed gives the same result. In evaluation mode,
                the default is 0, and an element gives the same result alone and in any batch; in
                training mode, the default is new noise in every call.
            trace: Also return the attention of every iteration.

        Returns:
            A :class:`~slotmesh.nn.SlotAttentionOutput` whose ``slots`` ``(..., m, dim)`` are the
            prediction, after the head if there is one.
        """
        generator = self.source_of_noise(generator, seed)
        scale = self._scale(inputs) if self.rescale else None
        if scale is not None:
            inputs = inputs / scale
        out: SlotAttentionOutput = self.attention(inputs, generator=generator, trace=trace)
        found = out.slots if self.head is None else self.head(out.slots)
        return out._replace(slots=found if scale is None else found * scale)

    def _scale(self, inputs: Tensor) -> Tensor:
        """Root mean square ``(..., 1, 1)`` of each set, as if of ``n_slots`` vectors."""
        checks.check_matrix("SetCopier", "inputs", inputs, "(..., n, dim)")
        n = self.attention.n_slots * inputs.shape[-1]
        norm = torch.linalg.vector_norm(inputs, dim=(-2, -1), keepdim=True)
        # A set of zeros stays zero.
        return (norm / n**0.5).clamp(min=torch.finfo(inputs.dtype).tiny)
