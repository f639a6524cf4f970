"""Padding changes nothing, and a batch element does not depend on its partners."""

import pytest
import torch

from slotmesh.nn import (
    EMD,
    LearnedObjective,
    LearnedSlots,
    Mesh,
    Sinkhorn,
    SlotSimilarity,
    Softmax,
)

TRANSPORTS = {
    "SA": lambda: Softmax(),
    "SA with a large eps": lambda: Softmax(eps=0.2),
    "SA-SH": lambda: Sinkhorn(),
    "SA-SH implicit": lambda: Sinkhorn(grad="implicit", n_iters=40),
    "SA-SH uniform": lambda: Sinkhorn(marginals="uniform"),
    "SA-SH uniform mass": lambda: Sinkhorn(marginals="uniform", mass=5.0),
    "SA-SH mass": lambda: Sinkhorn(mass=5.0, cost="cosine", cost_scale=6.0),
    "SA-EMD": lambda: EMD(),
    "SA-EMD straight through": lambda: EMD(combine="straight_through", marginals="uniform"),
    "SA-MESH": lambda: Mesh(noise=0.0),
    "SA-MESH lr": lambda: Mesh(noise=0.0, lr=3.0, potentials="reuse"),
    "SA-MESH uniform": lambda: Mesh(noise=0.0, marginals="uniform", potentials="fresh"),
    "SA-MESH implicit": lambda: Mesh(noise=0.0, n_iters=9, grad="implicit"),
    "SA-MESH unroll": lambda: Mesh(noise=0.0, grad="unroll"),
    "SA-MESH similarity": lambda: Mesh(
        noise=0.0, step=0.2, grad="unroll", objective=SlotSimilarity(alpha=3.0)
    ),
    "SA-MESH learned": lambda: Mesh(
        noise=0.0, step=0.2, grad="unroll", objective=LearnedObjective(hidden_dim=8)
    ),
}
# Real inputs and slots of three batch elements; padding before, between and after them.
INPUTS = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]]).bool()
SLOTS = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]]).bool()


@pytest.fixture(params=list(TRANSPORTS))
def transport(request):
    return TRANSPORTS[request.param]()


def fill(x, mask, scale):
    return torch.where(mask.unsqueeze(-1), x, scale * torch.randn_like(x))


@pytest.mark.parametrize("implicit", [False, True])
def test_padded_and_unpadded_agree_in_values_and_gradients(
    transport, implicit, build, draw, gradients, close
):
    module = build(transport, n_iters=2, implicit=implicit)
    inputs, slots = draw(3, n=7, m=4)
    inputs, slots = fill(inputs, INPUTS, 100.0), fill(slots, SLOTS, 100.0)
    inputs.requires_grad_()
    slots.requires_grad_()
    out = module(inputs, slots, input_mask=INPUTS, slot_mask=SLOTS)
    # Each real slot by itself in the loss: masked ones are handed through and would add to it.
    mine = gradients(module, out.slots[SLOTS], inputs)
    total = {}
    for i in range(3):
        x = inputs[i, INPUTS[i]].detach().requires_grad_()
        alone = module(x, slots[i, SLOTS[i]])
        close(out.slots[i, SLOTS[i]], alone.slots, 1e-10)
        close(out.attention[i, SLOTS[i]][:, INPUTS[i]], alone.attention, 1e-10)
        close(out.transport.plan[i, SLOTS[i]][:, INPUTS[i]], alone.transport.plan, 1e-10)
        close(out.transport.marginal_error[i], alone.transport.marginal_error, 1e-10)
        grads = gradients(module, alone.slots, x)
        close(mine["tensor 0"][i, INPUTS[i]], grads.pop("tensor 0"), 1e-9)
        assert (mine["tensor 0"][i, ~INPUTS[i]] == 0).all()
        for name, grad in grads.items():
            total[name] = total.get(name, 0.0) + grad
    del mine["tensor 0"]
    assert mine.keys() == total.keys()
    for name in mine:
        close(mine[name], total[name], 1e-9)


