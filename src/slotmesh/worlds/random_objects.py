"""Random vectors among zeros: the paper's first experiment."""

from dataclasses import dataclass

import torch
from torch import Tensor

from slotmesh.worlds._normal import normal
from slotmesh.worlds.record import TensorRecord
from slotmesh.worlds.world import Endless


@dataclass(frozen=True)
class VectorSample(TensorRecord):
    """A batch of sets of vectors, and the vectors to find; a slice of it is one too."""

    inputs: Tensor
    """float32 ``(batch, n_objects + n_background, dim)``: the objects, then the zeros."""
    targets: Tensor
    """float32 ``(batch, n_objects, dim)``: the objects."""
    index: Tensor
    """int64 ``(batch)``: which samples these are."""


class RandomObjects(Endless[VectorSample]):
    """Sets of random vectors and of zeros (paper, section 5.1).

    Each set has ``n_objects`` vectors from N(0, sigma^2 I), which are to be found, and
    ``n_background`` zero vectors. The random vectors come first: slot attention treats its inputs
    as a set and cannot tell, but a model that sees positions could, so shuffle the inputs for such
    a model.

    Sample ``i`` is a pure function of (seed, i), bit-identical on every device and in every batch.
    It has no image, so this class is not a :class:`~slotmesh.worlds.World`, but you can use it like
    one.

    Args:
        seed: Each seed is a different dataset.
        device: Where samples are computed.
        sigma: Standard deviation; the smaller it is, the more objects resemble the background.
        n_objects: Number of random vectors per set.
        n_background: Number of zero vectors per set.
        dim: Length of a vector.

    Example:
        >>> from slotmesh.worlds import RandomObjects
        >>> sample = RandomObjects(sigma=0.1).sample(range(8))
        >>> sample.inputs.shape, sample.targets.shape
        (torch.Size([8, 105, 32]), torch.Size([8, 5, 32]))
    """

    name = "random-objects"

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        sigma: float = 1.0,
        n_objects: int = 5,
        n_background: int = 100,
        dim: int = 32,
    ) -> None:
        if not 0 < sigma < float("inf"):
            raise ValueError(f"RandomObjects: sigma is {sigma}, expected a finite number above 0.")
        if n_objects < 1 or dim < 1 or n_background < 0:
            raise ValueError(
                f"RandomObjects: n_objects is {n_objects}, n_background {n_background}, dim {dim}; "
                "expected at least 1, 0 and 1."
            )
        super().__init__(seed=seed, device=device)
        self.sigma = sigma
        self.n_objects = n_objects
        self.n_background = n_background
        self.dim = dim

    def make(self, index: Tensor) -> VectorSample:
        """Make the samples of these indices, int64 ``(batch)`` on the world's device."""
        numbers = normal(self.seed, index, "objects", (self.n_objects, self.dim))
        targets = (numbers * self.sigma).to(torch.float32)
        zeros = targets.new_zeros(len(index), self.n_background, self.dim)
        return VectorSample(torch.cat((targets, zeros), dim=1), targets, index)
