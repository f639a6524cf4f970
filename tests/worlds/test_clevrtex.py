"""ClevrTex: textures, shapes, crop."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from slotmesh.worlds.clevrtex import (
    CLEVRTEX_MATERIALS,
    CLEVRTEX_SHAPES,
    CLEVRTEX_SIZES,
    ClevrTex,
)
from slotmesh.worlds.render.visibility import look_at


@pytest.fixture(scope="module")
def batch():
    return ClevrTex(seed=2).sample(range(16))


def test_factors_are_uniform():
    table, scene = ClevrTex(seed=4)._draw(torch.arange(10_000))
    there = scene.present
    for name, names in (
        ("size", CLEVRTEX_SIZES),
        ("shape", CLEVRTEX_SHAPES),
        ("material", CLEVRTEX_MATERIALS),
    ):
        counts = np.bincount(table[name][there].numpy(), minlength=len(names))
        assert stats.chisquare(counts).pvalue > 1e-3
    ground = np.bincount(table["ground"][:, 0].numpy(), minlength=len(CLEVRTEX_MATERIALS))
    assert stats.chisquare(ground).pvalue > 1e-3
    counts = np.bincount(there.sum(1).numpy(), minlength=11)[3:]
    assert stats.chisquare(counts).pvalue > 1e-3
    assert len(CLEVRTEX_MATERIALS) >= 60


def test_a_cube_is_smaller_by_the_root_of_two(batch):
    size = torch.tensor([0.4, 0.6, 0.9])[batch.objects["size"]]
    cube = batch.objects["shape"] == CLEVRTEX_SHAPES.index("cube")
    z = batch.objects["position"][..., 2]
    expected = torch.where(cube, size / math.sqrt(2), size)
    torch.testing.assert_close(z[batch.present], expected[batch.present])


def test_every_object_shows_its_minimum_in_the_whole_view():
    world = ClevrTex(seed=3)
    scene, _, seen = world._scenes(torch.arange(100))
    # On a grid of 160x120, more than 200 of 320x240 is more than 50.
    counts = torch.stack([(seen.mask == k + 1).sum((1, 2)) for k in range(10)], dim=1)
    assert counts[scene.present].min() > 50
    full = look_at(scene[:20], (240, 320), world.rule.lens).mask
    counts = torch.stack([(full == k + 1).sum((1, 2)) for k in range(10)], dim=1)
    assert counts[scene.present[:20]].min() > 180


def test_the_image_is_the_middle_of_the_whole_view(batch):
    world = ClevrTex(seed=2)
    scene, _ = world.scenes(torch.arange(4))
    whole = look_at(scene, (240, 320), world.rule.lens).mask
    crop = look_at(scene, (192, 192), world.lens).mask
    assert torch.equal(crop, whole[:, 24:216, 64:256])
    assert torch.equal(look_at(scene, (64, 64), world.lens).mask, batch.mask[:4])


def test_the_record_is_whole(batch):
    assert batch.image.shape == (16, 3, 64, 64)
    counts = torch.stack([(batch.mask == k + 1).sum((1, 2)) for k in range(10)], dim=1)
    assert torch.equal(counts, batch.objects["visible"])
    assert torch.equal(batch.present, counts >= 4)
    for name, column in batch.objects.items():
        assert not column[~batch.present].any(), name


def test_slivers_at_the_edge_of_the_crop_are_background():
    world = ClevrTex(seed=0)
    scene, _ = world.scenes(torch.arange(120))
    mask = look_at(scene, (64, 64), world.lens).mask
    counts = torch.stack([(mask == k + 1).sum((1, 2)) for k in range(10)], dim=1)
    sliver = (counts > 0) & (counts < 4)
    which = sliver.any(1).nonzero().squeeze(1)
    assert len(which) >= 2
    sample = world.sample(which)
    assert sample.objects["visible"][sample.present].min() >= 4
    assert torch.equal(sample.present, counts[which] >= 4)
    for row, k in sliver[which].nonzero().tolist():
        there = mask[which[row]] == k + 1
        assert not sample.mask[row][there].any()
        mask[which[row]][there] = 0
    assert torch.equal(sample.mask, mask[which])
    for name, column in sample.objects.items():
        assert not column[~sample.present].any(), name


def test_samples_do_not_depend_on_their_batch(batch):
    again = ClevrTex(seed=2).sample([9, 1])
    for name, column in again.objects.items():
        assert torch.equal(column, batch.objects[name][[9, 1]])
    assert torch.equal(again.mask, batch.mask[[9, 1]])
    off = (again.image.int() - batch.image[[9, 1]].int()).abs()
    assert (off > 1).float().mean() < 1e-3


def test_grounds_differ(batch):
    ground = [
        image[:, mask == 0].float() for image, mask in zip(batch.image, batch.mask, strict=True)
    ]
    means = torch.stack([g.mean(1) for g in ground])
    assert means.std(0).min() > 10
    assert np.median([g.std(1).mean() for g in ground]) > 8
