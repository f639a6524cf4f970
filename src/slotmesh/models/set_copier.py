"""Slot attention by itself: the network of the paper's random objects."""

import torch
from torch import Tensor, nn

from slotmesh.models._model import Model
from slotmesh.nn import (
    FixedGaussian,
    SlotAttention,
    SlotAttentionOutput,
    SlotInitializer,
    SlotTransport,
)
from slotmesh.ops import checks


class SetCopier(Model):
    """Finds the vectors of a set that are not background: its slots are the prediction.

    "We directly apply slot attention" (paper, appendix F): no encoder and no head. Slot attention
    normalises its inputs, which takes the mean and the norm of each vector away, so that 32 numbers
    cannot be copied with a smaller root mean squared error than about 0.216 of their deviation.
    ``raw_values`` takes that bound away, ``rescale`` makes all sets equally large, ``head`` lets
    slots be something else than the vectors: none of the three is the paper's.

    Args:
        dim: Size of an input, and of a slot where ``slot_dim`` is not given.
        n_slots: Number of slots: of vectors to find.
        transport: As for :class:`~slotmesh.SlotAttention`, like the rest; default
            :class:`~slotmesh.nn.Mesh`.
        n_iters: Iterations.
        mlp_dim: Width of the hidden layers.
        init: Where slots start; default :class:`~slotmesh.nn.FixedGaussian`.
        implicit: Differentiate slots implicitly, as the paper does here.
        extra_step: Take the differentiated iteration in addition to ``n_iters``.
        raw_values: Make values of the vectors as they come, not normalised.
        rescale: Divide each set by its root mean square, counted over ``n_slots`` vectors as the
            rest is zero, and multiply the prediction by it.
        head: Predict by a linear layer on the slots.
        slot_dim: Size of a slot; another than ``dim`` needs a head.

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
                f"SetCopier: slot_dim is {slot_dim} and dim {dim}, expected the same without a "
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
            prediction, also behind a head.
        """
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
        # A set of zeros stays one.
        return (norm / n**0.5).clamp(min=torch.finfo(inputs.dtype).tiny)
