"""Implicit differentiation of slots: T - 1 steps without a graph, one step with."""

import pytest
import torch

from slotmesh.nn import FixedGaussian, LearnedGaussian, LearnedSlots, Mesh, SharedSlot, Softmax


def by_hand(module, inputs, slots, n_iters):
    """Run n_iters - 1 steps, detach, take one more; also the slots that the last step starts from.

    The module itself takes the steps, with implicit differentiation switched off.
    """
    settings = module.n_iters, module.implicit, module.extra_step
    try:
        module.implicit = module.extra_step = False
        before = slots
        if n_iters > 1:
            module.n_iters = n_iters - 1
            before = module(inputs, slots).slots
        before = before.detach().requires_grad_()
        module.n_iters = 1
        return module(inputs, before).slots, before
    finally:
        module.n_iters, module.implicit, module.extra_step = settings


def test_forward_equals_the_unrolled_forward(quiet, build, draw, close):
    inputs, slots = draw(2)
    implicit, unrolled = (build(quiet(), n_iters=4, implicit=x) for x in (True, False))
    close(implicit(inputs, slots).slots, unrolled(inputs, slots).slots, 0.0)


@pytest.mark.parametrize("n_iters", [1, 3])
def test_gradients_are_those_of_the_last_step_alone(quiet, n_iters, build, draw, gradients, close):
    module = build(quiet(), n_iters=n_iters, implicit=True)
    inputs, slots = draw(2)
    inputs.requires_grad_()
    mine = gradients(module, module(inputs, slots).slots, inputs)
    expected = gradients(module, by_hand(module, inputs, slots, n_iters)[0], inputs)
    assert mine.keys() == expected.keys()
    assert "tensor 0" in mine
    for name in mine:
        close(mine[name], expected[name])


def test_gradients_differ_from_the_unrolled_ones(quiet, build, draw, gradients):
    inputs, slots = draw(2)
    implicit, unrolled = (build(quiet(), implicit=x) for x in (True, False))
    name = "to_query.weight"
    mine, other = (gradients(x, x(inputs, slots).slots)[name] for x in (implicit, unrolled))
    assert (mine - other).abs().max() > 1e-5


def test_extra_step_is_taken_in_addition(quiet, build, draw, gradients, close):
    inputs, slots = draw(2)
    extra = build(quiet(), n_iters=2, implicit=True, extra_step=True)
    more = build(quiet(), n_iters=3, implicit=True)
    out, expected = extra(inputs, slots, trace=True), more(inputs, slots, trace=True)
    close(out.slots, expected.slots, 0.0)
    assert out.trace.shape == expected.trace.shape == (2, 3, 3, 7)
    close(gradients(extra, out.slots), gradients(more, expected.slots), 0.0)


@pytest.mark.parametrize("n_iters", [1, 3])
@pytest.mark.parametrize("init", [FixedGaussian, LearnedGaussian])
def test_given_slots_get_no_gradient_but_every_other_parameter_does(
    quiet, init, n_iters, build, draw
):
    module = build(quiet(), n_iters=n_iters, implicit=True, init=init())
    inputs, slots = (x.requires_grad_() for x in draw(2))
    module(inputs, slots).slots.square().sum().backward()
    assert slots.grad is None
    assert inputs.grad is not None
    for name, value in module.named_parameters():
        # Where slots are given the initialiser has no part in the result.
        if not name.startswith("init."):
            assert value.grad is not None, name
            assert value.grad.isfinite().all(), name


@pytest.mark.parametrize("init", [LearnedGaussian, LearnedSlots, SharedSlot])
@pytest.mark.parametrize("implicit", [True, False])
def test_every_parameter_gets_a_gradient(quiet, init, implicit, build, draw):
    module = build(quiet(), implicit=implicit, init=init())
    inputs, _ = draw(2)
    module(inputs).slots.square().sum().backward()
    for name, value in module.named_parameters():
        assert value.grad is not None, name
        assert value.grad.isfinite().all(), name
        # One vector for all slots: their masses are equal whatever the head says.
        if not (init is SharedSlot and "slot_marginal" in name):
            assert value.grad.abs().max() > 0, name


def start_of(module, inputs, seed):
    """The first slots that a seed leads to."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return module.init(tuple(inputs.shape[:-2]), module.n_slots, rng)


@pytest.mark.parametrize("init", [LearnedGaussian, LearnedSlots, SharedSlot])
@pytest.mark.parametrize("transport", [Softmax, Mesh])
@pytest.mark.parametrize("n_iters", [1, 3])
def test_learned_initialisers_get_the_gradient_straight_through(
    n_iters, init, transport, build, draw, close
):
    transport = transport(noise=0.0) if transport is Mesh else transport()
    module = build(transport, n_iters=n_iters, implicit=True, init=init())
    inputs, _ = draw(2)
    start = start_of(module, inputs, 5)
    weight = torch.randn(3, 5, dtype=torch.float64)
    out = module(inputs, generator=torch.Generator().manual_seed(5)).slots
    (out * weight).sum().backward()
    last, before = by_hand(module, inputs, start, n_iters)
    close(out, last, 0.0)
    # As if the first slots were those that the last step starts from.
    (into,) = torch.autograd.grad((last * weight).sum(), before)
    assert into.abs().max() > 1e-3
    if init is LearnedSlots:
        close(module.init.slots.grad, into.sum(0))
    elif init is SharedSlot:
        close(module.init.slot.grad, into.sum((0, 1)).unsqueeze(0))
    else:
        close(module.init.mean.grad, into.sum((0, 1)).unsqueeze(0))
        noise = start - module.init.mean.detach()
        close(module.init.log_std.grad, (into * noise).sum((0, 1)).unsqueeze(0))


def saved_numbers(module, *args):
    """Distinct tensors that the graph of a forward pass keeps, by number of entries."""
    kept = {}

    def pack(x):
        kept[x.data_ptr(), x.shape, x.stride()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = module(*args)
        assert out.slots.requires_grad
        return sum(kept.values())


def test_memory_does_not_grow_with_the_iterations(quiet, build, draw):
    inputs, slots = draw(2)
    few, many = (
        saved_numbers(build(quiet(), n_iters=n, implicit=True), inputs, slots) for n in (2, 8)
    )
    assert few == many
    few, many = (saved_numbers(build(quiet(), n_iters=n), inputs, slots) for n in (2, 8))
    assert many > 2.5 * few


def test_nothing_but_the_last_attention_has_a_graph(quiet, build, draw):
    module = build(quiet(), implicit=True)
    seen = []
    module.transport.register_forward_hook(lambda _, args, out: seen.append(out[0].requires_grad))
    module(*draw(2))
    assert seen == [False, False, True]
