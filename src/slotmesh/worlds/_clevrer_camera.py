"""The camera of CLEVRER, and what stands in its view."""

import math

from torch import Tensor

# 5 units from the origin, 30 degrees above the ground, looking at the origin along -x, with the
# focal length of CLEVR: rendered annotations then lie on the real frames to 0.4 pixels (median).
DISTANCE = 5.0
COS, SIN = math.sqrt(3) / 2, 0.5
FOCAL, WIDTH, HEIGHT = 525.0, 480.0, 320.0


def in_view(x: Tensor, y: Tensor, margin: float = 0.0, z: float = 0.2) -> Tensor:
    """True where an object's centre projects into the frame.

    Args:
        x: Of the centre, any shape.
        y: Of the centre, the same shape.
        margin: How far outside the frame still counts, in world units at the object's distance.
        z: Of the centre.
    """
    depth = DISTANCE - (x * COS + z * SIN)
    up = z * COS - x * SIN
    # Without a division, and False behind the camera.
    inside_x = (y.abs() - margin) * (FOCAL * 2 / WIDTH) <= depth
    inside_y = (up.abs() - margin) * (FOCAL * 2 / HEIGHT) <= depth
    return inside_x & inside_y & (depth > 0)
