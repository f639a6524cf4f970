"""A number of each element by a hidden layer, as one operator of torch on top of a kernel."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._fused import cannot_run
from slotmesh.ops._typed import custom_op

# Of an element, and of the hidden layer: what fits on the chip beside a block of elements.
MOST_FEATURES, MOST_HIDDEN = 128, 128
# The kernel numbers elements in 32 bits, a little beyond the last.
MOST_ELEMENTS = 2**30


def use_logits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel is to run: on a GPU under autocast to bfloat16, as which it multiplies."""
    # Stacked models have a weight for each.
    if not x.is_cuda or weight.ndim != 2 or not torch.is_autocast_enabled("cuda"):
        return False
    hidden, features = weight.shape
    return (
        torch.get_autocast_dtype("cuda") == torch.bfloat16
        and features <= MOST_FEATURES
        and hidden <= MOST_HIDDEN
        and x.numel() <= MOST_ELEMENTS * features
        and cannot_run("elements", x) is None
    )


def logits(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor) -> Tensor:
    """``relu(x @ weight.T + bias) @ last`` of ``(..., d)``, with ``(h, d)``, ``(h,)``, ``(h,)``.

    Products are in bfloat16; all else, the hidden layer and the result are in float32.
    """
    flat = x.bfloat16().reshape(-1, x.shape[-1])
    return logit_op(flat, weight, bias, last).view(x.shape[:-1])


@custom_op("slotmesh::logit", mutates_args=())
def logit_op(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor) -> Tensor:
    """Float32 (n,) of (n, d), (h, d), (h,), (h,)."""
    from slotmesh.ops._triton import logit

    found = _logit(x)
    if found.numel():
        x, weight, bias, last = (t.contiguous() for t in (x, weight, bias, last))
        logit.forward(x, weight, bias, last, found)
    return found


@logit_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor) -> Tensor:
    return _logit(x)


@custom_op("slotmesh::logit_backward", mutates_args=())
def logit_backward(
    x: Tensor, weight: Tensor, bias: Tensor, last: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients by x, and (h, d + 2) by weight, bias and last side by side."""
    from slotmesh.ops._triton import logit

    h, d = weight.shape
    if x.shape[0] == 0:
        return torch.zeros_like(x), weight.new_zeros((h, d + 2), dtype=torch.float32)
    x, weight, bias, last, grad = (t.contiguous() for t in (x, weight, bias, last, grad))
    by_x = torch.empty_like(x)
    rest = x.new_empty((h, d + 2), dtype=torch.float32)
    logit.backward(x, weight, bias, last, grad, by_x, rest)
    return by_x, rest


@logit_backward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    h, d = weight.shape
    return by_x, weight.new_empty((h, d + 2), dtype=torch.float32)


def _logit(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:1], dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, weight, bias, last = ctx.saved_tensors
    by_x, rest = logit_backward(*ctx.saved_tensors, grad)
    d = weight.shape[1]
    return (
        by_x,
        rest[:, :d].to(weight.dtype),
        rest[:, d].to(bias.dtype),
        rest[:, d + 1].to(last.dtype),
    )


logit_op.register_autograd(_backward, setup_context=_setup)
