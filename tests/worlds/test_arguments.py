"""Arguments of worlds: what is taken, and what an error says."""

import numpy as np
import pytest
import torch

from slotmesh.worlds import Clevr, Clevrer, ClevrTex, MultiDSprites, RandomObjects

WORLDS = [Clevr, ClevrTex, Clevrer, MultiDSprites]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.tensor([True, False]), r"a mask of 2 booleans, .* Pass mask.nonzero\(\)"),
        ([True, False], "a mask of 2 booleans"),
        ([0.7, 1.2], "numbers of type torch.float32, such as 0.69"),
        (np.array([1.5]), "numbers of type torch.float64, such as 1.5"),
        ([3, -2], "the index has -2, expected whole numbers of at least 0"),
        (range(-2, 2), "the index has -2, expected"),
        (range(3, -2, -1), "the index has -1, expected"),
        (torch.tensor([-4]), "the index has -4, expected"),
        ([2**63], r"the index is \[9223372036854775808\], expected whole numbers from 0 to 2"),
        ("12", "the index is '12', expected whole numbers"),
        ([], r"the index has shape \(0,\), expected at least one"),
        (3, r"the index has shape \(\), expected at least one"),
    ],
)
def test_what_is_no_index_is_named(index, message):
    with pytest.raises(ValueError, match=r"RandomObjects.sample: .*" + message):
        RandomObjects().sample(index)


@pytest.mark.parametrize(
    "index",
    [[2, 0], range(2, -1, -2), np.array([2, 0]), np.array([2, 0], np.uint64), torch.tensor([2, 0])],
    ids=["list", "range", "array", "unsigned", "tensor"],
)
def test_indices_of_all_kinds(index):
    assert RandomObjects().sample(index).index.tolist() == [2, 0]


def test_the_last_index_of_all():
    assert RandomObjects().sample(range(2**63 - 1, 2**63)).index.tolist() == [2**63 - 1]


@pytest.mark.parametrize("seed", [1.5, None, "a", True])
def test_what_is_no_seed_is_named(seed):
    with pytest.raises(
        ValueError, match=f"MultiDSprites: seed is {seed!r}, expected a whole number"
    ):
        MultiDSprites(seed=seed)


def test_a_seed_of_numpy_is_a_seed():
    found = MultiDSprites(seed=np.int64(3), size=np.int64(16)).sample([0]).image
    assert torch.equal(found, MultiDSprites(seed=3, size=16).sample([0]).image)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("size", [0, 1.5, (64, 64), "64"], ids=str)
def test_what_is_no_size_is_named(world, size):
    with pytest.raises(
        ValueError, match=r"size is .*, expected (a whole number of at least 1|16 to 1024)"
    ):
        world(size=size)


def test_numbers_of_numpy_are_sizes_and_frames():
    world = Clevrer(size=np.int64(16), frames=np.array([0, 3]))
    assert (world.size, world.frames) == (16, (0, 3))


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"batch_size": 2.0}, {"start": -1}, {"ahead": 0}]
)
def test_what_are_no_batches_is_named(options):
    with pytest.raises(
        ValueError, match=rf"batches: {next(iter(options))} is .*, expected a whole number"
    ):
        RandomObjects().batches(**{"batch_size": 2, **options})
