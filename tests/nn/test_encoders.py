"""The encoder, against scipy's correlation and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import correlate2d

from slotmesh.nn import ConvEncoder


def count(channels, kernel=5, layers=4, in_channels=3):
    """Parameters of an encoder whose inputs have as many numbers as there are channels."""
    first = in_channels * channels * kernel**2 + channels
    others = (layers - 1) * (channels * channels * kernel**2 + channels)
    position, norm, network = 4 * channels + channels, 2 * channels, 2 * (channels**2 + channels)
    return first + others + position + norm + network


@pytest.mark.parametrize(
    ("settings", "grid", "parameters"),
    [
        ({"channels": 32}, (64, 64), 81664),
        ({"channels": 64}, (64, 64), 321024),
        (
            {"channels": 64, "strides": (1, 2, 2, 1), "resolution": (128, 128)},
            (32, 32),
            321024,
        ),
    ],
)
def test_the_papers_encoders(settings, grid, parameters):
    encoder = ConvEncoder(**settings)
    assert encoder.out_grid == grid
    assert sum(p.numel() for p in encoder.parameters()) == parameters == count(encoder.out_dim)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from([1, 3, 5]),
    st.tuples(st.integers(1, 11), st.integers(1, 11)),
)
def test_out_grid_is_the_grid_that_comes_out(strides, kernel_size, resolution):
    encoder = ConvEncoder(
        2, in_channels=1, out_dim=3, strides=strides, kernel_size=kernel_size, resolution=resolution
    )
    grid = encoder.convolutions(torch.zeros(1, 1, *resolution))
    assert tuple(grid.shape[-2:]) == encoder.out_grid
    h, w = encoder.out_grid
    assert encoder(torch.zeros(2, 1, *resolution)).shape == (2, h * w, 3)


def reference(encoder, image):
    """One image through an encoder of strides 1 and 2, in numpy and scipy."""
    x = image.numpy()
    for layer in encoder.convolutions[::2]:
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        pad, stride = weight.shape[-1] // 2, layer.stride[0]
        padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
        x = np.stack(
            [
                sum(correlate2d(p, k, "valid") for p, k in zip(padded, kernel, strict=True))
                for kernel in weight
            ]
        )
        x = np.maximum(x[:, ::stride, ::stride] + bias[:, None, None], 0)
    x = x + encoder.position.embedding().detach().numpy()
    x = x.reshape(len(x), -1).T
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    norm, one, _, two = encoder.head
    x = (x - mean) / np.sqrt(var + norm.eps)
    x = x * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    x = np.maximum(x @ one.weight.detach().numpy().T + one.bias.detach().numpy(), 0)
    return x @ two.weight.detach().numpy().T + two.bias.detach().numpy()


def small(**settings):
    settings = {"strides": (1, 2, 1), "resolution": (7, 10), "out_dim": 6, **settings}
    encoder = ConvEncoder(4, **settings).double()
    with torch.no_grad():
        # A fresh LayerNorm is the identity.
        for value in encoder.head[0].parameters():
            value.add_(0.3 * torch.randn_like(value))
    return encoder


def test_it_equals_a_reference_in_scipy():
    encoder, image = small(), torch.randn(3, 7, 10, dtype=torch.float64)
    actual = encoder(image[None])[0].detach().numpy()
    np.testing.assert_allclose(actual, reference(encoder, image), rtol=0, atol=1e-12)


def test_any_leading_dimensions():
    encoder, images = small(), torch.randn(2, 3, 3, 7, 10, dtype=torch.float64)
    out = encoder(images)
    assert out.shape == (2, 3, 4 * 5, 6)
    torch.testing.assert_close(out.flatten(0, 1), encoder(images.flatten(0, 1)))
    torch.testing.assert_close(out[1, 2], encoder(images[1, 2]))


def test_inputs_are_the_cells_row_by_row():
    """A pixel reaches the cells within the radius of the kernels, and no others."""
    encoder = small(strides=(1, 1), kernel_size=3, resolution=(6, 9))
    image = torch.rand(1, 3, 6, 9, dtype=torch.float64)
    changed = image.clone()
    changed[0, :, 2, 6] += 100.0
    moved = (encoder(image) - encoder(changed)).abs().amax(-1).reshape(6, 9) > 0
    expected = torch.zeros(6, 9, dtype=torch.bool)
    expected[0:5, 4:9] = True
    assert not moved[~expected].any()
    assert moved[2, 6]
    assert moved[expected].float().mean() > 0.5


def test_channels_last_changes_nothing_but_the_memory():
    encoder, image = small(), torch.randn(2, 3, 7, 10, dtype=torch.float64)
    expected = encoder(image)
    encoder = encoder.to(memory_format=torch.channels_last)
    out = encoder(image.to(memory_format=torch.channels_last))
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("shape", [(7, 10), (2, 7, 10, 3), (2, 3, 10, 7), (2, 1, 7, 10)])
def test_an_image_of_another_size_is_named(shape):
    with pytest.raises(
        ValueError, match=r"image has shape .* expected \(\.\.\., 3, 7, 10\), channels first"
    ):
        small()(torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"channels": 0}, r"channels is 0, expected a whole number"),
        ({"in_channels": 1.0}, r"in_channels is 1.0, expected"),
        ({"out_dim": -1}, r"out_dim is -1, expected"),
        ({"kernel_size": 4}, r"kernel_size is 4, expected an odd number.* Pass 3 or 5"),
        ({"strides": ()}, r"strides is \(\), expected one stride per convolution"),
        ({"strides": 2}, r"strides is 2, expected one stride"),
        ({"strides": (1, 0)}, r"strides\[1\] is 0, expected"),
        ({"resolution": 64}, r"resolution is 64, expected a height and a width"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=r"ConvEncoder: " + message):
        ConvEncoder(**settings)
