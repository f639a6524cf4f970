"""What is rendered: a batch of scenes, and the lens of the camera."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from slotmesh.worlds.record import TensorRecord

SHAPES = ("cube", "sphere", "cylinder", "torus")
"""Names of ``Scene.shape``. All fit into the cube [-1, 1]^3 times ``Scene.size``; the edges of
cubes and cylinders are rounded. The torus stands upright, its hole along the object's y axis."""

RUBBER, METAL = 0, 1
"""Values of ``Scene.material``; from 2 on, the textures of ``textures.TEXTURES``."""


@dataclass(frozen=True)
class Lens:
    """The part of the world that the image shows: half-widths of a window at distance one.

    >>> Lens.of(focal=525, width=480, height=320)  # the whole image of CLEVR
    Lens(tan_x=0.45714285714285713, tan_y=0.3047619047619048)
    """

    tan_x: float
    """Half the width of the window over the focal length."""
    tan_y: float
    """Half the height of the window over the focal length."""

    @classmethod
    def of(
        cls, focal: float, width: float, height: float, crop: tuple[float, float] | None = None
    ) -> Self:
        """Make the lens of a camera from its focal length and image size in pixels.

        Args:
            focal: Focal length in pixels.
            width: Width of the whole image in pixels.
            height: Height of the whole image in pixels.
            crop: (width, height) of the centre crop that is kept; None keeps the whole image.
        """
        wide, high = crop or (width, height)
        return cls(wide / 2 / focal, high / 2 / focal)


CLEVR_LENS = Lens.of(focal=525, width=480, height=320)


@dataclass(frozen=True)
class Scene(TensorRecord):
    """A batch of scenes of at most ``n`` objects on the ground plane z = 0.

    Geometry is float64: which object a pixel shows is decided with correctly rounded operations
    only, so that masks are the same bits on every device. Rows that are not ``present`` may hold
    anything finite.
    """

    position: Tensor
    """float64 ``(batch, n, 3)``: centres."""
    rotation: Tensor
    """float64 ``(batch, n, 3, 3)``: from the object's axes to the world's; columns are axes."""
    size: Tensor
    """float64 ``(batch, n)``: half-extents, above 0."""
    shape: Tensor
    """int64 ``(batch, n)``: index in ``SHAPES``."""
    material: Tensor
    """int64 ``(batch, n)``: ``RUBBER``, ``METAL``, or 2 + the index of a texture."""
    colour: Tensor
    """``(batch, n, 3)``: albedo in [0, 1] (CLEVR's RGB / 255); textures have their own."""
    present: Tensor
    """bool ``(batch, n)``: which rows are objects."""
    camera: Tensor
    """float64 ``(batch, 3)``: position of the camera, above the ground."""
    lamps: Tensor
    """``(batch, 4, 3)``: positions of the key, fill, back and area lamps."""
    target: Tensor | None = None
    """float64 ``(batch, 3)``: what the camera looks at; the origin if None."""
    ground: Tensor | None = None
    """int64 ``(batch)``: material of the ground, as ``material``; ``RUBBER`` is CLEVR's plain grey.
    None is the same, and no object has a texture either."""


def yaw_matrix(cos: Tensor, sin: Tensor) -> Tensor:
    """Rotation about the z axis: ``(...)`` and ``(...)`` to ``(..., 3, 3)``."""
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    rows = (cos, -sin, zero, sin, cos, zero, zero, zero, one)
    return torch.stack(rows, dim=-1).unflatten(-1, (3, 3))
