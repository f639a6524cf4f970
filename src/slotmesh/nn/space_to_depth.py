"""Convolutions of few channels, computed as convolutions of many where that is faster.

A block of pixels becomes one pixel that has the channels of all of them (space to depth), and the
kernel of a convolution becomes one between blocks. The result is the same up to rounding. There are
zeros in the new kernel, so this takes more operations: 1.4 times as many for a kernel of 5 x 5 and
blocks of 2 x 2. But with 32 or 64 channels, the matrix units of a GPU are mostly idle.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Block = tuple[int, int]
"""Height and width."""

PIXEL: Block = (1, 1)
# Up to how many channels which blocks are fastest (H200, bfloat16 and TF32), by the smaller of the
# numbers of channels that go in and come out.
FEW, MOST = 32, 64
BLOCK_OF_FEW, BLOCK_OF_MOST = (2, 2), (1, 2)
# Smaller images keep the GPU waiting for the host in any case.
LEAST_PIXELS = 32 * 32


class Convolutions(nn.Sequential):
    """Convolutions, of which each keeps or divides the size of the image, and ReLUs between them.

    The same as :class:`torch.nn.Sequential`, but on a GPU and in half precision or TF32, layers
    with few channels are computed on blocks of pixels.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from slotmesh.nn.space_to_depth import Convolutions
        >>> layers = Convolutions(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU())
        >>> layers(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 32, 64, 64])
    """

    def forward(self, input: Tensor) -> Tensor:
        """``(batch, channels, height, width)`` to the same with other sizes."""
        x, block = input, PIXEL
        for layer in self:
            if not isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                x = layer(x)
                continue
            wanted = block_for(layer, x, block)
            if wanted != block:
                x, block = space_to_depth(depth_to_space(x, block), wanted), wanted
            x = layer(x) if block == PIXEL else convolve_blocks(x, layer, block)
        return depth_to_space(x, block)


def block_for(layer: nn.Conv2d | nn.ConvTranspose2d, x: Tensor, block: Block = PIXEL) -> Block:
    """The blocks with which a layer is fastest on an image that consists of ``block`` now."""
    fewer = min(layer.in_channels, layer.out_channels)
    more = max(layer.in_channels, layer.out_channels)
    if layer.stride != (1, 1) or more > MOST or not _on_matrix_units(x):
        return PIXEL
    best = BLOCK_OF_FEW if fewer <= FEW else BLOCK_OF_MOST
    height, width = x.shape[-2] * block[0], x.shape[-1] * block[1]
    whole = height % best[0] == 0 and width % best[1] == 0
    return best if whole and height * width >= LEAST_PIXELS else PIXEL


def _on_matrix_units(x: Tensor) -> bool:
    """Whether a convolution of x is computed by a GPU's matrix units."""
    if x.device.type != "cuda":
        return False
    half = (torch.bfloat16, torch.float16)
    if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") in half:
        return True
    return x.dtype in half or (x.dtype == torch.float32 and _tf32())


@torch.compiler.assume_constant_result  # pyright: ignore
def _tf32() -> bool:
    """Whether cuDNN may compute convolutions in TF32; torch's compiler cannot look that up."""
    return torch.backends.cudnn.conv.fp32_precision == "tf32"  # pyright: ignore


def space_to_depth(x: Tensor, block: Block) -> Tensor:
    """``(B, C, H, W)`` to ``(B, height * width * C, H / height, W / width)``, channels last.

    The channels of a pixel stay together, so that ``(1, width)`` is only another view of an image
    in that memory format.
    """
    if block == PIXEL:
        return x
    (height, width), (batch, channels, rows, columns) = block, x.shape
    split = (batch, rows // height, height, columns // width, width, channels)
    return x.permute(0, 2, 3, 1).reshape(split).transpose(2, 3).flatten(3).permute(0, 3, 1, 2)


def depth_to_space(x: Tensor, block: Block) -> Tensor:
    """The inverse of :func:`space_to_depth`."""
    if block == PIXEL:
        return x
    (height, width), (batch, _, rows, columns) = block, x.shape
    pixels = x.permute(0, 2, 3, 1).reshape(batch, rows, columns, height, width, -1)
    whole = (batch, rows * height, columns * width, -1)
    return pixels.transpose(2, 3).reshape(whole).permute(0, 3, 1, 2)


def convolve_blocks(x: Tensor, layer: nn.Conv2d | nn.ConvTranspose2d, block: Block) -> Tensor:
    """A layer with stride 1 and centred odd kernels, applied to ``space_to_depth(image, block)``.

    Returns:
        ``space_to_depth(layer(image), block)``.
    """
    weight = layer.weight
    if isinstance(layer, nn.ConvTranspose2d):
        weight = weight.transpose(0, 1).flip(2, 3)
    kernel = kernel_of_blocks(weight, block)
    bias = None if layer.bias is None else layer.bias.repeat(block[0] * block[1])
    padding = (kernel.shape[-2] // 2, kernel.shape[-1] // 2)
    return F.conv2d(x, kernel, bias, padding=padding)


def kernel_of_blocks(weight: Tensor, block: Block) -> Tensor:
    """The kernel between blocks of a kernel ``(out, in, K, L)`` between pixels, K and L odd.

    For each pixel of a block that comes out, it is the same kernel, moved to where that pixel is
    within the blocks that go in, with zeros around it.
    """
    half = [size // 2 for size in weight.shape[2:]]
    # Blocks on each side that a kernel reaches into, and pixels of all blocks in a row.
    reach = [-(-h // b) for h, b in zip(half, block, strict=True)]
    whole = [b * (2 * r + 1) for b, r in zip(block, reach, strict=True)]

    def room(side: int, pixel: int) -> tuple[int, int]:
        """Zeros before and after the kernel of a pixel."""
        before = block[side] * reach[side] - half[side] + pixel
        return before, whole[side] - weight.shape[2 + side] - before

    pixels = [(y, x) for y in range(block[0]) for x in range(block[1])]
    moved = torch.stack([F.pad(weight, (*room(1, x), *room(0, y))) for y, x in pixels])
    # (pixel out, out, in, block row, pixel row in, block column, pixel column in)
    rows, columns = (2 * r + 1 for r in reach)
    parts = moved.reshape(len(pixels), *weight.shape[:2], rows, block[0], columns, block[1])
    return parts.permute(0, 1, 4, 6, 2, 3, 5).reshape(len(pixels) * len(weight), -1, rows, columns)
