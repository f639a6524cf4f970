"""What all models share: the base class, defaults, and the checks of images."""

from typing import Any

import torch
from torch import Tensor, nn

from slotmesh.nn import (
    FixedGaussian,
    LearnedGaussian,
    Mesh,
    SlotAttention,
    SlotInitializer,
    SlotTransport,
)
from slotmesh.nn.noise import SOURCES, ForEachGenerator, Seeded
from slotmesh.nn.part import Part
from slotmesh.nn.pretrained import Pretrained
from slotmesh.ops import checks

# Allows for rounding in an image that was resized or stored in half precision.
_TOLERANCE = 1e-2


class Model(
    nn.Module,
    Pretrained,
    coders={Part: (Part.to_config, Part.from_config)},  # pyright: ignore[reportArgumentType]
):
    """A network that is saved together with its settings."""

    def source_of_noise(self, generator: torch.Generator | None, seed: int | None) -> Any:
        """The given generator, or one with the given seed; with 0 in evaluation mode.

        In evaluation mode, a seed draws the same numbers for each batch element, so that its result
        does not depend on the others.

        Raises:
            ValueError: If both are given, or one of them is something else.
        """
        name = type(self).__name__
        if generator is not None:
            say = "a torch.Generator. Pass a number as seed"
            checks.check_instance(name, "generator", generator, SOURCES, say)
            if seed is not None:
                raise ValueError(
                    f"{name}: got both a generator and a seed, expected one of them. Leave the "
                    "seed out."
                )
            return generator
        if seed is None:
            if self.training:
                return None
            seed = 0
        seed = checks.as_seed(name, "seed", seed)
        if torch.compiler.is_compiling():
            # A compiler cannot trace a new generator.
            return Seeded(seed, for_each=not self.training)
        device = next(self.parameters()).device
        if device.type == "meta":
            return None
        kind = torch.Generator if self.training else ForEachGenerator
        return kind(device).manual_seed(seed)

    def record(self, attention: SlotAttention, **parts: Part) -> None:
        """Store the parts in the saved settings, including those chosen by default."""
        config: Any = self._hub_mixin_config
        made: Any = attention._hub_mixin_config
        config.update({name: made[name] for name in ("transport", "init")})
        config.update({name: part.to_config() for name, part in parts.items()})
        self.note_settings()

    def live_settings(self) -> dict[str, Any]:
        """Settings that can be changed after construction, as they are now, ready for JSON."""
        found: dict[str, Any] = {}
        for name, child in self.named_children():
            if isinstance(child, SlotAttention):
                found |= child.live_settings()
            elif isinstance(child, Part):
                found[name] = child.to_config()
        return found


def default_init(init: SlotInitializer | None, implicit: bool) -> SlotInitializer:
    """The given initialiser, or a Gaussian; with ``implicit``, a fixed one suffices."""
    if init is not None:
        return init
    return FixedGaussian() if implicit else LearnedGaussian()


def discovery_transport(transport: SlotTransport | None, implicit: bool) -> SlotTransport:
    """The given transport, or MESH with the gradient that is stable over several iterations."""
    if transport is not None:
        return transport
    return Mesh() if implicit else Mesh(grad="implicit")


# ---- images ----


def to_unit(image: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert pixels to the range -1 to 1, which the models use inside and reconstruct.

    Args:
        image: uint8, or floats from 0 to 1, of any shape.
        dtype: Result type for uint8.

    Raises:
        ValueError: If it has another type or range.

    Example:
        >>> import torch
        >>> from slotmesh.models import to_unit
        >>> to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([-1.0000, -0.6000,  1.0000])
        >>> to_unit(torch.tensor([0.0, 0.2, 1.0]))
        tensor([-1.0000, -0.6000,  1.0000])
    """
    return _to_unit("to_unit", "image", _check_tensor("to_unit", "image", image), dtype)


def prepare(
    op: str, name: str, image: object, shape: tuple[int | str, ...], like: Tensor
) -> Tensor:
    """Check an image or a video, and convert it to the range and dtype of a model.

    ``shape`` has a word for each dimension that may have any size above 0.
    """
    image = _check_tensor(op, name, image)
    fits = image.ndim == len(shape) and all(
        size > 0 if isinstance(wanted, str) else size == wanted
        for size, wanted in zip(image.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{op}: {name} has shape {tuple(image.shape)}, expected "
            f"({', '.join(map(str, shape))}). {_fix(name, image, shape)}"
        )
    if image.device != like.device:
        raise ValueError(
            f"{op}: {name} is on {image.device}, expected {like.device}, where the model is. Move "
            "one of them with .to(device)."
        )
    unit = _to_unit(op, name, image, like.dtype)
    if unit.dtype == like.dtype:
        return unit
    if torch.is_autocast_enabled(image.device.type):
        return unit.to(like.dtype)
    raise ValueError(
        f"{op}: {name} is {image.dtype}, expected torch.uint8, or {like.dtype} like the model. "
        f"Convert it with .to({like.dtype}), or use torch.autocast."
    )


def _check_tensor(op: str, name: str, image: object) -> Tensor:
    if not isinstance(image, Tensor):
        raise ValueError(
            f"{op}: {name} is a {type(image).__name__}, expected a tensor of uint8, or of floats "
            "from 0 to 1. Convert it with torch.as_tensor."
        )
    return image


def _to_unit(op: str, name: str, image: Tensor, dtype: torch.dtype) -> Tensor:
    if image.dtype == torch.uint8:
        return image.to(dtype) / 127.5 - 1.0
    if not image.is_floating_point():
        raise ValueError(
            f"{op}: {name} has dtype {image.dtype}, expected torch.uint8, or floats from 0 to 1. "
            "Convert pixels from 0 to 255 with .to(torch.uint8)."
        )
    checks.check_finite(op, name, image, "Look for a NaN or an overflow upstream.")
    if checks.can_read_values(image) and image.numel() > 0:
        low, high = (float(x) for x in image.detach().aminmax())
        if low < -_TOLERANCE or high > 1.0 + _TOLERANCE:
            raise ValueError(
                f"{op}: {name} has values from {low:.4g} to {high:.4g}, expected floats from 0 to "
                f"1. Pass pixels from 0 to 255 as uint8, and those from -1 to 1 as ({name} + 1) / "
                "2; undo any normalisation by mean and deviation."
            )
    return 2.0 * image - 1.0


def _fix(name: str, image: Tensor, shape: tuple[int | str, ...]) -> str:
    """Say how to give an image the right shape."""
    if 0 in image.shape:
        return "There is nothing in it: leave it out."
    if image.ndim == len(shape) - 1:
        return f"Add the missing dimension with {name}[None] or {name}.unsqueeze(1)."
    if image.ndim == len(shape) and tuple(image.shape[-3:]) == (*shape[-2:], shape[-3]):
        return f"Channels come first: use {name}.movedim(-1, -3)."
    return "Resize it, or make the model with its resolution."
