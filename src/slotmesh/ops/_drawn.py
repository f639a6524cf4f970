"""Random numbers that are drawn before they are asked for, as compiled code wants them."""

import torch
from torch import Tensor


class Drawn:
    """Hands out numbers drawn earlier, in the order in which they were drawn.

    Args:
        values: Tensors of the shapes that will be asked for.
    """

    def __init__(self, values: list[Tensor]) -> None:
        self.values = values
        self.taken = 0

    def take(self, like: Tensor) -> Tensor:
        """The next ones, standard normal, of the shape of ``like``."""
        value = self.values[self.taken]
        self.taken += 1
        return value


class Drawing:
    """Draws, and remembers what was asked for.

    Args:
        generator: To draw from.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.asked: list[tuple[torch.Size, torch.dtype]] = []

    def take(self, like: Tensor) -> Tensor:
        """New ones, standard normal, of the shape of ``like``."""
        self.asked.append((like.shape, like.dtype))
        return self._draw(like.shape, like.dtype)

    def again(self) -> list[Tensor]:
        """New ones of all the shapes that were asked for, in that order."""
        return [self._draw(shape, dtype) for shape, dtype in self.asked]

    def _draw(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        source = self.generator
        return torch.randn(shape, dtype=dtype, device=source.device, generator=source)
