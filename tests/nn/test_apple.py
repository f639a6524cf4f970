"""On an Apple GPU, which has no float64: fake tensors there, and an error where one is float64.

Fake tensors compute nothing, so this is about types and places. Gradients need a real device: there
the CPU is one that has no float64.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from slotmesh import SlotAttention, emd, mesh, sinkhorn
from slotmesh.nn import Mesh, Sinkhorn, Softmax
from slotmesh.ops import _implicit as implicit
from slotmesh.ops import assign, entropy, pairwise_cost
from slotmesh.worlds import make_world

MPS = torch.device("mps", 0)


class NoFloat64(TorchDispatchMode):
    """A kind of device without float64: a TypeError where a tensor there is one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor) and x.device.type == self.kind and x.dtype == torch.float64:
                raise TypeError(f"{func} made a float64 tensor on {x.device}")
        return made


@pytest.fixture
def apple() -> Iterator[None]:
    """A machine with an Apple GPU."""
    with FakeTensorMode(allow_non_fake_inputs=True), NoFloat64("mps"), torch.no_grad():
        yield


def test_float64_is_found(apple: None) -> None:
    there = torch.rand(3, device=MPS)
    with pytest.raises(TypeError, match="float64 tensor on mps"):
        there.double()
    assert there.cpu().double().dtype == torch.float64


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sinkhorn": lambda c: sinkhorn(c).plan,
    "sinkhorn tol": lambda c: sinkhorn(c, tol=1e-3).plan,
    "sinkhorn implicit": lambda c: sinkhorn(c, grad="implicit").plan,
    "mesh": lambda c: mesh(c).plan,
    "mesh implicit": lambda c: mesh(c, grad="implicit").plan,
    "mesh unroll": lambda c: mesh(c, grad="unroll").plan,
    "entropy": lambda c: entropy(sinkhorn(c).plan),
    "pairwise_cost": lambda c: pairwise_cost(c, c),
}


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU without float64, and without the path in C, which is for real CPUs."""
    for module in ("sinkhorn", "mesh"):
        monkeypatch.setattr(sys.modules[f"slotmesh.ops.{module}"], "use_c", lambda *_: False)
    # Where there is none it is computed elsewhere, as tested below.
    monkeypatch.setattr(implicit, "_double", lambda x: x)
    with NoFloat64("cpu"):
        yield


@pytest.mark.parametrize("name", OPS)
def test_operations_and_gradients_are_in_float32(single: None, name: str) -> None:
    cost = torch.rand(2, 3, 9, requires_grad=True)
    found = OPS[name](cost)
    assert found.dtype == torch.float32
    found.square().sum().backward()
    assert cost.grad is not None


@pytest.mark.parametrize("transport", [Softmax, Sinkhorn, Mesh])
def test_slot_attention_is_in_float32(single: None, transport: type[nn.Module]) -> None:
    attention = SlotAttention(16, 16, 4, transport=transport())
    optimiser = torch.optim.Adam(attention.parameters())
    attention(torch.rand(2, 50, 16)).slots.square().sum().backward()
    optimiser.step()


@pytest.mark.parametrize("shape", [(2, 3, 9), (9, 3)])
def test_the_implicit_gradient_is_computed_on_the_cpu(apple: None, shape: tuple[int, ...]) -> None:
    plan = torch.rand(shape, device=MPS)
    for x in implicit.plan_adjoint(plan, plan):
        assert x.device == MPS


def test_exact_transport_is_computed_on_the_cpu(apple: None) -> None:
    cost = torch.rand(2, 3, 9, device=MPS)
    a, b = torch.ones(3, device=MPS), torch.full((9,), 1 / 3, device=MPS)
    slots = torch.ones(2, 3, dtype=torch.bool, device=MPS)
    for transport in (emd(cost, a, b), emd(cost.half(), a, b, slot_mask=slots)):
        for x in (transport.plan, transport.u, transport.v, transport.marginal_error):
            assert x.device == MPS
        assert transport.plan.dtype == transport.cost.dtype
    assert assign(cost).device == MPS


@pytest.mark.parametrize("name", ["multi-dsprites", "clevr", "clevrer-s", "random-objects"])
def test_worlds_say_that_they_need_it(name: str) -> None:
    with pytest.raises(ValueError, match=r"device is mps, which has no float64 .*\.to\(device\)"):
        make_world(name, device="mps")
