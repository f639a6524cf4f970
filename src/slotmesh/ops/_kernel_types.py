"""Arguments and results of the kernels of ``sinkhorn`` and ``mesh``."""

from typing import NamedTuple

import torch
from torch import Tensor


class Operands(NamedTuple):
    """Tensors of a kernel: any batch B, the same in all; contiguous; None where nothing is."""

    cost: Tensor  # (B, m, n), any floating dtype up to float32
    noise: Tensor | None  # (B, m, n), in units of sigma
    a: Tensor | None  # (B, m), together with b or not at all
    b: Tensor | None  # (B, n)
    slots: Tensor | None  # (B, m), True where real
    inputs: Tensor | None  # (B, n)
    tau: Tensor | None  # (B,), used instead of the temperature
    init: Tensor | None  # (B, m), the first u


class Results(NamedTuple):
    """Results of the forward kernel."""

    plan: Tensor  # (B, m, n), in the dtype of the cost
    u: Tensor  # (B, m)
    v: Tensor  # (B, n)
    error: Tensor  # (B,), of the marginals
    n_iters: Tensor  # (B,), int64
    converged: Tensor  # (B,), bool
    temperature: Tensor  # (B,)
    changed: Tensor | None  # (B, m, n), the adjusted cost; None for Sinkhorn
    # For the backward kernel: (1 + kept steps, B, 3 n_iters, m padded to a power of two), or for
    # small matrices (1, B, n_iters + 3, m).
    trace: Tensor
    history: Tensor | None  # (kept steps, B, m, n), the costs before it, if any are kept


# The first results are for the caller, the others for the backward kernel.
SHOWN = 8


class Past(NamedTuple):
    """Values that the forward kernel saves for the backward kernel."""

    trace: Tensor
    history: Tensor | None  # None unless the gradient goes through all steps


class Incoming(NamedTuple):
    """Gradients of results; None where there is none."""

    plan: Tensor | None
    u: Tensor | None
    v: Tensor | None
    changed: Tensor | None


class Wanted(NamedTuple):
    """Which gradients to compute besides that of the cost, and the dtype of that one."""

    masses: bool
    tau: bool
    init: bool
    dtype: torch.dtype


class Gradients(NamedTuple):
    """Results of the backward kernel; None where not wanted."""

    cost: Tensor
    a: Tensor | None
    b: Tensor | None
    tau: Tensor | None
    init: Tensor | None
