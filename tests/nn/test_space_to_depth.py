"""Convolutions between blocks of pixels against torch's between pixels."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from slotmesh.nn import ConvEncoder, SpatialBroadcastDecoder, space_to_depth
from slotmesh.nn.space_to_depth import (
    PIXEL,
    Convolutions,
    block_for,
    convolve_blocks,
    depth_to_space,
)

BLOCKS = [(1, 2), (2, 1), (2, 2), (2, 4), (3, 3), (4, 2)]


@pytest.fixture
def on_matrix_units(monkeypatch):
    """Take the CPU for a GPU that has them."""
    monkeypatch.setattr(space_to_depth, "_on_matrix_units", lambda x: True)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks_hold_the_pixels(block):
    x = torch.arange(2 * 3 * 12 * 24.0).reshape(2, 3, 12, 24)
    deep = space_to_depth.space_to_depth(x, block)
    assert deep.is_contiguous(memory_format=torch.channels_last)
    # torch's own order has the channels outside.
    pixels = F.unfold(x, block, stride=block).unflatten(1, (3, -1)).transpose(1, 2).flatten(1, 2)
    assert torch.equal(deep.flatten(2), pixels)
    assert torch.equal(depth_to_space(deep, block), x)


def test_blocks_of_a_row_are_a_view():
    x = torch.randn(2, 8, 4, 6).to(memory_format=torch.channels_last)
    deep = space_to_depth.space_to_depth(x, (1, 2))
    assert deep.data_ptr() == x.data_ptr()
    assert depth_to_space(deep, (1, 2)).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 5), (7, 3)], ids=str)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_layer_with_its_gradients(block, kernel, kind, bias):
    padding = (kernel[0] // 2, kernel[1] // 2)
    layer = kind(3, 4, kernel, padding=padding, bias=bias).double()
    image = torch.randn(2, 3, 12, 24, dtype=torch.float64, requires_grad=True)
    deep = convolve_blocks(space_to_depth.space_to_depth(image, block), layer, block)
    results = layer(image), depth_to_space(deep, block)
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)
    leaves = [image, *layer.parameters()]
    gradients = [torch.autograd.grad(y.sin().sum(), leaves) for y in results]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("on_matrix_units")
@pytest.mark.parametrize("strides", [(1, 1, 1, 1), (1, 2, 2, 1), (1, 1, 3)], ids=str)
@pytest.mark.parametrize("channels", [5, 40])
def test_an_encoder(monkeypatch, channels, strides):
    encoder = ConvEncoder(channels, strides=strides, resolution=(36, 72)).double()
    image = torch.randn(2, 3, 36, 72, dtype=torch.float64)
    seen = []
    convolve = space_to_depth.convolve_blocks
    monkeypatch.setattr(
        space_to_depth, "convolve_blocks", lambda *args: (seen.append(args[2]), convolve(*args))[1]
    )
    blocks = encoder(image)
    assert seen[0] == (2, 2)
    assert ((1, 2) in seen) == (channels == 40 and strides.count(1) > 1 and strides[1] == 1)
    monkeypatch.setattr(space_to_depth, "block_for", lambda *args: PIXEL)
    torch.testing.assert_close(blocks, encoder(image), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("on_matrix_units")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_decoder(monkeypatch, compiled):
    decoder = SpatialBroadcastDecoder(6, 8, (32, 34)).double()
    slots = torch.randn(2, 3, 6, dtype=torch.float64)
    run = torch.compile(decoder, fullgraph=True, backend="aot_eager") if compiled else decoder
    blocks = run(slots)
    monkeypatch.setattr(space_to_depth, "block_for", lambda *args: PIXEL)
    torch.testing.assert_close(blocks, decoder(slots), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("on_matrix_units")
def test_where_there_are_no_blocks():
    def block(*sizes, stride=1, image=(64, 64)):
        layer = nn.Conv2d(*sizes, 5, stride, padding=2)
        return block_for(layer, torch.empty(1, sizes[0], *image, device="meta"))

    assert block(32, 32) == (2, 2)
    assert block(64, 64) == (1, 2)
    assert block(3, 64) == block(64, 4) == (2, 2)
    assert block(32, 32, stride=2) == block(32, 128) == block(128, 32) == PIXEL
    assert block(32, 32, image=(65, 64)) == block(32, 32, image=(64, 65)) == PIXEL
    assert block(64, 64, image=(65, 64)) == (1, 2)
    assert block(32, 32, image=(16, 16)) == PIXEL


def test_a_cpu_takes_layers_as_they_are():
    layers = Convolutions(nn.Conv2d(3, 8, 5, padding=2), nn.ReLU())
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(layers(image), nn.Sequential(*layers)(image))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "tf32", "32"])
def test_a_decoder_on_a_gpu(monkeypatch, precision, compiled):
    """As near to float64 as the layers without blocks."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    monkeypatch.setattr(torch.backends.cudnn.conv, "fp32_precision", "tf32")
    if precision == "32":
        monkeypatch.setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee")
    decoder = SpatialBroadcastDecoder(64, 32, (64, 64)).cuda()
    slots = torch.randn(8, 6, 64, device="cuda")
    torch.compiler.reset()
    run = torch.compile(decoder, fullgraph=True) if compiled else decoder

    def found(run):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            rgb = run(slots).rgb
        return torch.cat(
            [
                g.flatten()
                for g in (
                    rgb,
                    *torch.autograd.grad(rgb.float().square().sum(), list(decoder.parameters())),
                )
            ]
        ).double()

    asked = []
    kernel = space_to_depth.kernel_of_blocks
    monkeypatch.setattr(
        space_to_depth, "kernel_of_blocks", lambda *args: (asked.append(1), kernel(*args))[1]
    )
    blocks = found(run)
    assert bool(asked) == (precision != "32")
    monkeypatch.setattr(space_to_depth, "block_for", lambda *args: PIXEL)
    plain = found(decoder)
    decoder.double()
    slots = slots.double()
    precision = "64"
    exact = found(decoder)
    assert (blocks - exact).norm() <= 1.5 * (plain - exact).norm() + 1e-5 * exact.norm()
