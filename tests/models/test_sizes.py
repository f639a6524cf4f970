"""Shapes of what comes out, and parameters by closed form at the paper's sizes."""

import pytest
import torch

from slotmesh.models import ObjectDiscovery, PropertyPredictor, SetCopier, VideoObjectDiscovery
from slotmesh.nn import EMD, LearnedNoise, Mesh, Sinkhorn, Softmax

# The sizes of the small models: batch, frames, slots, size of a slot, image.
B, T, M, D, H, W = 2, 3, 3, 6, 7, 9
N = H * W


def shapes(out):
    return {k: tuple(v.shape) for k, v in out._asdict().items() if isinstance(v, torch.Tensor)}


def test_set_copier(build, data, transport):
    out = build("copier", transport())(data("copier"), trace=True)
    assert shapes(out) == {"slots": (B, M, 6), "attention": (B, M, 8), "trace": (B, 2, M, 8)}
    extra = build("copier", transport(), extra_step=True)(data("copier"), trace=True)
    assert extra.trace.shape == (B, 3, M, 8)


def test_property_predictor_on_an_odd_grid(build, data, transport):
    model = build("properties", transport())
    # 14 x 18, halved twice, rounded up.
    assert model.encoder.out_grid == (4, 5)
    out = model(data("properties"), trace=True)
    assert shapes(out) == {
        "properties": (B, M, 5),
        "slots": (B, M, D),
        "attention": (B, M, 20),
        "trace": (B, 2, M, 20),
    }
    assert out.transport.plan.shape == (B, M, 20)


def test_object_discovery_at_an_odd_resolution(build, data, transport):
    model = build("discovery", transport())
    assert model.encoder.out_grid == (H, W)
    out = model(data("discovery"), trace=True)
    assert shapes(out) == {
        "reconstruction": (B, 3, H, W),
        "rgb": (B, M, 3, H, W),
        "masks": (B, M, H, W),
        "slots": (B, M, D),
        "attention": (B, M, N),
        "trace": (B, 2, M, N),
    }
    assert out.transport.plan.shape == (B, M, N)
    assert model(data("discovery")).trace is None


def test_video_object_discovery_has_time_after_the_batch(build, data, transport):
    out = build("video", transport())(data("video"), trace=True)
    assert shapes(out) == {
        "reconstruction": (B, T, 3, H, W),
        "rgb": (B, T, M, 3, H, W),
        "masks": (B, T, M, H, W),
        "slots": (B, T, M, D),
        "attention": (B, T, M, N),
        "trace": (B, T, 2, M, N),
        "kl": (B,),
    }
    assert {k: tuple(v.shape) for k, v in out.transport._asdict().items()} == {
        "plan": (B, T, M, N),
        "u": (B, T, M),
        "v": (B, T, N),
        "cost": (B, T, M, N),
        "marginal_error": (B, T),
        "n_iters": (B, T),
        "converged": (B, T),
        "temperature": (B, T),
    }
    assert out.transport.entropy().shape == (B, T)


@pytest.mark.parametrize("name", ["properties", "discovery", "video"])
def test_another_number_of_slots_in_a_call(name, build, data):
    model = build(name, Softmax())
    assert model(data(name), n_slots=5).slots.shape[-2] == 5
    assert model(data(name), slots=torch.randn(B, 4, D)).slots.shape[-2] == 4


def linear(fan_in, fan_out, bias=True):
    return fan_in * fan_out + bias * fan_out


def conv(fan_in, fan_out, kernel):
    return fan_in * fan_out * kernel**2 + fan_out


def encoder(c):
    position, norm = linear(4, c), 2 * c
    return conv(3, c, 5) + 3 * conv(c, c, 5) + position + norm + 2 * linear(c, c)


def decoder(d, c):
    return linear(4, d) + conv(d, c, 5) + 2 * conv(c, c, 5) + conv(c, 4, 3)


def slot_attention(i, d, hidden, marginals, learned_start):
    norms = 2 * i + 2 * d + 2 * d
    projections = linear(d, d, False) + 2 * linear(i, d, False)
    gru = 3 * (linear(d, d) + linear(d, d))
    mlp = linear(d, hidden) + linear(hidden, d)
    heads = sum(linear(k, hidden) + linear(hidden, 1, False) for k in (i, d))
    return norms + projections + gru + mlp + marginals * heads + learned_start * 2 * d


@pytest.mark.parametrize("make", [Softmax, Sinkhorn, EMD, Mesh])
def test_parameters_at_the_papers_sizes(make):
    marginals = make is not Softmax
    noise = 2 * 64 + linear(64, 128) + linear(128, 128)
    expected = {
        SetCopier(transport=make()): slot_attention(32, 32, 64, marginals, False),
        PropertyPredictor(transport=make()): encoder(64)
        + slot_attention(64, 64, 128, marginals, False)
        + linear(64, 64)
        + linear(64, 19),
        ObjectDiscovery(transport=make()): encoder(32)
        + slot_attention(32, 64, 128, marginals, True)
        + decoder(64, 32),
        ObjectDiscovery(11, make(), channels=64, slot_dim=128, mlp_dim=256): encoder(64)
        + slot_attention(64, 128, 256, marginals, True)
        + decoder(128, 64),
        VideoObjectDiscovery(transport=make(), transition=LearnedNoise()): encoder(32)
        + slot_attention(32, 64, 128, marginals, True)
        + decoder(64, 32)
        + noise,
    }
    for model, count in expected.items():
        assert sum(p.numel() for p in model.parameters()) == count, type(model).__name__


def test_defaults_are_the_papers():
    copier, properties = SetCopier(), PropertyPredictor()
    discovery, video = ObjectDiscovery(), VideoObjectDiscovery()
    assert [m.attention.n_slots for m in (copier, properties, discovery, video)] == [5, 10, 6, 8]
    assert [m.attention.implicit for m in (copier, properties, discovery, video)] == [
        True,
        True,
        False,
        False,
    ]
    for model in (copier, properties, discovery, video):
        assert isinstance(model.attention.transport, Mesh)
        assert model.attention.n_iters == 3
    kinds = [type(m.attention.init).__name__ for m in (copier, properties, discovery, video)]
    assert kinds == ["FixedGaussian", "FixedGaussian", "LearnedGaussian", "LearnedGaussian"]
    assert properties.encoder.out_grid == (32, 32)
    assert discovery.encoder.out_grid == (64, 64)
    assert [m.out_channels for m in discovery.encoder.convolutions[::2]] == [32] * 4


def test_the_start_follows_implicit_differentiation(build):
    kinds = {
        (name, implicit): type(build(name, implicit=implicit).attention.init).__name__
        for name in ("copier", "properties", "discovery", "video")
        for implicit in (True, False)
    }
    assert kinds.pop(("copier", False)) == "FixedGaussian"
    for (name, implicit), kind in kinds.items():
        assert kind == ("FixedGaussian" if implicit else "LearnedGaussian"), name
