"""Small models that the tests of slotmesh.models share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from slotmesh.models import ObjectDiscovery, PropertyPredictor, SetCopier, VideoObjectDiscovery
from slotmesh.nn import EMD, LearnedNoise, Mesh, Sinkhorn, SlotTransport, Softmax

TRANSPORTS: dict[str, Callable[[], SlotTransport]] = {
    "SA": Softmax,
    "SA-SH": lambda: Sinkhorn(n_iters=2),
    "SA-EMD": lambda: EMD(n_iters=2),
    "SA-MESH": lambda: Mesh(n_steps=2, n_iters=2),
}
# Fewer channels could all be dead at the start.
SMALL = {"channels": 8, "slot_dim": 6, "mlp_dim": 7, "n_iters": 2}
# Odd and not square: a swapped pair of sizes does not go unnoticed.
H, W = 7, 9

MODELS: dict[str, Callable[..., torch.nn.Module]] = {
    "copier": lambda *a, **k: SetCopier(6, 3, *a, **{"mlp_dim": 7, "n_iters": 2, **k}),
    "properties": lambda *a, **k: PropertyPredictor(
        3, *a, **{**SMALL, "resolution": (2 * H, 2 * W), "n_properties": 5, **k}
    ),
    "discovery": lambda *a, **k: ObjectDiscovery(3, *a, **{**SMALL, "resolution": (H, W), **k}),
    "video": lambda *a, **k: VideoObjectDiscovery(
        3, *a, **{**SMALL, "resolution": (H, W), "transition": LearnedNoise(hidden_dim=4), **k}
    ),
}
DATA: dict[str, tuple[int, ...]] = {
    "copier": (2, 8, 6),
    "properties": (2, 3, 2 * H, 2 * W),
    "discovery": (2, 3, H, W),
    "video": (2, 3, 3, H, W),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> Callable[[], SlotTransport]:
    """Each of the four transports in turn."""
    return TRANSPORTS[request.param]


@pytest.fixture(scope="session", params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    """Each of the four models in turn."""
    return request.param


@pytest.fixture(scope="session")
def build() -> Callable[..., torch.nn.Module]:
    """Make a small model by its name."""
    return lambda name, *args, **settings: MODELS[name](*args, **settings)


@pytest.fixture(scope="session")
def data() -> Callable[..., torch.Tensor]:
    """Make inputs for the small model of a name: floats from 0 to 1, or uint8."""

    def make(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        rng = torch.Generator().manual_seed(seed)
        if dtype == torch.uint8:
            return torch.randint(0, 256, DATA[name], dtype=dtype, generator=rng)
        drawn = torch.rand(DATA[name], dtype=dtype, generator=rng)
        return 2 * drawn - 1 if name == "copier" else drawn

    return make


@pytest.fixture(scope="session")
def tensors() -> Callable[[Any], dict[str, torch.Tensor]]:
    """Give every tensor of an output by name, those of the transport included."""

    def collect(out: Any) -> dict[str, torch.Tensor]:
        flat = {}
        for key, value in out._asdict().items():
            if isinstance(value, torch.Tensor):
                flat[key] = value
            elif value is not None:
                flat |= {f"{key}.{k}": v for k, v in value._asdict().items()}
        return flat

    return collect


@pytest.fixture(scope="session")
def loss() -> Callable[[str, Any], torch.Tensor]:
    """Give something to differentiate that depends on all that a model predicts."""

    def compute(name: str, out: Any) -> torch.Tensor:
        if name == "copier":
            weight = torch.arange(1.0, 1 + out.slots.shape[-1], dtype=out.slots.dtype)
            return (out.slots * weight).square().sum()
        if name == "properties":
            return out.properties.square().sum()
        total = out.reconstruction.square().sum()
        return total + out.kl.sum() if name == "video" else total

    return compute
