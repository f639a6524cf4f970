"""Noise as an argument of slot attention: a seed or numbers, also in compiled code."""

import numpy as np
import pytest
import torch

from slotmesh import SlotAttention
from slotmesh.nn import Mesh, Sinkhorn, Softmax
from slotmesh.nn.noise import Seeded, gaussian


def build(transport=None) -> SlotAttention:
    torch.manual_seed(0)
    return SlotAttention(6, 5, 3, transport)


INPUTS = torch.randn(2, 20, 6, generator=torch.Generator().manual_seed(1))
SLOTS = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2))


def test_a_seed_decides_everything() -> None:
    module = build()
    first = module(INPUTS, noise=7).slots
    torch.manual_seed(3)
    assert torch.equal(module(INPUTS, noise=7).slots, first)
    assert torch.equal(module(INPUTS, noise=torch.tensor(7)).slots, first)
    assert not torch.allclose(module(INPUTS, noise=8).slots, first, atol=1e-2)


def test_numbers_replace_the_noise_of_mesh() -> None:
    module = build(Mesh(noise=0.1))
    noise = torch.randn(3, 20)
    out = module(INPUTS, SLOTS, noise=noise)
    context = module.transport.begin(module.norm_inputs(INPUTS), 3)
    given = context._replace(noise=0.1 * noise.expand(2, 3, 20))
    module.transport.begin = lambda *args, **options: given
    assert torch.equal(module(INPUTS, SLOTS).slots, out.slots)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_as_one_graph() -> None:
    torch.manual_seed(0)
    module = SlotAttention(6, 5, 3, Mesh(n_steps=1, n_iters=2), n_iters=1)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for noise in (torch.tensor(7), torch.tensor(8)):
        assert torch.allclose(
            compiled(INPUTS, noise=noise).slots, module(INPUTS, noise=noise).slots, atol=1e-4
        )
    noise = torch.randn(2, 3, 20)
    expected = module(INPUTS, SLOTS, noise=noise).slots
    assert torch.allclose(compiled(INPUTS, SLOTS, noise=noise).slots, expected, atol=1e-4)


def test_seeded_numbers_are_normal_and_independent() -> None:
    like = torch.empty(300, 1000)
    source = Seeded(5)
    draws = [gaussian(like, source), gaussian(like, source), gaussian(like, Seeded(6))]
    for x in draws:
        assert abs(x.mean()) < 0.01
        assert abs(x.std() - 1) < 0.01
        assert abs(x.pow(4).mean() - 3) < 0.1
        assert abs((x[1:] * x[:-1]).mean()) < 0.01
        assert abs((x[:, 1:] * x[:, :-1]).mean()) < 0.01
    for x, y in zip(draws, draws[1:] + draws[:1], strict=True):
        assert abs((x * y).mean()) < 0.01
    assert torch.equal(gaussian(like.double(), Seeded(6)).float(), draws[2])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"noise": 1.5}, r"noise is 1.5, expected a seed"),
        ({"noise": True}, r"noise is True, expected a seed"),
        ({"noise": torch.arange(3)}, r"expected a seed \(an int of 64 bits, or a tensor \(\)"),
        ({"noise": torch.randn(4, 20)}, r"noise has shape \(4, 20\) .* broadcasts to \(2, 3, 20\)"),
        ({"noise": 3, "generator": torch.Generator()}, r"both a seed as noise and a generator"),
    ],
)
def test_bad_noise(given, said) -> None:
    with pytest.raises(ValueError, match=said):
        build()(INPUTS, **given)


@pytest.mark.parametrize("transport", [Softmax, Sinkhorn, lambda: Mesh(noise=0.0)])
def test_numbers_that_nothing_would_use(transport) -> None:
    with pytest.raises(ValueError, match=r"got a noise tensor, but .* adds no noise"):
        build(transport())(INPUTS, noise=torch.randn(3, 20))


def test_numpy_integers_are_seeds() -> None:
    module = build()
    assert torch.equal(module(INPUTS, noise=np.int64(7)).slots, module(INPUTS, noise=7).slots)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 2**64}, "noise is 18446744073709551616, expected a seed .an int of 64 bits"),
        ({"generator": 3}, "generator is 3, expected a torch.Generator. Pass a number as noise"),
    ],
)
def test_what_is_no_source_is_named(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        build()(INPUTS, **options)
