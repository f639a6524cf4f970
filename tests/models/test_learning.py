"""Small models learn a handful of samples by heart in a few steps."""

import pytest
import torch
import torch.nn.functional as F

from slotmesh.models import (
    ObjectDiscovery,
    PropertyPredictor,
    SetCopier,
    VideoObjectDiscovery,
    to_unit,
)
from slotmesh.nn import LearnedNoise, LearnedSlots, Mesh, Softmax
from slotmesh.ops import assign, pairwise_cost

SIZES = {"channels": 16, "slot_dim": 16, "mlp_dim": 32, "n_iters": 2, "resolution": (12, 12)}


def squares(*batch):
    """Two coloured squares on grey, in random places."""
    image = torch.full((*batch, 3, 12, 12), 90, dtype=torch.uint8)
    for one in image.reshape(-1, 3, 12, 12):
        for colour in ((255, 0, 0), (0, 60, 255)):
            y, x = torch.randint(0, 8, (2,)).tolist()
            one[:, y : y + 4, x : x + 4] = torch.tensor(colour, dtype=torch.uint8)[:, None, None]
    return image


def fit(model, loss, steps, lr):
    """The loss before and after training; the same noise in every step."""
    adam = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        value = loss(torch.Generator().manual_seed(0))
        adam.zero_grad()
        value.backward()
        adam.step()
        losses.append(value.item())
    return losses[0], loss(torch.Generator().manual_seed(0)).item()


def flat(image):
    """The error of the best single colour: what a model does that sees nothing."""
    pixels = to_unit(image).movedim(-3, 0).flatten(1)
    return (pixels - pixels.mean(1, keepdim=True)).square().mean().item()


@pytest.mark.parametrize("make", [Softmax, lambda: Mesh(n_steps=2)])
def test_object_discovery(make):
    torch.manual_seed(0)
    model, image = ObjectDiscovery(3, make(), **SIZES), squares(1)

    def loss(rng):
        return F.mse_loss(model(image, generator=rng).reconstruction, to_unit(image))

    before, after = fit(model, loss, steps=60, lr=5e-3)
    assert before > flat(image)
    assert after < 0.7 * flat(image)


def test_video_object_discovery():
    torch.manual_seed(0)
    model = VideoObjectDiscovery(3, Softmax(), transition=LearnedNoise(), **SIZES)
    video = squares(1, 2)

    def loss(rng):
        out = model(video, generator=rng)
        return F.mse_loss(out.reconstruction, to_unit(video)) + 1e-3 * out.kl.mean()

    before, after = fit(model, loss, steps=60, lr=5e-3)
    assert before > flat(video)
    assert after < 0.7 * flat(video)


def matched(prediction, target):
    with torch.no_grad():
        partner = assign(pairwise_cost(prediction, target, "sqeuclidean"))
    return F.mse_loss(prediction, target.gather(1, partner.unsqueeze(-1).expand_as(target)))


@pytest.mark.parametrize("implicit", [False, True])
def test_property_predictor(implicit):
    torch.manual_seed(0)
    model = PropertyPredictor(
        3, Mesh(n_steps=2), n_properties=4, init=LearnedSlots(), implicit=implicit, **SIZES
    )
    image, target = squares(4), torch.rand(4, 3, 4)

    def loss(rng):
        return matched(model(image, generator=rng).properties, target)

    before, after = fit(model, loss, steps=30, lr=1e-2)
    assert after < 0.4 * before


@pytest.mark.parametrize("make", [Softmax, lambda: Mesh(n_steps=2)])
def test_set_copier(make):
    torch.manual_seed(0)
    model, objects = SetCopier(8, 3, make(), mlp_dim=16), torch.randn(8, 3, 8)
    inputs = torch.cat((objects, torch.zeros(8, 5, 8)), 1)

    def loss(rng):
        return matched(model(inputs, generator=rng).slots, objects)

    before, after = fit(model, loss, steps=30, lr=1e-2)
    assert after < 0.6 * before
