"""Stacked modules compute what each of them computes by itself."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from paper.replicas.stacked import StackedGenerator, stack, unstack
from slotmesh import SlotAttention
from slotmesh.models import SetCopier
from slotmesh.nn import (
    EMD,
    ConvEncoder,
    FixedGaussian,
    LearnedGaussian,
    LearnedObjective,
    LearnedSlots,
    Mesh,
    SharedSlot,
    Sinkhorn,
    SlotSimilarity,
    Softmax,
)

INITS = [LearnedGaussian, FixedGaussian, LearnedSlots, SharedSlot]
SEEDS = [11, 12, 13]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def shaken(module: nn.Module, seed: int) -> nn.Module:
    """In float64, with weights that no two layers or modules share."""
    rng = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for value in module.state_dict().values():
            value.add_(0.3 * torch.randn(value.shape, dtype=value.dtype, generator=rng))
    return module


def several(make: Callable[[], nn.Module]) -> list[Any]:
    return [shaken(make(), seed) for seed in SEEDS]


def inputs(*batch: int, n: int = 7, dim: int = 6) -> torch.Tensor:
    rng = torch.Generator().manual_seed(5)
    return torch.randn(len(SEEDS), *batch, n, dim, dtype=torch.float64, generator=rng)


def assert_same_attention(modules: list[SlotAttention], x: torch.Tensor, **given: Any) -> None:
    """Outputs and all gradients, those of the inputs too."""
    together = stack(modules)
    x = x.clone().requires_grad_()
    out = together(x, generator=StackedGenerator("cpu", SEEDS), **given)
    weight = torch.randn(out.slots.shape[1:], generator=torch.Generator().manual_seed(1))
    (out.slots.square() * weight).sum().backward()
    assert x.grad is not None
    # MESH enlarges rounding, by a factor that depends on the processor: 9,000 was seen.
    tol = 1e-9 if isinstance(modules[0].transport, Mesh) else 1e-12
    for r, module in enumerate(modules):
        mine = x[r].detach().clone().requires_grad_()
        own = module(mine, generator=torch.Generator().manual_seed(SEEDS[r]), **given)
        (own.slots.square() * weight).sum().backward()
        close(out.slots[r], own.slots, tol=tol)
        close(out.attention[r], own.attention, tol=tol)
        close(out.transport.marginal_error[r], own.transport.marginal_error, tol=tol)
        close(x.grad[r], mine.grad, tol=tol)
        grads = {k: p.grad for k, p in module.named_parameters()}
        assert any(g is not None and g.abs().max() > 1e-3 for g in grads.values())
        for name, parameter in together.named_parameters():
            found, expected = parameter.grad, grads[name]
            assert (found is None) == (expected is None), name
            if found is not None and expected is not None:
                close(found[r], expected, name, tol)


def close(found: Any, expected: Any, name: str = "", tol: float = 1e-12) -> None:
    """To a tolerance relative to the largest entry, or to 1; the default is 5,000 roundings."""
    allowed = tol * max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(
        found, expected, rtol=0.0, atol=allowed, msg=lambda said: f"{name}: {said}"
    )


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("variant", [Softmax, Sinkhorn, EMD, Mesh])
def test_outputs_and_gradients(variant: Callable[..., Any], init: type, implicit: bool) -> None:
    if (variant, init) == (EMD, SharedSlot):
        pytest.skip("equal slots are equally good, and rounding chooses")
    # Of equal slots MESH amplifies rounding as much as noise, to slots that are wide apart.
    options: dict[str, Any] = {"noise": 0.1} if variant is Mesh else {}
    modules = several(
        lambda: SlotAttention(
            6, 5, 3, variant(**options), mlp_dim=8, init=init(), implicit=implicit
        )
    )
    assert_same_attention(modules, inputs(4))


@pytest.mark.parametrize(
    "transport",
    [
        lambda: Mesh(lr=1.0, potentials="reuse", cost="cosine"),
        lambda: Mesh(grad="unroll", objective=SlotSimilarity(), noise=0.0, n_steps=2),
        lambda: Sinkhorn(grad="implicit", marginals="uniform", mass=2.0),
        lambda: EMD(combine="straight_through", marginals="uniform"),
        lambda: EMD(combine="mean", approximate=0.1),
    ],
)
def test_other_settings_of_transports(transport: Callable[[], Any]) -> None:
    assert_same_attention(several(lambda: SlotAttention(6, 5, 3, transport())), inputs(2))


def test_raw_values() -> None:
    modules = several(lambda: SlotAttention(6, 5, 3, Mesh(), raw_values=True))
    assert_same_attention(modules, inputs(2))


@pytest.mark.parametrize("batch", [(), (2, 3), (3, 3)])
@pytest.mark.parametrize("init", INITS)
def test_any_number_of_batch_dimensions(batch: tuple[int, ...], init: type) -> None:
    modules = several(lambda: SlotAttention(6, 5, 3, Mesh(noise=0.1), init=init()))
    assert_same_attention(modules, inputs(*batch), n_slots=2)


def test_extra_step_trace_and_masks() -> None:
    modules = several(lambda: SlotAttention(6, 5, 3, Mesh(), implicit=True, extra_step=True))
    mask = torch.arange(7) < 5
    assert_same_attention(modules, inputs(2), input_mask=mask, trace=True)


@pytest.mark.parametrize("beyond", [False, True])
def test_a_whole_model_and_back(beyond: bool) -> None:
    options = {"raw_values": beyond, "rescale": beyond, "head": beyond}
    size = 9 if beyond else None
    modules = several(lambda: SetCopier(6, 3, Mesh(), mlp_dim=8, slot_dim=size, **options))
    together = stack(modules)
    assert type(together) is SetCopier
    assert together.state_dict().keys() == modules[0].state_dict().keys()
    x = inputs(4)
    out = together(x, generator=StackedGenerator("cpu", SEEDS)).slots
    for r, module in enumerate(modules):
        one = unstack(together, r)
        assert type(one) is SetCopier
        assert type(one.attention.gru) is nn.GRUCell
        assert list(one.state_dict()) == list(module.state_dict())
        for name, value in module.state_dict().items():
            assert torch.equal(one.state_dict()[name], value), name
        noise = torch.Generator().manual_seed(SEEDS[r])
        torch.testing.assert_close(one(x[r], generator=noise).slots, out[r], rtol=0, atol=1e-12)
        fixed = {name for name, p in module.named_parameters() if not p.requires_grad}
        assert fixed == {name for name, p in one.named_parameters() if not p.requires_grad}
        assert [n for n, _ in one.named_buffers()] == [n for n, _ in module.named_buffers()]


def test_stacks_and_parts_are_copies() -> None:
    modules = several(lambda: SlotAttention(6, 5, 3))
    before = copy.deepcopy(modules[1].state_dict())
    together = stack(modules)
    one = unstack(together, 1)
    with torch.no_grad():
        for value in together.state_dict().values():
            value.zero_()
    for name, value in before.items():
        assert torch.equal(modules[1].state_dict()[name], value)
        assert torch.equal(one.state_dict()[name], value)


def test_nothing_is_drawn() -> None:
    modules = several(lambda: SlotAttention(6, 5, 3))
    state = torch.get_rng_state()
    unstack(stack(modules), 0)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("bias", [False, True])
def test_layers_without_bias_and_of_several_dimensions(bias: bool) -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.LayerNorm((7, 6), bias=bias), nn.LayerNorm(6, elementwise_affine=False), nn.ReLU()
        )

    modules, x = several(make), inputs(4)
    found = stack(modules)(x)
    assert found.min() >= 0
    for r, module in enumerate(modules):
        torch.testing.assert_close(found[r], module(x[r]), rtol=0, atol=1e-12)
    cells = several(lambda: nn.GRUCell(6, 5, bias=bias))
    rows, hidden = x.flatten(1, -2), torch.ones(3, 28, 5, dtype=torch.float64)
    stacked = stack(cells)
    for r, cell in enumerate(cells):
        expected = cell(rows[r], hidden[r])
        torch.testing.assert_close(stacked(rows, hidden)[r], expected, rtol=0, atol=1e-12)
        one = unstack(stacked, r)(rows[r], hidden[r])
        torch.testing.assert_close(one, expected, rtol=0, atol=0)


def test_frozen_and_evaluated_modules_stay_so() -> None:
    modules = several(lambda: SlotAttention(6, 5, 3).eval())
    for module in modules:
        module.to_key.requires_grad_(False)
    together = stack(modules)
    assert not together.to_key.weight.requires_grad
    assert together.to_value.weight.requires_grad
    for module in (together, unstack(together, 0)):
        assert not any(part.training for part in module.modules())


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (lambda: SlotAttention(6, 5, 4, Softmax()), "module 1 has n_slots 4, expected 3"),
        (lambda: SlotAttention(6, 5, 3), "transport of module 1 is a Mesh, expected Softmax"),
        (lambda: SlotAttention(6, 5, 3, Softmax(eps=0.0)), "transport of module 1 has eps 0.0"),
        (lambda: SlotAttention(6, 5, 3, Softmax(), mlp_dim=4), r"mlp.1 of module 1 has .* 4"),
        (lambda: SlotAttention(6, 5, 3, Softmax(), init=SharedSlot()), "is a SharedSlot"),
        (lambda: SlotAttention(6, 5, 3, Softmax(), raw_values=True), "has raw_values True"),
        (lambda: SlotAttention(6, 5, 3, Softmax()).float(), "float32 on cpu, expected"),
        (lambda: nn.Linear(6, 5), "module 1 is a Linear, expected SlotAttention"),
    ],
)
def test_modules_that_differ(others: Callable[[], nn.Module], said: str) -> None:
    first = SlotAttention(6, 5, 3, Softmax()).double()
    other = others()
    other = other if "float32" in said else other.double()
    with pytest.raises(ValueError, match=said):
        stack([first, other])


def test_what_cannot_be_stacked() -> None:
    with pytest.raises(ValueError, match="got no modules"):
        stack([])
    with pytest.raises(
        ValueError, match=r"a Conv2d has parameters .* Expected parameters and buffers in Linear,"
    ):
        stack([ConvEncoder(4)])
    learned = Mesh(objective=LearnedObjective(), grad="unroll")
    with pytest.raises(ValueError, match="a LearnedObjective has parameters or buffers"):
        stack([SlotAttention(6, 5, 3, learned)])


def test_what_cannot_be_unstacked() -> None:
    module = SlotAttention(6, 5, 3)
    with pytest.raises(ValueError, match="this SlotAttention is not stacked"):
        unstack(module, 0)
    for which in (-1, 1):
        with pytest.raises(ValueError, match=f"which is {which}, expected 0 to"):
            unstack(stack([module]), which)


@pytest.mark.parametrize("shape", [(2, 7, 6), (9, 7, 6), (7, 6)])
def test_inputs_without_the_leading_dimension(shape: tuple[int, ...]) -> None:
    together = stack(several(lambda: SlotAttention(6, 5, 3)))
    x = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"expected one that begins with \(3,\), the number of stacked"
    ):
        together(x)
    with pytest.raises(ValueError, match=r"expected \(3, ..., dim\): 3 modules are stacked here"):
        together(x, x[..., :3, :5])


def test_rows_that_cannot_be_shared_out() -> None:
    cells = stack(several(lambda: nn.GRUCell(6, 5)))
    x = torch.zeros(4, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"the input has shape \(4, 6\), expected \(3, ..., dim"):
        cells(x, x[:, :5])
