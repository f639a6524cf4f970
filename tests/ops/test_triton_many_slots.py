"""Kernels for more than 64 slots: blocks have few inputs, and programs share a matrix."""

from typing import Any

import pytest
import torch

from slotmesh.ops import mesh, sinkhorn

from ._kernels import both
from ._reference import masses, randn

F32 = torch.float32


def leaves_of(batch: int, m: int, n: int) -> dict[str, torch.Tensor]:
    return {
        "cost": 2 * randn(batch, m, n, seed=m, dtype=F32),
        "a": masses(batch, m, seed=m, total=m, dtype=F32),
        "b": masses(batch, n, seed=n, total=m, dtype=F32),
    }


@pytest.mark.parametrize("shape", [(2, 65, 9), (1, 130, 70), (1, 1024, 20)])
def test_sinkhorn_with_many_slots(device: str, shape: tuple[int, int, int]) -> None:
    batch, m, _ = shape
    more = {
        "u": randn(batch, m, seed=3, dtype=F32),
        "temperature": 0.5 + randn(batch, seed=4, dtype=F32).abs(),
    }
    both(sinkhorn, device, leaves_of(*shape) | more, n_iters=4)


@pytest.mark.parametrize("shape", [(2, 100, 31), (1, 300, 40)])
@pytest.mark.parametrize("options", [{}, {"potentials": "reuse"}, {"grad": "implicit"}])
def test_mesh_with_many_slots(device: str, shape: tuple[int, ...], options: Any) -> None:
    cost = randn(*shape, seed=1, dtype=F32)
    through = ("plan",) if "grad" in options else ("plan", "u", "v")
    descent = {"n_iters": 3, "n_steps": 2, "noise": 0.1 * cost.cos(), "step": 0.3}
    both(mesh, device, {"cost": cost}, through=through, **descent, **options)


def test_masks_with_many_slots(device: str) -> None:
    cost = randn(2, 90, 37, seed=5, dtype=F32)
    slots, inputs = randn(2, 90, seed=6) > -0.5, randn(2, 37, seed=7) > -0.5
    cost[~(slots[:, :, None] & inputs[:, None])] = torch.nan
    masks: dict[str, Any] = {"slot_mask": slots, "input_mask": inputs}
    both(sinkhorn, device, {"cost": cost}, n_iters=5, through=("plan",), **masks)
    both(mesh, device, {"cost": cost}, n_iters=3, n_steps=1, noise=0.0, through=("plan",), **masks)


@pytest.mark.parametrize("at_once", [4096, 8])
@pytest.mark.parametrize("op", [sinkhorn, mesh])
def test_programs_that_share_a_matrix(
    device: str, op: Any, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two matrices, four programs each, side by side; some of them have no inputs at all."""
    if device != "cpu":
        pytest.skip("the others run there as they are")
    from slotmesh.ops._triton import launch

    from ._together import side_by_side

    monkeypatch.setattr(launch, "MANY_NUMBERS", 4)
    launched = side_by_side(monkeypatch, 8, at_once)
    leaves = leaves_of(2, 66, 38)
    options = {} if op is sinkhorn else {"noise": 0.0, "n_steps": 1, "step": 0.3}
    both(op, device, leaves, n_iters=2, through=("plan",), **options)
    assert launched == [8, 8]


def test_how_many_slots_are_cut(device: str) -> None:
    """No more programs than processors, and blocks of one size whatever the matrix."""
    from slotmesh.ops._triton import launch

    for batch, m, n in ((16, 256, 256), (4, 1024, 1024), (64, 128, 128), (2, 300, 500), (1, 65, 1)):
        cut = launch.choose(batch, m, n, 132)
        assert m <= cut.M < 2 * m
        assert cut.split == 1 or batch * cut.split <= 132
        assert cut.split * cut.width(n) >= n
        assert cut.M * cut.N <= 8192
    assert launch.choose(16, 256, 256, 132) == launch.Cut(256, 32, 8, 8)
    assert launch.choose(4, 1024, 1024, 132) == launch.Cut(1024, 8, 32, 8)
