"""Half precision, memory formats, and contexts without gradients."""

import pytest
import torch

from slotmesh.nn import Mesh, Softmax


@pytest.mark.parametrize("name", ["properties", "discovery", "video"])
@pytest.mark.parametrize("make", [Softmax, Mesh])
def test_autocast_keeps_slots_in_float32(name, make, build, data, loss):
    model = build(name, make()).bfloat16().float()
    image, slots = data(name, torch.uint8), torch.randn(2, 3, 6)
    expected = model(image, slots=slots)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(image, slots=slots)
        half = model((image / 255).bfloat16(), slots=slots)
    assert out.slots.dtype == half.slots.dtype == torch.float32
    assert half.slots.isfinite().all()
    if name != "properties":
        assert out.reconstruction.dtype == out.masks.dtype == torch.float32
    if name != "video":
        assert (out.slots - expected.slots).abs().max() < 0.1
    loss(name, out).backward()
    for key, value in model.named_parameters():
        if value.grad is not None:
            assert value.grad.isfinite().all(), key
    assert model.encoder.convolutions[0].weight.grad.abs().max() > 0


def test_a_bfloat16_model(name, build, data, loss):
    model = build(name, Softmax()).bfloat16()
    out = model(data(name, torch.bfloat16))
    assert out.slots.dtype == torch.bfloat16
    loss(name, out).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["properties", "discovery", "video"])
def test_channels_last_changes_nothing_but_the_memory(name, build, data, tensors):
    model = build(name, Softmax()).double()
    image = data(name, torch.float64)
    rng = torch.Generator()
    expected = tensors(model(image, generator=rng.manual_seed(0)))
    model = model.to(memory_format=torch.channels_last)
    if name != "video":
        image = image.to(memory_format=torch.channels_last)
    out = tensors(model(image, generator=rng.manual_seed(0)))
    for key, value in out.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-10)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_result_is_the_same_and_has_no_graph(
    context, name, transport, build, data, tensors
):
    model, inputs = build(name, transport()), data(name)
    rng = torch.Generator()
    expected = tensors(model(inputs, generator=rng.manual_seed(0)))
    with context():
        out = tensors(model(inputs, generator=rng.manual_seed(0)))
    for key, value in out.items():
        assert not value.requires_grad
        torch.testing.assert_close(value.clone(), expected[key].detach(), rtol=0, atol=1e-6)


def test_a_model_on_the_meta_device_gives_shapes(name, build, data):
    model = build(name, Softmax()).to("meta")
    out = model(data(name).to("meta"))
    assert out.slots.is_meta
    assert out.slots.shape[-2:] == (3, 6)
