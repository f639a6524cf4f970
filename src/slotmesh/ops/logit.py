"""One logit per element through a hidden layer, as an operator of torch on top of a kernel."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._fused import cannot_run
from slotmesh.ops._private import custom_op

# Features of an element and width of the hidden layer that fit on the chip beside a block.
MOST_FEATURES, MOST_HIDDEN = 128, 128
# The kernel numbers elements in 32 bits, and slightly beyond the last.
MOST_ELEMENTS = 2**30


def use_logits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel runs: on a GPU under autocast to bfloat16, in which it multiplies."""
    # Stacked models have one weight per model.
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

    Products are in bfloat16; everything else is in float32.
    """
    flat = x.bfloat16().reshape(-1, x.shape[-1])
    return logit_op(flat, weight, bias, last).view(x.shape[:-1])


@custom_op("slotmesh::logit", mutates_args=())
def logit_op(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor) -> Tensor:
    """(n, d), (h, d), (h,), (h,) to float32 (n,)."""
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
    """Gradients of x, and (h, d + 2) those of weight, bias and last side by side."""
    from slotmesh.ops._triton import logit

    h, d = weight.shape
    if x.shape[0] == 0:
        return torch.zeros_like(x), weight.new_zeros((h, d + 2), dtype=torch.float32)
    x, weight, bias, last, grad = (t.contiguous() for t in (x, weight, bias, last, grad))
    grad_x = torch.empty_like(x)
    rest = x.new_empty((h, d + 2), dtype=torch.float32)
    logit.backward(x, weight, bias, last, grad, grad_x, rest)
    return grad_x, rest


@logit_backward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    h, d = weight.shape
    return grad_x, weight.new_empty((h, d + 2), dtype=torch.float32)


def _logit(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:1], dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, weight, bias, last = ctx.saved_tensors
    grad_x, rest = logit_backward(*ctx.saved_tensors, grad)
    d = weight.shape[1]
    return (
        grad_x,
        rest[:, :d].to(weight.dtype),
        rest[:, d].to(bias.dtype),
        rest[:, d + 1].to(last.dtype),
    )


logit_op.register_autograd(_backward, setup_context=_setup)
