"""What the figures share: arrays, the noise of MESH, and a callback for progress."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
OnProgress = Callable[[int, int], None]
"""Called with the number of parts done and the total."""
NOISE = 1e-3
"""Standard deviation of the noise that breaks ties."""


def noop(done: int, total: int) -> None:
    """Ignore progress."""
