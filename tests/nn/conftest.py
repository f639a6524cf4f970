"""Helpers that the tests of slotmesh.nn share; small sizes, float64, fixed seeds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from slotmesh import SlotAttention
from slotmesh.nn import EMD, Mesh, Sinkhorn, SlotTransport, Softmax

INPUT_DIM, SLOT_DIM = 6, 5
TRANSPORTS = {"SA": Softmax, "SA-SH": Sinkhorn, "SA-EMD": EMD, "SA-MESH": Mesh}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", params=list(TRANSPORTS))
def variant(request: pytest.FixtureRequest) -> Callable[..., SlotTransport]:
    """Each of the four transports in turn."""
    return TRANSPORTS[request.param]


@pytest.fixture(scope="session", params=list(TRANSPORTS))
def quiet(request: pytest.FixtureRequest) -> Callable[..., SlotTransport]:
    """Each of the four transports in turn, without the noise of MESH."""
    if request.param == "SA-MESH":
        return lambda **settings: Mesh(**{"noise": 0.0, **settings})
    return TRANSPORTS[request.param]


@pytest.fixture(scope="session")
def build() -> Callable[..., SlotAttention]:
    """Make a small float64 SlotAttention whose weights are large enough to tell slots apart."""

    def make(
        transport: SlotTransport | None = None, n_slots: int = 3, **settings: Any
    ) -> SlotAttention:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            module = SlotAttention(INPUT_DIM, SLOT_DIM, n_slots, transport, **settings).double()
            with torch.no_grad():
                for name, value in module.named_parameters():
                    # Fresh LayerNorms are the identity: a swapped pair would go unnoticed.
                    if "norm" in name or name.startswith("mlp.0"):
                        value.add_(0.3 * torch.randn_like(value))
        return module

    return make


@pytest.fixture(scope="session")
def draw() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Draw inputs and start slots, the same ones for the same seed."""

    def make(
        *batch: int, n: int = 7, m: int = 3, seed: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rng = torch.Generator().manual_seed(seed)
        inputs = torch.randn(*batch, n, INPUT_DIM, dtype=torch.float64, generator=rng)
        slots = torch.randn(*batch, m, SLOT_DIM, dtype=torch.float64, generator=rng)
        return inputs, slots

    return make


@pytest.fixture(scope="session")
def close() -> Callable[..., None]:
    """Compare tensors (or sequences of them) to an absolute tolerance."""

    def check(actual: Any, expected: Any, tol: float = 1e-12) -> None:
        torch.testing.assert_close(actual, expected, rtol=0.0, atol=tol)

    return check


@pytest.fixture(scope="session")
def gradients() -> Callable[..., dict[str, torch.Tensor]]:
    """Gradients of a fixed function of the slots by every parameter and the given tensors."""

    def compute(
        module: torch.nn.Module, slots: torch.Tensor, *tensors: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        rng = torch.Generator().manual_seed(7)
        weight = torch.randn(slots.shape[-1], dtype=torch.float64, generator=rng).to(slots.dtype)
        # Squares, or slots of equal sums would have gradients that cancel.
        loss = (slots * weight).square().sum()
        named = {k: p for k, p in module.named_parameters() if p.requires_grad}
        named |= {f"tensor {i}": x for i, x in enumerate(tensors)}
        grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return {k: g for k, g in zip(named, grads, strict=True) if g is not None}

    return compute
