"""What the models promise: gradients, randomness, independence of batch elements, composition."""

import pytest
import torch

from slotmesh.nn import EMD, LearnedGaussian, LearnedSlots, Mesh, Sinkhorn, Softmax

IMAGES = ["properties", "discovery", "video"]
QUIET = {
    "SA": Softmax,
    "SA-SH": lambda: Sinkhorn(n_iters=2),
    "SA-EMD": lambda: EMD(n_iters=2),
    "SA-MESH": lambda: Mesh(n_steps=2, n_iters=2, noise=0.0),
}


@pytest.fixture(params=list(QUIET))
def quiet(request):
    """Each of the four transports in turn, without the noise of MESH."""
    return QUIET[request.param]


def close(actual, expected, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tol)


@pytest.mark.parametrize("implicit", [False, True])
def test_a_gradient_reaches_every_parameter(name, implicit, transport, build, data, loss):
    model = build(name, transport(), implicit=implicit, init=LearnedGaussian()).double()
    loss(name, model(data(name, torch.float64))).backward()
    for key, value in model.named_parameters():
        assert value.grad is not None, key
        assert value.grad.isfinite().all(), key
        assert value.grad.abs().max() > 0, key


def test_implicit_slots_are_the_same_but_their_gradients_are_not(name, quiet, build, data, loss):
    plain = build(name, quiet(), init=LearnedSlots(), implicit=False).double()
    implicit = build(name, quiet(), init=LearnedSlots(), implicit=True).double()
    implicit.load_state_dict(plain.state_dict())
    outs, grads = [], []
    for model in (plain, implicit):
        out = model(data(name, torch.float64), generator=torch.Generator().manual_seed(0))
        outs.append(out.slots)
        loss(name, out).backward()
        grads.append(model.attention.gru.weight_hh.grad)
    close(outs[0], outs[1])
    assert (grads[0] - grads[1]).abs().max() > 1e-6


def test_a_generator_makes_everything_repeatable(name, transport, build, data, tensors):
    model = build(name, transport())
    first, second, other = (
        tensors(model(data(name), generator=torch.Generator().manual_seed(seed)))
        for seed in (1, 1, 2)
    )
    for key, value in first.items():
        assert torch.equal(value, second[key]), key
    assert not torch.equal(first["slots"], other["slots"])


def test_evaluation_gives_the_same_answer_twice(name, transport, build, data, tensors):
    model = build(name, transport(), init=LearnedGaussian()).eval()
    first, second, same, other = (
        tensors(model(data(name), **seed)) for seed in ({}, {}, {"seed": 0}, {"seed": 1})
    )
    for key, value in first.items():
        assert torch.equal(value, second[key]), key
        assert torch.equal(value, same[key]), key
    assert not torch.equal(first["slots"], other["slots"])
    # torch's own generator is left alone.
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model(data(name))
    assert torch.equal(torch.rand(3), expected)


def test_training_has_fresh_noise(name, build, data):
    model = build(name, Softmax(), init=LearnedGaussian())
    first, second = (model(data(name)).slots for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(model(data(name), seed=3).slots, model(data(name), seed=3).slots)
    with pytest.raises(ValueError, match="got both a generator and a seed, expected one of them"):
        model(data(name), seed=3, generator=torch.Generator())
    with pytest.raises(ValueError, match="seed is -1, expected a whole number of at least 0"):
        model(data(name), seed=-1)


@pytest.mark.parametrize("name", ["properties", "discovery"])
def test_a_batch_element_does_not_depend_on_the_others(name, quiet, build, data, tensors):
    model = build(name, quiet()).double()
    image, other = data(name, torch.float64), data(name, torch.float64, seed=1)
    slots = torch.randn(2, 3, 6, dtype=torch.float64)
    changed = torch.stack((image[0], other[1]))
    both, mixed = (tensors(model(x, slots=slots)) for x in (image, changed))
    alone = tensors(model(image[:1], slots=slots[:1]))
    for key, value in both.items():
        close(mixed[key][:1], value[:1])
        close(alone[key], value[:1])
    assert (mixed["slots"][1] - both["slots"][1]).abs().max() > 1e-6


def test_a_video_does_not_depend_on_the_others(quiet, build, data, tensors):
    model = build("video", quiet(), transition=None).double()
    video, slots = data("video", torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    both, alone = (tensors(model(video[:k], slots=slots[:k])) for k in (2, 1))
    for key, value in both.items():
        close(alone[key], value[:1])


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("make", [Softmax, Sinkhorn])
def test_slots_in_another_order_give_everything_in_that_order(name, make, build, data):
    settings = {"transition": None} if name == "video" else {}
    model = build(name, make(), **settings).double()
    image, slots = data(name, torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    order = torch.tensor([2, 0, 1])
    out, permuted = model(image, slots=slots), model(image, slots=slots[:, order])
    close(permuted.slots, out.slots[..., order, :])
    close(permuted.attention, out.attention[..., order, :])
    if name == "properties":
        close(permuted.properties, out.properties[..., order, :])
    else:
        close(permuted.masks, out.masks[..., order, :, :])
        close(permuted.rgb, out.rgb[..., order, :, :, :])
        close(permuted.reconstruction, out.reconstruction)


@pytest.mark.parametrize("name", ["discovery", "video"])
def test_the_reconstruction_is_made_of_masks_and_pictures(name, transport, build, data):
    out = build(name, transport()).double()(data(name, torch.float64))
    close(out.masks.sum(-3), torch.ones_like(out.masks[..., 0, :, :]))
    assert (out.masks >= 0).all()
    close(out.reconstruction, (out.masks.unsqueeze(-3) * out.rgb).sum(-4))


@pytest.mark.parametrize("name", IMAGES)
def test_uint8_is_the_same_image(name, build, data):
    model = build(name, Softmax(), init=LearnedSlots()).double()
    image = data(name, torch.uint8)
    unit = image.double() / 255
    rng = torch.Generator()
    out = model(image, generator=rng.manual_seed(0))
    close(out.slots, model(unit, generator=rng.manual_seed(0)).slots, 1e-10)
    assert (out.slots - model(1 - unit).slots).abs().max() > 1e-6


def test_properties_are_a_linear_readout_of_a_hidden_layer(build, data):
    model = build("properties", Softmax()).double()
    out = model(data("properties", torch.float64))
    first, _, last = model.head
    hidden = (out.slots @ first.weight.T + first.bias).clamp(min=0)
    close(out.properties, hidden @ last.weight.T + last.bias)