def test_masked_slots_come_out_unchanged_and_attend_to_nothing(transport, build, draw):
    module = build(transport)
    inputs, slots = draw(3, n=7, m=4)
    out = module(inputs, slots, input_mask=INPUTS, slot_mask=SLOTS, trace=True)
    assert torch.equal(out.slots[~SLOTS], slots[~SLOTS])
    assert (out.slots[SLOTS] - slots[SLOTS]).abs().amax(-1).min() > 1e-6
    for attention in (*out.trace.unbind(1), out.attention, out.transport.plan):
        assert (attention[~SLOTS] == 0).all()
        assert (attention.mT[~INPUTS] == 0).all()


def test_garbage_in_the_padding_is_ignored(transport, build, draw, gradients):
    module = build(transport, n_iters=2)
    inputs, slots = draw(3, n=7, m=4)
    results = []
    for scale in (0.0, 1e12):
        x = fill(inputs, INPUTS, scale).requires_grad_()
        z = fill(slots, SLOTS, min(scale, 1e3))
        out = module(x, z, input_mask=INPUTS, slot_mask=SLOTS)
        grads = gradients(module, out.slots[SLOTS], x)
        grads["tensor 0"] = grads["tensor 0"][INPUTS]
        results.append((out.slots[SLOTS], out.attention, grads))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-11)


def test_one_mask_for_all_batch_elements(quiet, build, draw, close):
    module = build(quiet())
    inputs, slots = draw(2, 3, n=7, m=4)
    short = module(inputs, slots, input_mask=INPUTS[1], slot_mask=SLOTS[1])
    full = module(
        inputs,
        slots,
        input_mask=INPUTS[1].expand(2, 3, 7),
        slot_mask=SLOTS[1].expand(2, 3, 4),
    )
    close(short.slots, full.slots, 0.0)


def test_all_true_masks_change_nothing(quiet, build, draw, close):
    module = build(quiet())
    inputs, slots = draw(2)
    masked = module(
        inputs,
        slots,
        input_mask=torch.ones(2, 7, dtype=torch.bool),
        slot_mask=torch.ones(2, 3, dtype=torch.bool),
    )
    close(masked.slots, module(inputs, slots).slots)


def test_masked_slots_of_an_initialiser_come_out_as_it_made_them(quiet, build, draw, close):
    module = build(quiet(), n_slots=4, init=LearnedSlots())
    out = module(draw(3, n=7)[0], slot_mask=SLOTS)
    close(out.slots[~SLOTS], module.init((3,), 4)[~SLOTS], 0.0)


def test_masked_noise_does_not_reach_real_entries(build, draw, close):
    # The noise of real entries stays, that of padding changes: noise is drawn for the whole matrix.
    module = build(Mesh(noise=0.1), n_slots=4)
    inputs, slots = draw(3, n=7, m=4)
    begin, results = type(module.transport).begin, []
    noise = torch.randn(3, 4, 7, dtype=torch.float64)
    real = SLOTS.unsqueeze(-1) & INPUTS.unsqueeze(-2)
    for scale in (0.0, 50.0):
        given = torch.where(real, noise, scale * noise)
        module.transport.begin = lambda *args, given=given, **kwargs: begin(
            module.transport, *args, **kwargs
        )._replace(noise=given)
        results.append(module(inputs, slots, input_mask=INPUTS, slot_mask=SLOTS).slots)
    close(*results)


def test_a_batch_element_does_not_depend_on_its_partners(transport, build, draw):
    module = build(transport)
    inputs, slots = draw(3, n=7, m=4)
    first = module(inputs, slots)
    other_inputs, other_slots = draw(3, n=7, m=4, seed=1)
    other_inputs *= 1e6
    other_inputs[1], other_slots[1] = inputs[1], slots[1]
    second = module(other_inputs, other_slots)
    assert not torch.equal(first.slots[0], second.slots[0])
    for mine, theirs in zip(
        (first.slots, first.attention, *first.transport),
        (second.slots, second.attention, *second.transport),
        strict=True,
    ):
        assert torch.equal(mine[1], theirs[1])
