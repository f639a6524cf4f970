"""From the slots of one frame to the first slots of the next."""

import json

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from slotmesh.nn import FixedNoise, LearnedNoise, Transition
from slotmesh.nn.part import Part


def test_plain_transition_hands_slots_on():
    slots = torch.randn(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    out = Transition()(slots)
    assert out.slots is slots
    assert torch.equal(out.kl, torch.zeros(2, 4, dtype=torch.float64))


def test_fixed_noise_has_its_deviation_in_training_and_evaluation():
    slots = torch.randn(1, 3, 5).expand(4000, 3, 5)
    noise = FixedNoise(0.3)
    for mode in (True, False):
        out = noise.train(mode)(slots)
        change = out.slots - slots
        torch.testing.assert_close(change.std(0), torch.full((3, 5), 0.3), rtol=0.06, atol=0)
        assert change.mean(0).abs().max() < 0.03
        assert torch.equal(out.kl, torch.zeros(4000))
    assert repr(noise) == "FixedNoise(std=0.3)"
    assert FixedNoise().std == 0.1


def test_fixed_noise_lets_gradients_through_unchanged():
    slots = torch.randn(2, 3, 5, requires_grad=True)
    FixedNoise(0.3)(slots).slots.sum().backward()
    assert torch.equal(slots.grad, torch.ones(2, 3, 5))


@pytest.mark.parametrize("transition", [FixedNoise(0.2), LearnedNoise().bind(slot_dim=5)])
def test_a_generator_makes_noise_repeatable(transition):
    slots = torch.randn(2, 3, 5)
    first, second = (transition(slots, torch.Generator().manual_seed(2)).slots for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, transition(slots, torch.Generator().manual_seed(3)).slots)


def make(prior_std=0.4):
    """A LearnedNoise that is far from its prior."""
    noise = LearnedNoise(prior_std=prior_std).bind(slot_dim=5).double()
    with torch.no_grad():
        noise.predict[-1].weight.mul_(3.0)
        noise.predict[-1].bias.copy_(torch.linspace(-1.5, 1.5, 10))
    return noise


def predicted(noise, slots):
    """The two Gaussians: the predicted one and the prior around the last slots."""
    shift, log_variance = noise.predict(slots).chunk(2, -1)
    mean = slots + noise.prior_std * shift
    std = noise.prior_std * torch.exp(log_variance / 2)
    prior = Normal(slots, torch.full_like(slots, noise.prior_std))
    return Independent(Normal(mean, std), 1), Independent(prior, 1)


def test_learned_noise_has_the_divergence_of_two_full_gaussians():
    noise, slots = make(), torch.randn(2, 4, 3, 5, dtype=torch.float64)
    out = noise(slots)
    assert out.slots.shape == slots.shape
    assert out.kl.shape == (2, 4)
    expected = kl_divergence(*predicted(noise, slots)).mean(-1)
    assert expected.min() > 0.5
    torch.testing.assert_close(out.kl, expected, rtol=1e-12, atol=0)


def test_learned_noise_draws_from_the_gaussian_it_predicts():
    noise, slots = make(), torch.randn(3, 5, dtype=torch.float64)
    with torch.no_grad():
        draws = noise(slots.expand(20000, 3, 5)).slots
        gaussian, _ = predicted(noise, slots)
    mean, std = gaussian.base_dist.mean, gaussian.base_dist.stddev
    assert (mean - slots).abs().max() > 0.2
    assert std.max() / std.min() > 2
    assert ((draws.mean(0) - mean).abs() < 5 * std / 20000**0.5).all()
    torch.testing.assert_close(draws.std(0), std, rtol=0.03, atol=0)


def test_a_network_that_says_zero_is_the_prior_itself():
    noise = make(prior_std=0.25)
    with torch.no_grad():
        noise.predict[-1].weight.zero_()
        noise.predict[-1].bias.zero_()
    slots = torch.randn(2000, 3, 5, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    out = noise(slots, rng)
    assert torch.equal(out.kl, torch.zeros(2000, dtype=torch.float64))
    drawn = torch.randn(2000, 3, 5, dtype=torch.float64, generator=rng.manual_seed(0))
    torch.testing.assert_close(out.slots, slots + 0.25 * drawn, rtol=0, atol=1e-14)


def test_gradients_reach_the_network_from_the_slots_and_from_the_divergence():
    noise, slots = make(), torch.randn(2, 3, 5, dtype=torch.float64)
    for term in (lambda out: out.slots.square().sum(), lambda out: out.kl.sum()):
        noise.zero_grad()
        term(noise(slots)).backward()
        for name, value in noise.named_parameters():
            assert value.grad is not None, name
            assert value.grad.abs().max() > 0, name
    # Both halves of the prediction: the mean and the variance.
    noise.zero_grad()
    noise(slots).slots.square().sum().backward()
    assert (noise.predict[-1].bias.grad.reshape(2, 5) != 0).all()


def test_learned_noise_tells_equal_slots_apart():
    slots = LearnedNoise().bind(slot_dim=5)(torch.ones(3, 5)).slots
    assert torch.pdist(slots).min() > 1e-3


def test_hidden_width_and_repr():
    assert LearnedNoise().bind(slot_dim=5).predict[1].out_features == 10
    wide = LearnedNoise(hidden_dim=7, prior_std=0.2).bind(slot_dim=5)
    assert wide.predict[1].out_features == 7
    assert repr(wide).startswith("LearnedNoise(\n  hidden_dim=7, prior_std=0.2\n")
    assert sum(p.numel() for p in wide.parameters()) == 2 * 5 + (5 * 7 + 7) + (7 * 10 + 10)


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (Transition, {"kind": "Transition"}),
        (lambda: FixedNoise(0.3), {"kind": "FixedNoise", "std": 0.3}),
        (LearnedNoise, {"kind": "LearnedNoise", "hidden_dim": None, "prior_std": 0.1}),
    ],
)
def test_every_transition_survives_json(make, config):
    transition = make()
    assert transition.to_config() == config
    again = Part.from_config(json.loads(json.dumps(config)))
    assert type(again) is type(transition)
    assert again.to_config() == config


def test_a_bound_network_says_how_wide_it_became():
    assert LearnedNoise().bind(slot_dim=5).to_config()["hidden_dim"] == 10


def test_a_transition_has_one_owner():
    noise = LearnedNoise().bind(slot_dim=5)
    with pytest.raises(ValueError, match=r"LearnedNoise: this object is already part of a module"):
        noise.bind(slot_dim=5)


def test_learned_noise_without_sizes_says_so():
    with pytest.raises(ValueError, match=r"LearnedNoise: it has no weights yet, .*bind\("):
        LearnedNoise()(torch.randn(3, 5))


@pytest.mark.parametrize("make", [Transition, FixedNoise, LearnedNoise])
def test_slots_keep_their_dtype_and_the_divergence_is_not_rounded(make):
    transition = make().bind(slot_dim=5)
    slots = torch.randn(2, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        out = transition(slots)
    assert out.slots.dtype == out.kl.dtype == torch.float32
    out = transition.bfloat16()(slots.bfloat16())
    assert (out.slots.dtype, out.kl.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FixedNoise(-0.1),
            r"FixedNoise: std is -0.1, expected a finite number of at least",
        ),
        (lambda: FixedNoise(float("nan")), r"FixedNoise: std is nan, expected a finite number"),
        (
            lambda: LearnedNoise(hidden_dim=0),
            r"LearnedNoise: hidden_dim is 0, expected a whole number",
        ),
        (lambda: LearnedNoise(prior_std=0.0), r"LearnedNoise: prior_std is 0.0, .* above 0"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
