"""Seeds: the same answer every time, in every batch, compiled or not."""

import pytest
import torch

from slotmesh.nn import Mesh, Softmax


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_an_element_alone_gets_what_it_gets_in_a_batch(name, transport, build, data):
    model = build(name, transport()).double().eval()
    whole = data(name, torch.float64)
    twice = torch.cat((whole, whole))
    for options in ({}, {"seed": 5}):
        slots = model(twice, **options).slots
        for i, row in enumerate(twice):
            alone = model(row[None], **options).slots[0]
            torch.testing.assert_close(slots[i], alone, rtol=0, atol=1e-9)


def test_a_batch_of_one_draws_what_a_generator_does(name, transport, build, data):
    model, one = build(name, transport()).double(), data(name, torch.float64)[:1]
    expected = model(one, generator=torch.Generator().manual_seed(5)).slots
    assert torch.equal(model(one, seed=5).slots, expected)
    assert torch.equal(model.eval()(one, seed=5).slots, expected)


def test_a_set_without_a_batch_has_slots_that_differ(build, data):
    model, inputs = build("copier", Softmax()).eval(), data("copier")
    slots = model(inputs[0], seed=3).slots
    assert (slots[0] - slots[1]).abs().max() > 1e-3
    torch.testing.assert_close(slots, model(inputs, seed=3).slots[0], rtol=0, atol=1e-4)


def test_a_generator_and_training_draw_for_every_element(build, data):
    model, inputs = build("copier", Softmax()), data("copier")[:1].expand(2, -1, -1)
    seeded = model(inputs, seed=0).slots
    slots = model.eval()(inputs, generator=torch.Generator().manual_seed(0)).slots
    assert torch.equal(slots, seeded)
    assert (slots[0] - slots[1]).abs().max() > 1e-3


# The compiler itself instantiates autograd functions.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("make", [Softmax, lambda: Mesh(n_steps=1, n_iters=1)])
def test_compiled_code_has_seeds_too(make, build, data):
    model = build("copier", make(), n_iters=1).eval()
    inputs = data("copier")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    first = compiled(inputs).slots
    torch.manual_seed(1)
    assert torch.equal(compiled(inputs).slots, first)
    other = compiled(inputs, seed=4).slots
    assert not torch.allclose(other, first)
    assert torch.equal(compiled(inputs, seed=4).slots, other)
    alone = compiled(inputs[1:], seed=4).slots
    torch.testing.assert_close(alone, other[1:], rtol=0, atol=1e-3)
    model.train()
    assert not torch.equal(compiled(inputs).slots, compiled(inputs).slots)
    assert not torch.allclose(compiled(inputs, seed=5).slots, other)


@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_gives_the_same_answer_every_time(build, data):
    model, inputs = build("copier", Softmax(), n_iters=1).eval(), data("copier")
    runs = []
    for options in ({}, {"seed": 4}):
        exported = torch.export.export(model, (inputs,), options).module()
        runs += [exported(inputs, **options).slots for _ in range(2)]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[2], runs[3])
    assert not torch.allclose(runs[0], runs[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 2**70}, r"seed is 1180591620717411303424, expected .* 0 to 2\*\*63 - 1"),
        ({"seed": 1.5}, "seed is 1.5, expected a whole number of at least 0"),
        ({"generator": 3}, "generator is 3, expected a torch.Generator. Pass a number as seed"),
    ],
)
def test_what_is_no_seed_is_named(options, message, build, data):
    with pytest.raises(ValueError, match=message):
        build("copier", Softmax())(data("copier"), **options)
