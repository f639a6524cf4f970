"""Settings that the networks for images share, and how their slots are measured."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from slotmesh.training.settings import InitName, at_least, at_most
from slotmesh.training.tasks.experiment import INITIALIZERS

if TYPE_CHECKING:
    from slotmesh.metrics import SlotUsage


M = TypeVar("M", bound=nn.Module)

MOST_SLOTS = 255
"""Masks are 8-bit images, in which 255 marks pixels that the model does not see."""


@dataclass(frozen=True)
class ImageModel:
    """The network: encoder, slot attention, decoder or head."""

    n_slots: int = 6
    """Number of slots."""
    n_iters: int = 3
    """Number of iterations of slot attention."""
    channels: int = 32
    """Number of channels of the convolutions."""
    slot_dim: int = 64
    """Size of a slot."""
    mlp_dim: int = 128
    """Width of the hidden layers of slot attention."""
    init: InitName = "gaussian"
    """How slots are initialised."""
    implicit: bool = False
    """Differentiate slots implicitly instead of through all iterations."""
    he_init: bool = False
    """Initialise convolutions as in He et al. (2015), with larger weights through which the image
    reaches the slots from the first step on. The paper uses torch's default."""

    def options(self, size: int) -> dict[str, Any]:
        """Arguments of the network for images of this size, except for slots and transport."""
        return {
            "n_iters": self.n_iters,
            "resolution": (size, size),
            "channels": self.channels,
            "slot_dim": self.slot_dim,
            "mlp_dim": self.mlp_dim,
            "init": INITIALIZERS[self.init](),
            "implicit": self.implicit,
        }

    def started(self, model: M) -> M:
        """Initialise the weights of a new network, and return it."""
        if self.he_init:
            parts: Any = model
            layers = list(parts.encoder.convolutions)
            if hasattr(parts, "decoder"):
                # Layers that are followed by a ReLU, except for the first, which is computed
                # differently.
                layers += parts.decoder.rest[:-1]
            for layer in layers:
                if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                    nn.init.zeros_(cast("Tensor", layer.bias))
        return model

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        for name in ("n_slots", "n_iters", "channels", "slot_dim", "mlp_dim"):
            at_least(f"model.{name}", getattr(self, name), 1)
        at_most("model.n_slots", self.n_slots, MOST_SLOTS)


@dataclass(frozen=True)
class OwnImageModel(ImageModel):
    """The network: encoder, slot attention, decoder or head."""

    start: str | None = None
    """Trained weights to start from: a run, a checkpoint, an export, or the name of weights that
    come with slotmesh. None starts from scratch."""


def image_usage(
    model: Any, sample: Any, noise: torch.Generator, *, truth: bool = True
) -> "SlotUsage":
    """Measure how a model uses its slots, per image or per frame of a video.

    Args:
        model: An object discovery model.
        sample: Images, with true masks if ``truth``.
        noise: Generator for initial slots and MESH.
        truth: Whether to count the slots that share the background.
    """
    from slotmesh.metrics import slot_usage

    out = model(sample.image, generator=noise, trace=True)
    mask = sample.mask if truth else None
    return slot_usage(out.masks.float(), slots=out.slots.float(), trace=out.trace, truth=mask)
