"""Encoders from images to the inputs of slot attention."""

from collections.abc import Sequence

from torch import Tensor, nn

from slotmesh.nn.position import PositionEmbedding, check_resolution
from slotmesh.ops import checks


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
        out_dim = channels if out_dim is None else out_dim
        for name, value in (
            ("channels", channels),
            ("in_channels", in_channels),
            ("out_dim", out_dim),
            ("kernel_size", kernel_size),
        ):
            checks.check_count("ConvEncoder", name, value, 1)
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
