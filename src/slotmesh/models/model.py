"""Common base of all models."""

from typing import Any

import torch
from torch import nn

from slotmesh.nn import (
    FixedGaussian,
    LearnedGaussian,
    Mesh,
    SlotAttention,
    SlotInitializer,
    SlotTransport,
)
from slotmesh.nn.part import Part
from slotmesh.nn.pretrained import Pretrained
from slotmesh.ops import checks


class Model(
    nn.Module,
    Pretrained,
    coders={Part: (Part.to_config, Part.from_config)},  # pyright: ignore[reportArgumentType]
):
    """A network that is saved together with its settings."""

    def source_of_noise(
        self, generator: torch.Generator | None, seed: int | None
    ) -> torch.Generator | None:
        """The given generator, or one with the given seed; with 0 in evaluation mode.

        Raises:
            ValueError: If both are given.
        """
        name = type(self).__name__
        if generator is not None:
            if seed is not None:
                raise ValueError(
                    f"{name}: got both a generator and a seed, expected one of them. Leave the "
                    "seed out."
                )
            return generator
        if seed is None:
            # A compiler cannot trace a new generator: it draws from torch's own.
            if self.training or torch.compiler.is_compiling():
                return None
            seed = 0
        checks.check_count(name, "seed", seed, 0)
        device = next(self.parameters()).device
        if device.type == "meta":
            return None
        return torch.Generator(device).manual_seed(seed)

    def record(self, attention: SlotAttention, **parts: Part) -> None:
        """Store the parts in the saved settings, including those chosen by default."""
        config: Any = self._hub_mixin_config
        made: Any = attention._hub_mixin_config
        config.update({name: made[name] for name in ("transport", "init")})
        config.update({name: part.to_config() for name, part in parts.items()})


def default_init(init: SlotInitializer | None, implicit: bool) -> SlotInitializer:
    """The given one, or a Gaussian: fixed if implicit, where slots do not depend on their start."""
    if init is not None:
        return init
    return FixedGaussian() if implicit else LearnedGaussian()


def discovery_transport(transport: SlotTransport | None, implicit: bool) -> SlotTransport:
    """The given one, or MESH, whose implicit gradient trains better through several iterations."""
    if transport is not None:
        return transport
    return Mesh() if implicit else Mesh(grad="implicit")
