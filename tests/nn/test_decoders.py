"""The decoder: its shortcut against the plain layers, and what masks have to satisfy."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.nn import Decoded, SpatialBroadcastDecoder, compose

SLOT_DIM = 5


def make(resolution=(6, 9), channels=4):
    return SpatialBroadcastDecoder(SLOT_DIM, channels, resolution).double()


def plain(decoder, slots):
    """The layers as the paper draws them: broadcast, position, deconvolutions."""
    flat = slots.flatten(0, -2)[..., None, None].expand(-1, -1, *decoder.resolution)
    rgba = decoder.rest(decoder.first(decoder.position(flat)))
    rgba = rgba.reshape(*slots.shape[:-1], 4, *decoder.resolution)
    return Decoded(rgba[..., :3, :, :], rgba[..., 3, :, :])


@pytest.mark.parametrize(
    ("slot_dim", "channels", "parameters"), [(64, 32, 103972), (128, 64, 412740)]
)
def test_the_papers_decoders(slot_dim, channels, parameters):
    decoder = SpatialBroadcastDecoder(slot_dim, channels)
    first = slot_dim * channels * 25 + channels
    others = 2 * (channels * channels * 25 + channels)
    last, position = channels * 4 * 9 + 4, 4 * slot_dim + slot_dim
    assert parameters == first + others + last + position
    assert sum(p.numel() for p in decoder.parameters()) == parameters


def test_on_the_meta_device_while_another_library_has_replaced_linspace(monkeypatch):
    # transformers does that while it loads a model. If torch.device is a context for the first
    # time then, it never knows the function that is put back.
    monkeypatch.setattr(torch, "linspace", partial(torch.linspace))
    with torch.device("meta"):
        decoder = SpatialBroadcastDecoder(SLOT_DIM, 4, (6, 9))
    assert {x.device.type for x in (*decoder.parameters(), *decoder.buffers())} == {"meta"}


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 3))
def test_the_first_layer_equals_the_plain_one_with_its_gradients(height, width, m):
    decoder = make((height, width))
    slots = torch.randn(2, m, SLOT_DIM, dtype=torch.float64, requires_grad=True)
    results, gradients = [], []
    for run in (decoder, lambda slots: plain(decoder, slots)):
        out = run(slots)
        image, masks = compose(out)
        results.append((*out, masks))
        loss = image.square().sum() + out.rgb.square().sum()
        gradients.append(torch.autograd.grad(loss, [slots, *decoder.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_any_leading_dimensions(batch):
    decoder, slots = make(), torch.randn(*batch, 4, SLOT_DIM, dtype=torch.float64)
    out = decoder(slots)
    assert out.rgb.shape == (*batch, 4, 3, 6, 9)
    assert out.logits.shape == (*batch, 4, 6, 9)
    image, masks = compose(out)
    assert image.shape == (*batch, 3, 6, 9)
    assert masks.shape == (*batch, 4, 6, 9)


def test_a_picture_depends_on_its_own_slot_alone_and_follows_it():
    decoder, slots = make(), torch.randn(2, 4, SLOT_DIM, dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    out, permuted = decoder(slots), decoder(slots[:, order])
    torch.testing.assert_close(permuted.rgb, out.rgb[:, order])
    torch.testing.assert_close(permuted.logits, out.logits[:, order])
    torch.testing.assert_close(compose(permuted)[0], compose(out)[0])
    torch.testing.assert_close(compose(permuted)[1], compose(out)[1][:, order])
    torch.testing.assert_close(decoder(slots[1, 2:3]).rgb[0], out.rgb[1, 2])
    assert (out.rgb[0, 0] - out.rgb[0, 1]).abs().max() > 1e-3


@given(st.integers(1, 6), st.floats(0.1, 40.0))
def test_composing_is_a_convex_combination(m, scale):
    decoded = Decoded(
        torch.randn(2, m, 3, 4, 5, dtype=torch.float64),
        scale * torch.randn(2, m, 4, 5, dtype=torch.float64),
    )
    image, masks = compose(decoded)
    torch.testing.assert_close(masks.sum(1), torch.ones(2, 4, 5, dtype=torch.float64))
    assert (masks >= 0).all()
    expected = torch.einsum("bmhw,bmchw->bchw", masks, decoded.rgb)
    torch.testing.assert_close(image, expected)
    assert (image <= decoded.rgb.amax(1) + 1e-12).all()
    assert (image >= decoded.rgb.amin(1) - 1e-12).all()
    # Only differences between slots count.
    torch.testing.assert_close(compose(decoded._replace(logits=decoded.logits + 3.0))[1], masks)


def test_one_sure_slot_is_the_image():
    decoded = Decoded(torch.randn(3, 3, 4, 5), torch.zeros(3, 4, 5))
    decoded.logits[1] = 200.0
    image, masks = compose(decoded)
    assert torch.equal(image, decoded.rgb[1])
    assert torch.equal(masks.argmax(0), torch.ones(4, 5, dtype=torch.int64))


def test_autocast_takes_float32_slots_and_stays_close():
    decoder = make(channels=8).float().bfloat16().float()
    slots = torch.randn(2, 4, SLOT_DIM, requires_grad=True)
    expected = compose(decoder(slots))
    with torch.autocast("cpu", torch.bfloat16):
        out = decoder(slots)
        image, masks = compose(out)
    assert out.rgb.dtype == torch.bfloat16
    assert image.dtype == masks.dtype == torch.float32
    torch.testing.assert_close((image, masks), expected, rtol=0, atol=0.02)
    torch.testing.assert_close(masks.sum(1), torch.ones(2, 6, 9), rtol=0, atol=1e-6)
    image.square().sum().backward()
    assert slots.grad.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in decoder.parameters())


def test_channels_last_changes_nothing_but_the_memory():
    decoder, slots = make(), torch.randn(2, 4, SLOT_DIM, dtype=torch.float64)
    expected = decoder(slots)
    decoder = decoder.to(memory_format=torch.channels_last)
    out = decoder(slots)
    torch.testing.assert_close(out, expected)
    assert out.rgb.stride(-3) == 1


def test_only_parameters_are_saved():
    decoder = make()
    assert set(decoder.state_dict()) == {name for name, _ in decoder.named_parameters()}


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([1.0], r"slots is a list, expected a tensor"),
        (torch.zeros(5), r"slots has shape \(5,\), expected at least two dimensions"),
        (torch.zeros(2, 3, 4), r"slots have shape \(2, 3, 4\), expected \(\.\.\., m, 5\)"),
        (torch.zeros(2, 3, 5), r"slots are torch.float32, expected torch.float64"),
        (
            torch.zeros(3, 5, dtype=torch.int64),
            r"slots has dtype torch.int64, expected a floating-point",
        ),
    ],
)
def test_bad_slots_are_named(slots, message):
    with pytest.raises(ValueError, match=r"SpatialBroadcastDecoder: " + message):
        make()(slots)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0,), r"slot_dim is 0"),
        ((5, 0), r"channels is 0"),
        ((5, 4, (3,)), r"resolution is \(3,\)"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=r"SpatialBroadcastDecoder: " + message):
        SpatialBroadcastDecoder(*settings)
