"""The kernel of a hidden layer with one output against torch, values and every gradient."""

import pytest
import torch
from torch import Tensor

from slotmesh.nn import MarginalHead
from slotmesh.ops import logit as _logit
from slotmesh.ops.logit import logit_op, logits

from ._kernels import near
from ._reference import randn

# Elements, features, hidden: odd, more than a block of elements, more than one round of programs;
# few, many and wide, as the gradient tells them apart for two programs.
SHAPES = [(1, 1, 1), (37, 7, 20), (300, 64, 128), (513, 128, 33), (130, 100, 70)]


def leaves(n: int, d: int, h: int) -> list[Tensor]:
    """Inputs that bfloat16 holds exactly."""
    sizes = [(n, d), (h, d), (h,), (h,)]
    return [randn(*size, seed=i, dtype=torch.float32).bfloat16() for i, size in enumerate(sizes)]


def truth(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor) -> Tensor:
    return torch.relu(x @ weight.mT + bias) @ last


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(device, shape, monkeypatch):
    from slotmesh.ops._triton import logit as kernels

    # So that programs have several blocks of elements.
    monkeypatch.setattr(kernels, "PROGRAMS", 2)
    inputs = leaves(*shape)
    grad = randn(shape[0], seed=9)
    exact = [x.double().requires_grad_() for x in inputs]
    expected = truth(*exact)
    wanted = torch.autograd.grad(expected, exact, grad)
    x, *weights = (x.to(device) for x in inputs)
    found = [x.requires_grad_(), *(w.float().requires_grad_() for w in weights)]
    actual = logits(*found)
    assert actual.dtype == torch.float32
    near(actual, expected, 1e-5, "logit")
    gradients = torch.autograd.grad(actual, found, grad.to(device, torch.float32))
    # The hidden layer's gradient is rounded before it is multiplied, as autocast does it.
    half = torch.finfo(torch.bfloat16).eps
    for name, share, one, right in zip(
        ("x", "weight", "bias", "last"), (half, half, 1e-5, 1e-5), gradients, wanted, strict=True
    ):
        near(one, right, share, name)


def test_more_parts_than_are_summed_at_once(device):
    from slotmesh.ops._triton import logit as kernels

    n = kernels.FEW["N"] * (kernels.MOST_PARTS + 2) + 1
    x, *weights = leaves(n, 5, 9)
    grad = randn(n, seed=9)
    exact = [w.double().requires_grad_() for w in weights]
    wanted = torch.autograd.grad(truth(x.double(), *exact), exact, grad)
    found = [w.float().to(device).requires_grad_() for w in weights]
    actual = logits(x.to(device), *found)
    gradients = torch.autograd.grad(actual, found, grad.to(device, torch.float32))
    half = torch.finfo(torch.bfloat16).eps
    for name, share, one, right in zip(
        ("weight", "bias", "last"), (half, 1e-5, 1e-5), gradients, wanted, strict=True
    ):
        near(one, right, share, name)


def test_leading_dimensions_and_float32_elements(device):
    x, *weights = (x.float().to(device) for x in leaves(30, 5, 9))
    found = logits(x.view(2, 3, 5, 5), *weights)
    assert found.shape == (2, 3, 5)
    near(found.flatten(), truth(*(t.double().cpu() for t in (x, *weights))), 1e-5, "logit")


def test_transposed_elements(device):
    x, *weights = (x.to(device) for x in leaves(40, 8, 16))
    strided = x.mT.contiguous().mT
    assert not strided.is_contiguous()
    near(logits(strided, *weights), logits(x, *weights), 0.0, "logit")


def test_nothing(device):
    inputs = [x.to(device).requires_grad_() for x in leaves(0, 5, 9)]
    found = logits(*inputs)
    assert found.shape == (0,)
    for gradient, one in zip(torch.autograd.grad(found.sum(), inputs), inputs, strict=True):
        assert gradient.shape == one.shape
        assert not gradient.any()


def test_operator_is_well_formed(device):
    inputs = [x.to(device).requires_grad_() for x in leaves(20, 5, 9)]
    torch.library.opcheck(logit_op, tuple(inputs))


def test_not_on_the_cpu():
    x, weight, *_ = leaves(3, 4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert not _logit.use_logits(x, weight)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_the_marginal_head_uses_it_under_autocast(monkeypatch, compiled):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    from slotmesh.ops._triton import logit as kernels

    torch.manual_seed(0)
    head = MarginalHead(32, 64).cuda()
    x = randn(4, 50, 32, seed=0, dtype=torch.float32).cuda().requires_grad_()
    weight = randn(4, 50, seed=1, dtype=torch.float32).cuda()
    calls = []
    forward = kernels.forward
    monkeypatch.setattr(kernels, "forward", lambda *a: calls.append(a) or forward(*a))
    leaf = [x, *head.parameters()]
    wanted = torch.autograd.grad(head(x, 3.0), leaf, weight)
    assert not calls
    run = torch.compile(head, fullgraph=True) if compiled else head
    with torch.autocast("cuda", torch.bfloat16):
        share = run(x, 3.0)
    assert len(calls) == 1
    assert share.dtype == torch.float32
    near(share, head(x, 3.0), 0.02, "share")
    for one, right in zip(torch.autograd.grad(share, leaf, weight), wanted, strict=True):
        near(one, right, 0.1, "gradient")
