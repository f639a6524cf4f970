"""Where slots start, how many there are, and shapes of all kinds."""

import pytest
import torch

from slotmesh.nn import (
    FixedGaussian,
    LearnedGaussian,
    LearnedSlots,
    Mesh,
    SharedSlot,
    SlotInitializer,
    Softmax,
)

INITIALIZERS = [LearnedGaussian, FixedGaussian, LearnedSlots, SharedSlot]


@pytest.mark.parametrize("init", INITIALIZERS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_shapes(init, batch):
    slots = init().bind(n_slots=4, slot_dim=5)(batch, 3)
    assert slots.shape == (*batch, 3, 5)


@pytest.mark.parametrize("init", [LearnedGaussian, FixedGaussian])
def test_draws_have_the_mean_and_deviation_that_were_asked_for(init):
    start = init().bind(n_slots=4, slot_dim=3)
    with torch.no_grad():
        start.mean.copy_(torch.tensor([[-1.0, 0.0, 4.0]]))
        start.log_std.copy_(torch.tensor([[0.1, 1.0, 3.0]]).log())
    draws = start((2000,), 5).detach()
    flat = draws.flatten(0, 1)
    error = 5 * start.log_std.exp()[0] / 100
    assert ((flat.mean(0) - start.mean[0]).abs() < error).all()
    torch.testing.assert_close(flat.std(0), start.log_std.exp().detach()[0], rtol=0.05, atol=0)
    # Independent over slots and over the batch.
    first, second = draws[:, 0, 2] - 4, draws[:, 1, 2] - 4
    assert abs((first * second).mean().item()) / 9 < 0.1


def test_fixed_gaussian_has_no_parameters_but_is_saved():
    start, other = (FixedGaussian().bind(n_slots=4, slot_dim=5) for _ in range(2))
    assert not list(start.parameters())
    assert not start.learned
    assert set(start.state_dict()) == {"mean", "log_std"}
    assert not torch.equal(start.mean, other.mean)
    other.load_state_dict(start.state_dict())
    first, second = (x((2,), 3, torch.Generator().manual_seed(0)) for x in (start, other))
    assert torch.equal(first, second)
    assert not first.requires_grad


@pytest.mark.parametrize("init", [LearnedGaussian, LearnedSlots, SharedSlot])
def test_learned_initialisers_learn(init):
    start = init().bind(n_slots=4, slot_dim=5)
    assert start.learned
    start((2,), 4).square().sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in start.parameters())


def test_learned_slots_are_one_vector_a_slot_without_randomness():
    start = LearnedSlots().bind(n_slots=4, slot_dim=5)
    assert torch.equal(start((2,), 3), start.slots[:3].expand(2, 3, 5))
    assert len(start.slots.unique(dim=0)) == 4
    with pytest.raises(ValueError, match=r"n_slots is 5, expected at most the 4 "):
        start((2,), 5)


def test_learned_slots_refuse_more_slots_through_the_module(build, draw):
    module = build(Softmax(), n_slots=4, init=LearnedSlots())
    with pytest.raises(
        ValueError, match=r"n_slots is 5, .* at most the 4 .* Build SlotAttention with"
    ):
        module(draw(2)[0], n_slots=5)


def test_a_shared_slot_is_one_vector_for_all():
    start = SharedSlot().bind(n_slots=4, slot_dim=5)
    slots = start((2, 3), 6)
    assert torch.equal(slots, start.slot.expand(2, 3, 6, 5))
    assert sum(p.numel() for p in start.parameters()) == 5


def test_an_initialiser_without_forward_says_what_to_define():
    class Unfinished(SlotInitializer):
        pass

    with pytest.raises(TypeError, match=r"Unfinished has no forward\(batch, n_slots, generator\)"):
        Unfinished().bind(n_slots=2, slot_dim=3)((), 2)


