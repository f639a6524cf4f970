"""What holds in every world that makes pictures, and how worlds are found by name."""

import numpy as np
import pytest
import torch

from slotmesh.worlds import WORLDS, Sample, World, make_world

PICTURES = [name for name in WORLDS if name != "random-objects"]
FAR = 10**12


@pytest.fixture(scope="module", params=PICTURES)
def made(request: pytest.FixtureRequest) -> tuple[World, Sample]:
    world = make_world(request.param, seed=3)
    assert isinstance(world, World)
    assert world.name == request.param
    return world, world.sample([FAR, 5, FAR + 1])


def test_the_record_has_its_types_and_shapes(made: tuple[World, Sample]) -> None:
    world, sample = made
    lead = sample.present.shape[:-1]
    side = sample.image.shape[-1]
    assert sample.image.shape == (*lead, 3, side, side)
    assert sample.mask.shape == (*lead, side, side)
    assert sample.present.shape[-1] == world.max_objects
    assert sample.image.dtype == sample.mask.dtype == torch.uint8
    assert sample.present.dtype == torch.bool
    assert sample.index.tolist() == [FAR, 5, FAR + 1]


def test_every_pixel_is_background_or_a_present_object(made: tuple[World, Sample]) -> None:
    _, sample = made
    masks = sample.mask.flatten(0, -3).numpy()
    for mask, present in zip(masks, sample.present.flatten(0, -2), strict=True):
        expected = {k + 1 for k, real in enumerate(present.tolist()) if real}
        assert set(np.unique(mask)) - {0} == expected


def test_a_sample_alone_is_the_same(made: tuple[World, Sample]) -> None:
    world, sample = made
    alone = world.sample([FAR + 1])
    for name, column in sample.objects.items():
        assert torch.equal(column[2:], alone.objects[name]), name
    assert torch.equal(sample.present[2:], alone.present)
    difference = sample.image[2:].to(torch.int16) - alone.image.to(torch.int16)
    assert int(difference.abs().max()) <= 1


def test_worlds_are_found_by_name() -> None:
    assert make_world("clevrer-l").frames == (0, 127)  # pyright: ignore
    assert make_world("random-objects", sigma=0.1, seed=4).seed == 4
    with pytest.raises(ValueError, match="no world 'clever', expected one of multi-dsprites, "):
        make_world("clever")
    with pytest.raises(ValueError, match=r"multi-dsprites does not take these settings: .*colour"):
        make_world("multi-dsprites", colour=1)
