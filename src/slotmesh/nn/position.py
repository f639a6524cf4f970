"""Position embedding for grids of features."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from slotmesh.ops import checks


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
        checks.check_count("PositionEmbedding", "dim", dim, 1)
        self.resolution = check_resolution("PositionEmbedding", resolution)
        self.project = nn.Linear(4, dim)
        y, x = (torch.linspace(0.0, 1.0, size) for size in self.resolution)
        y, x = torch.meshgrid(y, x, indexing="ij")
        # Determined by the resolution, so not saved.
        self.register_buffer("ramps", torch.stack((x, 1 - x, y, 1 - y), -1), persistent=False)
        self.ramps: Tensor

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
