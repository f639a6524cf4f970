"""The convolutional encoder and decoder of slot attention: images to inputs, slots to images."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from slotmesh.ops import checks
from slotmesh.ops.problem import compute_dtype, full_precision


class PositionEmbedding(nn.Module):
    """Adds a learned linear function of the position to a grid of features, channels first.

    A position is four ramps from 0 to 1 (x from left to right, 1 - x, y from top to bottom, 1 - y),
    which one linear layer maps to the features. Both ends of a ramp are at pixel centres, as in the
    original slot attention.

    Args:
        dim: Channels of the grid.
        resolution: Height and width of the grid.

    Example:
        >>> import torch
        >>> from slotmesh.nn import PositionEmbedding
        >>> position = PositionEmbedding(32, resolution=(48, 64))
        >>> position(torch.randn(2, 32, 48, 64)).shape
        torch.Size([2, 32, 48, 64])
    """

    def __init__(self, dim: int, resolution: Sequence[int]) -> None:
        super().__init__()
        dim = checks.as_count("PositionEmbedding", "dim", dim, 1)
        self.resolution = check_resolution("PositionEmbedding", resolution)
        self.project = nn.Linear(4, dim)
        self.ramps: Tensor
        _keep_fields(self, self.fields())

    def fields(self) -> dict[str, Tensor]:
        """Tensors that depend on the resolution only: the four ramps ``(H, W, 4)``."""
        y, x = _ramps(self.resolution, self.project.weight)
        y, x = torch.meshgrid(y, x, indexing="ij")
        return {"ramps": torch.stack((x, 1 - x, y, 1 - y), -1)}

    def embedding(self) -> Tensor:
        """The embedding ``(dim, H, W)``."""
        return self.project(self.ramps).permute(2, 0, 1)

    def forward(self, grid: Tensor) -> Tensor:
        """``(..., dim, H, W)`` to the same shape."""
        dim, (height, width) = self.project.out_features, self.resolution
        if tuple(grid.shape[-3:]) != (dim, height, width):
            raise ValueError(
                f"PositionEmbedding: the grid has shape {tuple(grid.shape)}, expected "
                f"(..., {dim}, {height}, {width}), channels first. Resize it, or make the "
                "embedding for its size."
            )
        return grid + self.embedding()

    def extra_repr(self) -> str:
        """The resolution; the layer inside shows the channels."""
        return f"resolution={self.resolution}"


class ConvEncoder(nn.Module):
    """Convolutions, a position embedding, and a small network applied to every pixel.

    The encoder of slot attention: a convolution with ReLU for each entry of ``strides``, position
    embedding, LayerNorm and a network of two layers. Stride 1 keeps the size of the image; larger
    strides divide it and round up. Weights have torch's default initialisation, as in the authors'
    code.

    The paper's sizes: ``ConvEncoder(32)`` for Multi-dSprites and CLEVRER, ``ConvEncoder(64)`` for
    ClevrTex, ``ConvEncoder(64, strides=(1, 2, 2, 1), resolution=(128, 128))`` for the properties of
    CLEVR, which gives 1024 inputs.

    Args:
        channels: Channels of every convolution, and width of the network.
        in_channels: Channels of the image.
        out_dim: Size of an input of slot attention; default ``channels``.
        strides: Stride of each convolution.
        kernel_size: Height and width of every kernel, odd.
        resolution: Height and width of the image.

    Attributes:
        out_grid: Height and width of the grid whose cells are the inputs, row by row.

    Example:
        >>> import torch
        >>> from slotmesh.nn import ConvEncoder
        >>> encoder = ConvEncoder(64, strides=(1, 2, 2, 1), resolution=(128, 128))
        >>> encoder.out_grid
        (32, 32)
        >>> encoder(torch.randn(2, 3, 128, 128)).shape
        torch.Size([2, 1024, 64])
    """

    def __init__(
        self,
        channels: int = 32,
        *,
        in_channels: int = 3,
        out_dim: int | None = None,
        strides: Sequence[int] = (1, 1, 1, 1),
        kernel_size: int = 5,
        resolution: Sequence[int] = (64, 64),
    ) -> None:
        super().__init__()
        channels = checks.as_count("ConvEncoder", "channels", channels, 1)
        in_channels = checks.as_count("ConvEncoder", "in_channels", in_channels, 1)
        out_dim = (
            channels if out_dim is None else checks.as_count("ConvEncoder", "out_dim", out_dim, 1)
        )
        kernel_size = checks.as_count("ConvEncoder", "kernel_size", kernel_size, 1)
        if kernel_size % 2 == 0:
            raise ValueError(
                f"ConvEncoder: kernel_size is {kernel_size}, expected an odd number, so that a "
                f"kernel has a centre. Pass {kernel_size - 1} or {kernel_size + 1}."
            )
        if not isinstance(strides, Sequence) or not strides:  # pyright: ignore
            raise ValueError(
                f"ConvEncoder: strides is {strides!r}, expected one stride per convolution, "
                "such as (1, 2, 2, 1)."
            )
        for i, stride in enumerate(strides):
            checks.check_count("ConvEncoder", f"strides[{i}]", stride, 1)
        self.resolution = check_resolution("ConvEncoder", resolution)
        self.in_channels = in_channels
        self.out_dim = out_dim
        height, width = self.resolution
        layers: list[nn.Module] = []
        for i, stride in enumerate(strides):
            fan_in = in_channels if i == 0 else channels
            layers += [
                nn.Conv2d(fan_in, channels, kernel_size, stride, padding=kernel_size // 2),
                nn.ReLU(),
            ]
            height, width = (height - 1) // stride + 1, (width - 1) // stride + 1
        self.out_grid = (height, width)
        self.convolutions = nn.Sequential(*layers)
        self.position = PositionEmbedding(channels, self.out_grid)
        self.head = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, channels),
            nn.ReLU(),
            nn.Linear(channels, out_dim),
        )

    def forward(self, image: Tensor) -> Tensor:
        """``(..., in_channels, H, W)`` to ``(..., n, out_dim)``, n the cells of ``out_grid``."""
        expected = (self.in_channels, *self.resolution)
        if image.ndim < 3 or tuple(image.shape[-3:]) != expected:
            raise ValueError(
                f"ConvEncoder: the image has shape {tuple(image.shape)}, expected "
                f"(..., {', '.join(map(str, expected))}), channels first. Resize it, or make the "
                "encoder for its size."
            )
        batch = image.shape[:-3]
        # A flat batch keeps its memory format.
        flat = image if len(batch) == 1 else image.reshape(-1, *expected)
        grid = self.position(self.convolutions(flat))
        return self.head(grid.flatten(2).mT).reshape(*batch, -1, self.out_dim)


class Decoded(NamedTuple):
    """One picture per slot.

    Example:
        >>> import torch
        >>> from slotmesh.nn import SpatialBroadcastDecoder
        >>> decoded = SpatialBroadcastDecoder(64, resolution=(16, 16))(torch.randn(2, 6, 64))
        >>> decoded.rgb.shape, decoded.logits.shape
        (torch.Size([2, 6, 3, 16, 16]), torch.Size([2, 6, 16, 16]))
    """

    rgb: Tensor
    """``(..., m, 3, H, W)``: colours, in the range of the training images."""
    logits: Tensor
    """``(..., m, H, W)``: a softmax over slots turns them into masks."""


def compose(decoded: Decoded) -> tuple[Tensor, Tensor]:
    """Blend the pictures of the slots into one image, in float32 at least.

    Args:
        decoded: The result of a decoder.

    Returns:
        The image ``(..., 3, H, W)``, and the masks ``(..., m, H, W)``: the share of each slot in
        each pixel. They sum to 1 over slots.

    Example:
        >>> import torch
        >>> from slotmesh.nn import Decoded, compose
        >>> image, masks = compose(Decoded(torch.randn(6, 3, 16, 16), torch.randn(6, 16, 16)))
        >>> image.shape, torch.allclose(masks.sum(0), torch.ones(16, 16))
        (torch.Size([3, 16, 16]), True)
    """
    dtype = compute_dtype(decoded.logits)
    with full_precision(decoded.logits):
        masks = torch.softmax(decoded.logits.to(dtype), -3)
        image = (masks.unsqueeze(-3) * decoded.rgb.to(dtype)).sum(-4)
    return image, masks


class SpatialBroadcastDecoder(nn.Module):
    """Decodes each slot separately: slot and position in every pixel, then deconvolutions.

    The decoder of slot attention at full resolution: three transposed convolutions of 5x5 with
    ReLU and one of 3x3 to colour and mask, all at stride 1. Weights have torch's default
    initialisation, as in the authors' code; for a transposed convolution its scale depends on the
    number of *output* channels.

    The input of the first layer is a slot, the same in every pixel, plus an embedding, the same
    for every slot, and the layer is linear. It is therefore computed as the sum of two cheap
    responses, equal to the plain layer up to rounding: for each slot the sum of its 25 taps, which
    varies only near the borders; and one map for the embedding, computed in the same way from a
    constant and two ramps.

    Args:
        slot_dim: Size of a slot.
        channels: Channels of the hidden layers.
        resolution: Height and width of the image.

    Example:
        >>> import torch
        >>> from slotmesh.nn import SpatialBroadcastDecoder
        >>> decoder = SpatialBroadcastDecoder(64, channels=32, resolution=(16, 16))
        >>> decoder(torch.randn(2, 6, 64)).rgb.shape
        torch.Size([2, 6, 3, 16, 16])
    """

    def __init__(
        self, slot_dim: int, channels: int = 32, resolution: Sequence[int] = (64, 64)
    ) -> None:
        super().__init__()
        slot_dim = checks.as_count("SpatialBroadcastDecoder", "slot_dim", slot_dim, 1)
        channels = checks.as_count("SpatialBroadcastDecoder", "channels", channels, 1)
        self.resolution = check_resolution("SpatialBroadcastDecoder", resolution)
        self.position = PositionEmbedding(slot_dim, self.resolution)
        self.first = nn.ConvTranspose2d(slot_dim, channels, 5, padding=2)
        self.rest = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(channels, channels, 5, padding=2),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, channels, 5, padding=2),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, 4, 3, padding=1),
        )
        self.rows: Tensor
        self.columns: Tensor
        self.down: Tensor
        self.right: Tensor
        _keep_fields(self, self.fields())

    def fields(self) -> dict[str, Tensor]:
        """Tensors that depend on the resolution only: what each tap sees of its input."""
        y, x = _ramps(self.resolution, self.first.weight)
        tall, wide = torch.ones_like(y), torch.ones_like(x)
        seen = {
            "rows": tall,
            "columns": wide,
            "down": torch.stack((tall, tall, y, 1 - y, tall)),
            "right": torch.stack((x, 1 - x, wide, wide, wide)),
        }
        return {name: _reach(field, 5) for name, field in seen.items()}

    def forward(self, slots: Tensor) -> Decoded:
        """Slots ``(..., m, slot_dim)`` to one picture per slot."""
        self._check(slots)
        flat = slots.flatten(0, -2)
        response = self._respond(flat)
        rgba = self.rest(response + self._embedding().to(response.dtype))
        rgba = rgba.unflatten(0, slots.shape[:-1])
        return Decoded(rgba[..., :3, :, :], rgba[..., 3, :, :])

    def _respond(self, slots: Tensor) -> Tensor:
        """The first layer without bias, of slots ``(k, slot_dim)`` in every pixel of the grid."""
        weight = self.first.weight
        # Autocast would round in between; only the last product is large.
        with full_precision(slots):
            taps = slots.to(weight.dtype) @ weight.flatten(1)
            taps = self.rows @ taps.reshape(-1, *weight.shape[1:])
        return taps @ self.columns.mT

    def _embedding(self) -> Tensor:
        """The first layer with bias, of the position embedding alone: ``(channels, H, W)``."""
        weight, project = self.first.weight, self.position.project
        with full_precision(weight):
            # Four ramps and a constant, each the product of a row factor and a column factor.
            parts = torch.cat((project.weight.mT, project.bias.unsqueeze(0)))
            taps = (parts @ weight.flatten(1)).reshape(-1, *weight.shape[1:])
            maps = self.down.unsqueeze(1) @ taps @ self.right.mT.unsqueeze(1)
            return maps.sum(0) + self.first.bias[:, None, None]  # pyright: ignore

    def _check(self, slots: Tensor) -> None:
        name, weight = "SpatialBroadcastDecoder", self.first.weight
        slot_dim = weight.shape[0]
        checks.check_matrix(name, "slots", slots, f"(..., slots m, {slot_dim})")
        if slots.shape[-1] != slot_dim:
            raise ValueError(
                f"{name}: slots have shape {tuple(slots.shape)}, expected (..., m, {slot_dim}). "
                "Make the decoder for slots of this size."
            )
        if slots.dtype != weight.dtype and not torch.is_autocast_enabled(slots.device.type):
            raise ValueError(
                f"{name}: slots are {slots.dtype}, expected {weight.dtype} like the decoder. "
                f"Convert one of them with .to({weight.dtype}), or use torch.autocast."
            )


def _keep_fields(module: nn.Module, fields: dict[str, Tensor]) -> None:
    """Register tensors that depend on a module's sizes only as buffers that are not saved.

    They are recomputed after loading a state, since a module created on the meta device has no
    values until then.
    """
    for name, value in fields.items():
        module.register_buffer(name, value, persistent=False)
    module.register_load_state_dict_post_hook(_renew_fields)  # pyright: ignore


def _renew_fields(module: Any, incompatible_keys: object) -> None:
    weight = next(module.parameters())
    for name, value in module.fields().items():
        fresh, kept = value.to(weight.dtype), getattr(module, name)
        if kept.device == fresh.device and kept.dtype == fresh.dtype:
            kept.copy_(fresh)
        else:
            setattr(module, name, fresh)


def _ramps(resolution: tuple[int, int], weight: Tensor) -> tuple[Tensor, Tensor]:
    """From 0 to 1 over rows and columns, on the device of a layer.

    Inside ``torch.device("meta")``, layers are always created on that device, but the result of
    ``torch.linspace`` is not if another library has temporarily replaced that function.
    """
    height, width = resolution
    device = weight.device
    return torch.linspace(0, 1, height, device=device), torch.linspace(0, 1, width, device=device)


def _reach(field: Tensor, kernel: int) -> Tensor:
    """What each tap of a centred transposed kernel sees of a field: ``(..., size, kernel)``."""
    size = field.shape[-1]
    taps = torch.arange(kernel, device=field.device)
    source = torch.arange(size, device=field.device).unsqueeze(1) + kernel // 2 - taps
    inside = (source >= 0) & (source < size)
    return field[..., source.clamp(0, size - 1)].masked_fill(~inside, 0.0)


def check_resolution(op: str, value: object) -> tuple[int, int]:
    """Height and width as a tuple; JSON turns tuples into lists."""
    sizes: list[object] = list(value) if isinstance(value, Sequence) else []  # pyright: ignore
    good = [s for s in sizes if isinstance(s, int) and not isinstance(s, bool) and s > 0]
    if len(sizes) != 2 or len(good) != 2:
        raise ValueError(
            f"{op}: resolution is {value!r}, expected a height and a width of at least 1, such as "
            "(64, 64)."
        )
    return good[0], good[1]
