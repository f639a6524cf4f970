"""On a CUDA device: the same numbers as on the CPU, and never a wait for the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from slotmesh import SlotAttention, mesh, sinkhorn
from slotmesh.nn import FixedGaussian, Mesh, Sinkhorn, Softmax
from slotmesh.ops import Transport, emd, set_value_checks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

OPS: dict[str, Callable[..., Transport]] = {
    "sinkhorn": sinkhorn,
    "sinkhorn tol": lambda c, **k: sinkhorn(c, n_iters=20, tol=1e-3, **k),
    "sinkhorn implicit": lambda c, **k: sinkhorn(c, n_iters=100, grad="implicit", **k),
    "mesh": lambda c, **k: mesh(c, noise=1e-2 * torch.sin(1e3 * c.detach()), **k),
    "mesh unroll": lambda c, **k: mesh(
        c, noise=1e-2 * torch.sin(1e3 * c.detach()), grad="unroll", potentials="reuse", **k
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_same_as_on_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    cost = torch.rand(3, 5, 33, dtype=torch.float64)
    mask = torch.rand(3, 33) > 0.3
    weight = torch.rand_like(cost)
    results = []
    for device in ("cpu", "cuda"):
        c = cost.clone().to(device).requires_grad_()
        t = OPS[name](c, input_mask=mask.to(device))
        (t.plan * weight.to(device)).sum().backward()
        assert c.grad is not None
        results.append((t.plan.detach().cpu(), c.grad.cpu()))
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", OPS)
def test_operations_do_not_wait(name: str, no_waiting: Any) -> None:
    cost = torch.rand(3, 5, 33, device="cuda", requires_grad=True)
    mask = torch.ones(3, 33, dtype=torch.bool, device="cuda")
    OPS[name](cost, input_mask=mask).plan.sum().backward()  # the first call may set things up
    with no_waiting():
        OPS[name](cost, input_mask=mask).plan.sum().backward()


@pytest.mark.parametrize("transport", [Softmax, Sinkhorn, Mesh])
def test_slot_attention_does_not_wait(transport: type, no_waiting: Any) -> None:
    attention = SlotAttention(16, 16, 4, transport=transport()).cuda()
    inputs = torch.randn(2, 50, 16, device="cuda")
    attention(inputs).slots.sum().backward()
    with no_waiting():
        attention(inputs).slots.sum().backward()


def test_value_checks_wait_only_when_asked_for(no_waiting: Any) -> None:
    bad = torch.full((2, 3), torch.nan, device="cuda")
    with no_waiting():
        sinkhorn(bad)
    before = set_value_checks("always")
    try:
        with pytest.raises(ValueError, match="not finite"):
            sinkhorn(bad)
    finally:
        set_value_checks(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transport", [Softmax, Sinkhorn, Mesh])
def test_autocast_keeps_slots_in_float32(transport: type, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    attention = SlotAttention(16, 16, 4, transport=transport(), init=FixedGaussian()).cuda()
    inputs = torch.randn(2, 50, 16, device="cuda")
    slots = attention.init((2,), 4)
    exact = attention(inputs, slots).slots
    with torch.autocast("cuda", dtype):
        rounded = attention(inputs, slots).slots
    rounded.sum().backward()
    assert rounded.dtype == torch.float32
    assert (rounded - exact).abs().max() < 0.2


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("transport", [Softmax, Sinkhorn, Mesh])
def test_compiled(transport: type) -> None:
    torch.manual_seed(0)
    attention = SlotAttention(16, 16, 4, transport=transport()).cuda()
    inputs = torch.randn(2, 50, 16, device="cuda")
    slots = torch.randn(2, 4, 16, device="cuda")
    if transport is Mesh:
        attention.transport.noise = 0.0
    eager = attention(inputs, slots).slots
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True)
    torch.testing.assert_close(compiled(inputs, slots).slots, eager, rtol=1e-3, atol=1e-3)
    # Another batch size makes torch compile again, for any.
    for n in (3, 5):
        more, start = torch.randn(n, 50, 16, device="cuda"), torch.randn(n, 4, 16, device="cuda")
        expected = attention(more, start).slots
        torch.testing.assert_close(compiled(more, start).slots, expected, rtol=1e-3, atol=1e-3)


def test_cuda_graph_of_mesh() -> None:
    cost = torch.rand(4, 5, 33, device="cuda")
    noise = 1e-3 * torch.randn_like(cost)
    eager = mesh(cost, noise=noise).plan
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mesh(cost, noise=noise).plan
    graph.replay()
    torch.testing.assert_close(captured, eager)


def test_emd_comes_back_to_the_device() -> None:
    cost = torch.rand(2, 3, 7, device="cuda")
    t = emd(cost)
    assert t.plan.device == cost.device
    torch.testing.assert_close(t.plan.cpu(), emd(cost.cpu()).plan)
