"""Images as the models take them, and what they say to others."""

import numpy as np
import pytest
import torch

from slotmesh.models import to_unit
from slotmesh.nn import Softmax

IMAGES = {"properties": "PropertyPredictor", "discovery": "ObjectDiscovery"}


def test_uint8_goes_from_minus_one_to_one():
    levels = torch.arange(256, dtype=torch.uint8)
    expected = torch.from_numpy(np.linspace(-1, 1, 256))
    torch.testing.assert_close(to_unit(levels, torch.float64), expected, rtol=0, atol=1e-15)
    single = to_unit(levels)
    assert single.dtype == torch.float32
    assert (single[0], single[-1]) == (-1.0, 1.0)
    assert (single.diff() > 0).all()


def test_floats_go_from_zero_to_one():
    levels = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(to_unit(levels / 255), to_unit(levels), rtol=0, atol=1e-6)
    image = torch.rand(2, 3, 4, 5)
    assert torch.equal(to_unit(image), 2 * image - 1)
    assert to_unit(image.bfloat16()).dtype == torch.bfloat16
    # Resized or stored in half precision, a pixel may be a little outside.
    assert to_unit(torch.tensor([-0.005, 1.005])).isfinite().all()
    assert to_unit(torch.empty(0, 3, 4, 5)).shape == (0, 3, 4, 5)


BAD = [
    (lambda x: x.long(), r"has dtype torch.int64, expected torch.uint8, or floats from 0 to 1"),
    (lambda x: x > 0, r"has dtype torch.bool, expected torch.uint8"),
    (lambda x: 255 * x, r"has values from [\d.]+ to 2[\d.]+, expected floats from 0 to 1. Pass"),
    (lambda x: 2 * x - 1, r"has values from -[\d.]+ to [\d.]+, expected .* as \(\w+ \+ 1\) / 2"),
    (lambda x: x - 3, r"has values from -[\d.]+ to -[\d.]+, expected floats from 0 to 1"),
    (lambda x: x.where(x < 0.9, torch.nan), r"has \d+ entries that are not finite"),
    (lambda x: x.tolist(), r"is a list, expected a tensor of uint8, or of floats"),
    (lambda x: x.numpy(), r"is a ndarray, expected a tensor .* torch.as_tensor"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD)
def test_to_unit_names_what_came(spoil, message):
    with pytest.raises(ValueError, match=r"to_unit: image " + message):
        to_unit(spoil(torch.rand(1, 3, 8, 8)))


MODEL_BAD = [
    *BAD,
    (lambda x: x.double(), r"is torch.float64, expected torch.uint8, or torch.float32 like the"),
    (lambda x: x[..., :-1], r"has shape .* expected \(batch, .*3, \d+, \d+\). Resize it"),
    (lambda x: x[..., :1, :, :], r"has shape .* expected \(batch,"),
    (lambda x: x.movedim(-3, -1), r"has shape .*Channels come first: use \w+.movedim\(-1, -3\)"),
    (lambda x: x[0], r"has shape .* Add the missing dimension with \w+\[None\]"),
    (lambda x: x[:0], r"has shape \(0, .* expected \(batch, "),
    (lambda x: x.to("meta"), r"is on meta, expected cpu, where the model is"),
]


@pytest.mark.parametrize(("spoil", "message"), MODEL_BAD)
@pytest.mark.parametrize("name", list(IMAGES))
def test_image_models_name_what_came(name, spoil, message, build, data):
    with pytest.raises(ValueError, match=rf"{IMAGES[name]}: image " + message):
        build(name, Softmax())(spoil(data(name)))


@pytest.mark.parametrize(("spoil", "message"), MODEL_BAD)
def test_the_video_model_names_what_came(spoil, message, build, data):
    with pytest.raises(ValueError, match=r"VideoObjectDiscovery: video " + message):
        build("video", Softmax())(spoil(data("video")))


def test_a_video_without_frames_is_named(build, data):
    with pytest.raises(ValueError, match=r"video has shape \(2, 0, 3, 7, 9\), expected \(batch, T"):
        build("video", Softmax())(data("video")[:, :0])


def test_the_set_copier_names_what_came(build):
    with pytest.raises(ValueError, match=r"inputs have shape \(2, 8, 5\), expected \(\.\.\., n, 6"):
        build("copier", Softmax())(torch.zeros(2, 8, 5))


@pytest.mark.parametrize("name", ["properties", "discovery", "video"])
def test_wrong_slots_are_named(name, build, data):
    with pytest.raises(ValueError, match=r"slots have shape \(1, 3, 6\), expected \(2, m, 6\)"):
        build(name, Softmax())(data(name), slots=torch.zeros(1, 3, 6))


def test_bad_settings_are_named(build):
    with pytest.raises(ValueError, match=r"PropertyPredictor: n_properties is 0, expected"):
        build("properties", n_properties=0)
    with pytest.raises(ValueError, match=r"transport is 'mesh', expected an object such as"):
        build("discovery", "mesh")
    with pytest.raises(ValueError, match=r"got extra_step without implicit"):
        build("copier", implicit=False, extra_step=True)


@pytest.mark.parametrize("name", ["properties", "discovery", "video"])
def test_an_empty_batch_is_named(name, build, data):
    with pytest.raises(ValueError, match=r"has shape \(0, .* There is nothing in it: leave it out"):
        build(name)(data(name)[:0])