@pytest.mark.parametrize("init", INITIALIZERS)
def test_the_module_starts_where_its_initialiser_says(init, quiet, build, draw, close):
    module = build(quiet(), init=init())
    inputs, _ = draw(2)
    start = module.init((2,), 3, torch.Generator().manual_seed(4))
    out = module(inputs, generator=torch.Generator().manual_seed(4))
    close(out.slots, module(inputs, start).slots, 0.0)


@pytest.mark.parametrize("n_slots", [1, 2, 5])
def test_the_number_of_slots_can_be_chosen_at_the_call(variant, n_slots, build, draw, close):
    module = build(variant())
    inputs, _ = draw(2)
    out = module(inputs, n_slots=n_slots)
    assert out.slots.shape == (2, n_slots, 5)
    assert out.attention.shape == (2, n_slots, 7)
    mass = out.transport.plan.sum((-2, -1))
    close(mass, torch.full((2,), float(n_slots), dtype=torch.float64), 1e-9)
    assert module(inputs).slots.shape == (2, 3, 5)


def test_one_input_is_enough(variant, build, draw):
    out = build(variant())(draw(2, n=1)[0])
    assert out.slots.isfinite().all()
    assert out.attention.shape == (2, 3, 1)


def test_given_slots_decide_the_number(variant, build, draw):
    module = build(variant())
    inputs, slots = draw(2, m=4)
    assert module(inputs, slots).slots.shape == (2, 4, 5)
    assert module(inputs, slots, n_slots=4).slots.shape == (2, 4, 5)


def test_any_leading_dimensions(quiet, build, draw, close):
    module = build(quiet())
    inputs, slots = draw(2, 4)
    out = module(inputs, slots, trace=True)
    assert out.trace.shape == (2, 4, 3, 3, 7)
    flat = module(inputs.flatten(0, 1), slots.flatten(0, 1), trace=True)
    single = module(inputs[1, 2], slots[1, 2], trace=True)
    for mine, theirs, one in zip(
        (out.slots, out.attention, out.trace, *out.transport),
        (flat.slots, flat.attention, flat.trace, *flat.transport),
        (single.slots, single.attention, single.trace, *single.transport),
        strict=True,
    ):
        assert mine.dtype == theirs.dtype == one.dtype
        assert mine.shape == (2, 4, *one.shape)
        close(mine.flatten(0, 1), theirs)
        close(mine[1, 2], one, 1e-9)


def test_an_empty_batch_stays_empty(quiet, build, draw):
    out = build(quiet())(*draw(0))
    assert out.slots.shape == (0, 3, 5)
    assert out.attention.shape == (0, 3, 7)


def test_random_starts_have_the_leading_dimensions_of_the_inputs(variant, build, draw):
    module = build(variant())
    for batch in ((), (2,), (2, 3)):
        assert module(draw(*batch)[0]).slots.shape == (*batch, 3, 5)


def test_trace_is_the_attention_of_every_iteration(quiet, build, draw, close):
    module = build(quiet(), n_iters=4)
    inputs, slots = draw(2)
    out = module(inputs, slots, trace=True)
    assert out.trace.shape == (2, 4, 3, 7)
    assert torch.equal(out.trace[:, -1], out.attention)
    for n_iters in (1, 2, 3):
        module.n_iters = n_iters
        close(out.trace[:, n_iters - 1], module(inputs, slots).attention)


@pytest.mark.parametrize("init", INITIALIZERS)
def test_a_generator_makes_everything_repeatable(init, build, draw):
    module = build(Mesh(noise=0.1), init=init())
    inputs, _ = draw(2)
    first, second = (
        module(inputs, generator=torch.Generator().manual_seed(8)).slots for _ in range(2)
    )
    other = module(inputs, generator=torch.Generator().manual_seed(9)).slots
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_generator_leaves_the_global_one_alone(build, draw):
    module, (inputs, _) = build(Mesh()), draw(2)
    before = torch.get_rng_state()
    module(inputs, generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), before)
    module(inputs)
    assert not torch.equal(torch.get_rng_state(), before)
