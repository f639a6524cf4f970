"""Operations that give the same bits on every device."""

import numpy as np
import torch
from torch import Tensor


def sqrt(x: Tensor) -> Tensor:
    """The square root, correctly rounded in float64.

    torch's own is on CUDA; on the CPU a vector library may be one bit off, and NumPy's is not.
    """
    if x.dtype != torch.float64 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return x.sqrt()
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))
