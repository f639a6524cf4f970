"""SA-EMD with one of its parts changed: what is added, what is exact, what has a gradient."""

from typing import Any

import pytest
import torch
from torch import Tensor

from slotmesh import SlotAttention, emd, sinkhorn
from slotmesh.nn import EMD, TransportContext

COMBINES = ("sum", "mean", "straight_through", "detached")
F64 = torch.float64


def problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries ``(2, 3, 5)`` and keys ``(2, 7, 5)``, far enough apart to have one best plan."""
    rng = torch.Generator().manual_seed(seed)
    queries, keys = torch.randn(2, 10, 5, dtype=F64, generator=rng).split((3, 7), 1)
    return queries.clone().requires_grad_(), keys.clone().requires_grad_()


def attend(queries: Tensor, keys: Tensor, **settings: Any) -> Any:
    transport = EMD(marginals="uniform", **settings)
    transport.bind(input_dim=5, slot_dim=5, hidden_dim=4)
    return transport(queries, keys, queries, TransportContext())


def plans(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    cost = torch.cdist(queries, keys)
    return emd(cost).plan, sinkhorn(cost).plan


@pytest.mark.parametrize("combine", COMBINES)
def test_what_is_attended_and_what_learns(combine: str) -> None:
    queries, keys = problem()
    hard, soft = plans(queries, keys)
    wanted = {
        "sum": hard + soft,
        "mean": (hard + soft) / 2,
        "straight_through": hard,
        "detached": hard + soft,
    }
    factor = {"sum": 1.0, "mean": 0.5, "straight_through": 1.0, "detached": 0.0}[combine]
    plan, transport = attend(queries, keys, combine=combine)
    torch.testing.assert_close(plan, wanted[combine], rtol=0, atol=1e-7)
    torch.testing.assert_close(transport.plan, hard)
    assert plan.requires_grad == (factor > 0)
    if factor:
        weight = torch.arange(42, dtype=F64).sin().view(2, 3, 7)
        [found] = torch.autograd.grad((plan * weight).sum(), queries)
        [expected] = torch.autograd.grad((soft * weight).sum(), queries)
        assert expected.abs().max() > 1e-2
        torch.testing.assert_close(found, factor * expected, rtol=0, atol=1e-6)


def test_an_approximate_plan_is_near_the_exact_one_and_nearer_when_cold() -> None:
    queries, keys = problem()
    hard, soft = plans(queries, keys)
    off: list[float] = []
    for temperature in (1.0, 0.1, 0.01):
        plan, transport = attend(queries, keys, approximate=temperature)
        torch.testing.assert_close(plan, transport.plan + soft, rtol=0, atol=1e-7)
        assert not transport.plan.requires_grad
        off.append(float((transport.plan - hard).abs().sum((-2, -1)).mean()))
    # Of a mass of 3.
    assert off[0] > 1.0
    assert off[1] < 0.5 * off[0]
    assert off[2] < 0.2 * off[0]


def test_nothing_but_the_gradient_of_the_plan_is_cut() -> None:
    torch.manual_seed(0)
    module = SlotAttention(6, 5, 3, EMD(combine="detached"), implicit=True)
    module(torch.randn(2, 7, 6)).slots.square().sum().backward()
    learns = {name for name, p in module.named_parameters() if p.grad is not None}
    assert {"to_value.weight", "gru.weight_ih", "mlp.1.weight", "norm_inputs.weight"} <= learns
    assert not any(name.startswith(("to_query", "to_key", "transport")) for name in learns)


def test_settings_are_written_down() -> None:
    transport = EMD(combine="mean", approximate=0.05)
    config = transport.to_config()
    assert (config["combine"], config["approximate"]) == ("mean", 0.05)
    assert EMD.from_config(config).to_config() == config
