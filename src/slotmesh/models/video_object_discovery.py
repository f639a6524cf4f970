"""Object discovery in videos: the paper's network for CLEVRER."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.models.model import Model, default_init, discovery_transport, prepare
from slotmesh.models.segmentation import Segmentation, Square, segment_video
from slotmesh.nn import (
    ConvEncoder,
    SlotAttention,
    SlotAttentionOutput,
    SlotInitializer,
    SlotTransport,
    SpatialBroadcastDecoder,
    Transition,
    compose,
)
from slotmesh.ops import Transport, checks


class VideoOutput(NamedTuple):
    """What :class:`VideoObjectDiscovery` returns, for each of the T frames."""

    reconstruction: Tensor
    """``(batch, T, 3, H, W)``: the images of the slots, weighted by their masks."""
    rgb: Tensor
    """``(batch, T, m, 3, H, W)``: the image of each slot."""
    masks: Tensor
    """``(batch, T, m, H, W)``: the share of each slot in each pixel; sums to 1 over slots."""
    slots: Tensor
    """``(batch, T, m, slot_dim)``."""
    attention: Tensor
    """``(batch, T, m, n)``, over the cells of ``encoder.out_grid``, row by row."""
    transport: Transport
    """The transport behind it, its fields ``(batch, T, ...)``."""
    trace: Tensor | None
    """``(batch, T, n_iters, m, n)``: the attention of every iteration, if ``trace=True``."""
    kl: Tensor
    """``(batch,)``: the KL term of a learned transition, summed over the T - 1 transitions; 0 for
    others."""


class VideoObjectDiscovery(Model):
    """Object discovery in which the slots of one frame are the initial slots of the next.

    All frames are encoded at once, slots are updated frame by frame, and all frames are decoded at
    once. There is no predictor between frames, only the ``transition``, as in the paper. For
    SA-MESH on CLEVRER the authors use cosine costs: pass
    ``Mesh(lr=8.0, cost="cosine", cost_scale=6.0, mass=18.0, grad="implicit")``.

    Args:
        n_slots: Number of slots.
        transport: As for :class:`~slotmesh.SlotAttention`; default ``Mesh(grad="implicit")``, or
            ``Mesh()`` with ``implicit``, where gradients go through one iteration only.
        n_iters: Number of iterations of slot attention per frame.
        resolution: Height and width of the video.
        channels: Channels of encoder and decoder.
        slot_dim: Size of a slot.
        mlp_dim: Width of the hidden layers in slot attention.
        init: Initial slots of the first frame; default
            :class:`~slotmesh.nn.LearnedGaussian`, or :class:`~slotmesh.nn.FixedGaussian` with
            ``implicit``.
        implicit: Differentiate slots implicitly. Gradients then do not flow between frames, and a
            :class:`~slotmesh.nn.LearnedNoise` learns from its KL term only.
        transition: How slots pass from frame to frame: :class:`~slotmesh.nn.Transition` (the
            default, which leaves them unchanged), :class:`~slotmesh.nn.FixedNoise` or
            :class:`~slotmesh.nn.LearnedNoise`.

    Example:
        >>> import torch
        >>> from slotmesh.models import VideoObjectDiscovery
        >>> from slotmesh.nn import FixedNoise, Softmax
        >>> model = VideoObjectDiscovery(4, Softmax(), transition=FixedNoise(0.1))
        >>> out = model(torch.randint(0, 256, (1, 2, 3, 64, 64), dtype=torch.uint8))
        >>> out.masks.shape, out.kl.shape
        (torch.Size([1, 2, 4, 64, 64]), torch.Size([1]))
    """

    def __init__(
        self,
        n_slots: int = 8,
        transport: SlotTransport | None = None,
        *,
        n_iters: int = 3,
        resolution: Sequence[int] = (64, 64),
        channels: int = 32,
        slot_dim: int = 64,
        mlp_dim: int = 128,
        init: SlotInitializer | None = None,
        implicit: bool = False,
        transition: Transition | None = None,
    ) -> None:
        super().__init__()
        transition = Transition() if transition is None else transition
        say = "an object such as Transition(), FixedNoise() or LearnedNoise()"
        checks.check_instance("VideoObjectDiscovery", "transition", transition, Transition, say)
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
        self.transition = transition.bind(slot_dim=slot_dim)
        self.decoder = SpatialBroadcastDecoder(slot_dim, channels, resolution)
        self.record(self.attention, transition=self.transition)

    def forward(
        self,
        video: Tensor,
        *,
        slots: Tensor | None = None,
        n_slots: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        trace: bool = False,
    ) -> VideoOutput:
        """Find objects in the first frame, follow them, and reconstruct all frames.

        Args:
            video: ``(batch, T, 3, H, W)``: uint8, or floats from 0 to 1.
            slots: Initial slots of the first frame ``(batch, m, slot_dim)``; default from ``init``.
            n_slots: Number of slots in this call.
            generator: Random generator for initial slots, transitions and MESH's noise.
            seed: Instead of a generator: the same seed gives the same result. In evaluation mode,
                the default is 0, and an element gives the same result alone and in any batch; in
                training mode, the default is new noise in every call.
            trace: Also return the attention of every iteration.

        Returns:
            A :class:`VideoOutput`.
        """
        generator = self.source_of_noise(generator, seed)
        shape = ("batch", "T", 3, *self.encoder.resolution)
        weight = self.attention.to_key.weight
        pixels = prepare("VideoObjectDiscovery", "video", video, shape, weight)
        inputs = self.encoder(pixels).unbind(1)
        found = [
            self.attention(inputs[0], slots, n_slots=n_slots, generator=generator, trace=trace)
        ]
        divergences: list[Tensor] = []
        for frame in inputs[1:]:
            first = self.transition(found[-1].slots, generator)
            divergences.append(first.kl)
            found.append(self.attention(frame, first.slots, generator=generator, trace=trace))
        joined = _join(found)
        decoded = self.decoder(joined.slots)
        reconstruction, masks = compose(decoded)
        kl = torch.stack(divergences).sum(0) if divergences else masks.new_zeros(len(video))
        return VideoOutput(reconstruction, decoded.rgb, masks, *joined, kl)

    def segment(
        self,
        video: object,
        *,
        seed: int = 0,
        square: Square = "squeeze",
        n_slots: int | None = None,
        merge: float | None = None,
    ) -> Segmentation:
        """Segment the frames of one video of any size, and show them in a notebook.

        Args:
            video: A list of frames, each in any form that :meth:`ObjectDiscovery.segment` accepts;
                or a tensor ``(T, 3, H, W)``, or an array ``(T, H, W, 3)``.
            seed: Seed of the initial slots and of MESH's noise; the same seed gives the same
                result.
            square: How to fit frames to the size of the model: ``"squeeze"`` the whole frame, or
                ``"crop"`` its central square.
            n_slots: Number of slots; default: as in training.
            merge: Merge slots whose pictures differ by at most this, from 0 to 1, so that the
                background becomes one segment (see :func:`~slotmesh.models.same_picture`). By
                default, no slots are merged.

        Returns:
            A :class:`~slotmesh.models.Segmentation` on the CPU, whose tensors have a leading
            dimension of frames.

        Example:
            >>> import torch
            >>> from slotmesh.models import VideoObjectDiscovery
            >>> model = VideoObjectDiscovery(4, resolution=(32, 32), channels=8)
            >>> model.segment(torch.rand(2, 3, 90, 120)).masks.shape
            torch.Size([2, 4, 90, 120])
        """
        return segment_video(self, video, seed=seed, square=square, n_slots=n_slots, merge=merge)


def _join(frames: list[SlotAttentionOutput]) -> SlotAttentionOutput:
    """Stack the results ``(batch, ...)`` of all frames to ``(batch, T, ...)``."""
    traces = [f.trace for f in frames if f.trace is not None]
    return SlotAttentionOutput(
        slots=torch.stack([f.slots for f in frames], 1),
        attention=torch.stack([f.attention for f in frames], 1),
        transport=Transport(
            *(torch.stack(parts, 1) for parts in zip(*(f.transport for f in frames), strict=True))
        ),
        trace=torch.stack(traces, 1) if traces else None,
    )
