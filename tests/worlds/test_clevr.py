"""CLEVR: its rules of placement, its factors, and the real scenes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from slotmesh.worlds import _placement, _tabletop
from slotmesh.worlds._placement import Footprints, cos_sin, place
from slotmesh.worlds.clevr import (
    CLEVR_COLOURS,
    CLEVR_MATERIALS,
    CLEVR_SHAPES,
    CLEVR_SIZES,
    Clevr,
)
from slotmesh.worlds.clevrtex import ClevrTex
from slotmesh.worlds.render.camera import project

SAMPLES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "clevr_v1"
EXTENT = torch.tensor([0.35, 0.7], dtype=torch.float64)


def real_scenes() -> list[dict]:
    if not SAMPLES.exists():
        pytest.skip("the real CLEVR samples are not beside this repository (shared/data/clevr_v1)")
    text = (SAMPLES / "scenes" / "CLEVR_train_scenes.json").read_text()
    return json.loads(text)["scenes"]


@pytest.fixture(scope="module")
def batch():
    return Clevr(seed=5).sample(range(24))


def test_cosine_and_sine_are_right():
    turn = torch.linspace(0, 1, 4001, dtype=torch.float64)
    cos, sin = cos_sin(turn)
    assert (cos - (2 * math.pi * turn).cos()).abs().max() < 2e-15
    assert (sin - (2 * math.pi * turn).sin()).abs().max() < 2e-15


def test_factors_are_uniform():
    index = torch.arange(10_000)
    table, scene = Clevr(seed=1)._draw(index)
    count = scene.present.sum(1).numpy()
    assert stats.chisquare(np.bincount(count, minlength=11)[3:]).pvalue > 1e-3
    kinds = {
        "size": CLEVR_SIZES,
        "color": CLEVR_COLOURS,
        "material": CLEVR_MATERIALS,
        "shape": CLEVR_SHAPES,
    }
    there = {k: table[k][scene.present].numpy() for k in kinds}
    for name, names in kinds.items():
        assert stats.chisquare(np.bincount(there[name], minlength=len(names))).pvalue > 1e-3
    joint = there["shape"] * 16 + there["color"] * 2 + there["material"]
    assert stats.chisquare(np.bincount(joint, minlength=48)).pvalue > 1e-3
    # The scenes keep what was drawn, whatever the rejection prefers.
    kept, _ = Clevr(seed=1).scenes(index[:40])[::-1]
    assert torch.equal(kept["shape"], table["shape"][:40] * scene.present[:40])
    assert torch.equal(kept["size"], table["size"][:40] * scene.present[:40])


def corners(xy: torch.Tensor, half: float, turn: float) -> np.ndarray:
    angle = 2 * math.pi * turn
    turned = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return xy.numpy() + half * np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) @ turned.T


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Between the outlines of two polygons, by fine samples; 0 if one holds the other."""
    s = np.linspace(0, 1, 40)[:, None, None]
    first, second = (((1 - s) * p + s * np.roll(p, -1, axis=0)).reshape(-1, 2) for p in (a, b))
    gaps = np.linalg.norm(first[:, None] - second, axis=-1)
    return gaps.min() * (not inside(a.mean(0), b)) * (not inside(b.mean(0), a))


def inside(point: np.ndarray, polygon: np.ndarray) -> bool:
    sides = np.roll(polygon, -1, axis=0) - polygon
    away = point - polygon
    return bool((sides[:, 0] * away[:, 1] - sides[:, 1] * away[:, 0] > 0).all())


def test_placement_keeps_its_rules_over_thousands_of_scenes(long: bool):
    world = Clevr(seed=2)
    for index in torch.arange(10_000 if long else 2500).split(2500):
        table, scene = world._draw(index)
        cube = scene.shape == 0
        prints = Footprints(world._radius(table), torch.where(cube, scene.size, 0.0), scene.present)
        layout, _ = place(
            world.seed,
            index,
            prints,
            lambda tried, rows: (torch.ones_like(rows, dtype=torch.bool), []),
        )
        xy, there = layout.xy, scene.present
        assert xy.abs().max() <= 3
        assert layout.camera.abs().max() <= 0.5
        off = xy[:, :, None] - xy[:, None]
        pair = torch.ones(10, 10, dtype=torch.bool).triu(1) & there[:, :, None] & there[:, None]
        gap = off.norm(dim=-1) - prints.radius[:, :, None] - prints.radius[:, None]
        assert gap[pair].min() >= 0.25 - 1e-12
        for x, y in ((0.6563112735748291, 0.7544902563095093), (0.754490, -0.656311)):
            assert (off[..., 0] * x + off[..., 1] * y).abs()[pair].min() >= 0.4 - 1e-5
        # Footprints of cubes that come close: compared as polygons.
        close = pair & cube[:, :, None] & cube[:, None] & (gap < 0.7)
        for b, i, j in close.nonzero()[:150].tolist():
            shapes = [
                corners(xy[b, k], scene.size[b, k].item(), layout.turn[b, k].item()) for k in (i, j)
            ]
            assert distance(*shapes) > 0
    assert stats.kstest(layout.turn[there].numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest((xy[:, 0, 0].numpy() + 3) / 6, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("pace", [(1, 1), (7, 2), (40, 40)])
def test_scenes_do_not_depend_on_how_many_attempts_run_at_once(pace, monkeypatch):
    index = torch.arange(6)
    expected = ClevrTex(seed=8).scenes(index)[1]
    monkeypatch.setattr(_placement, "_ahead", lambda *_: pace[0])
    monkeypatch.setattr(_placement, "_looks", lambda *_: pace[1])
    found = ClevrTex(seed=8).scenes(index)[1]
    for name, column in found.items():
        assert torch.equal(column, expected[name]), name


def test_attempts_at_hand_are_rendered_before_others_are_made(monkeypatch):
    """A round of attempts is hundreds of operations, which on a GPU take as long as rendering."""
    rounds, looks = [], []
    arrange, look_at = _placement._arrange_all, _tabletop.look_at

    def arranged(*args):
        rounds.append(1)
        return arrange(*args)

    def looked(scene, *args):
        looks.append(len(scene))
        return look_at(scene, *args)

    monkeypatch.setattr(_placement, "_ahead", lambda *_: 200)
    monkeypatch.setattr(_placement, "_arrange_all", arranged)
    monkeypatch.setattr(_tabletop, "look_at", looked)
    Clevr(seed=0).scenes(torch.arange(12))
    assert len(rounds) == 1
    assert len(looks) > 1
    assert looks == sorted(looks, reverse=True)


def test_a_sample_that_cannot_be_placed_is_named(monkeypatch):
    monkeypatch.setattr(_placement, "_ATTEMPTS", 64)
    ones = torch.ones(2, 3, dtype=torch.float64)
    prints = Footprints(ones * torch.tensor([[0.1], [9.0]]), ones * 0, ones > 0)

    def accept(tried, rows):
        return torch.ones_like(rows, dtype=torch.bool), []

    with pytest.raises(RuntimeError, match="no layout fits sample 31"):
        place(0, torch.tensor([30, 31]), prints, accept)


def test_cubes_do_not_touch_where_round_objects_would_fit():
    """Corner to corner, cubes reach each other at distances that the rule of radii allows."""
    a = corners(torch.tensor([0.0, 0.0]), 0.7, 1 / 8)
    b = corners(torch.tensor([1.7, 0.0]), 0.7, 1 / 8)
    assert distance(a, b) < 0.05


def test_every_object_shows_its_minimum(batch):
    counts = torch.stack([(batch.mask == k + 1).sum((1, 2)) for k in range(10)], dim=1)
    assert torch.equal(counts, batch.objects["visible"])
    assert counts[batch.present].min() >= 43
    assert counts[~batch.present].max() == 0


def test_visibility_rule_over_many_scenes():
    world = Clevr(seed=6)
    for index in torch.arange(200).split(100):
        scene, _, seen = world._scenes(index)
        counts = torch.stack([(seen.mask == k + 1).sum((1, 2)) for k in range(10)], dim=1)
        assert counts[scene.present].min() >= 43


def test_the_record_is_whole(batch):
    assert batch.image.shape == (24, 3, 128, 128)
    assert batch.image.dtype == batch.mask.dtype == torch.uint8
    assert batch.mask.max() <= 10
    assert (batch.present.sum(1) >= 3).all()
    for name, column in batch.objects.items():
        assert column.shape[:2] == (24, 10), name
        assert not column[~batch.present].any(), name
    z = batch.objects["position"][..., 2][batch.present]
    size = EXTENT.float()[batch.objects["size"]][batch.present]
    assert torch.equal(z, size)


def test_samples_do_not_depend_on_their_batch(batch):
    world = Clevr(seed=5)
    again = world.sample([7, 3, 20])
    one = world.sample([3])
    for name, column in again.objects.items():
        assert torch.equal(column, batch.objects[name][[7, 3, 20]])
        assert torch.equal(column[1:2], one.objects[name])
    assert torch.equal(again.mask, batch.mask[[7, 3, 20]])
    assert (again.image.int() - batch.image[[7, 3, 20]].int()).abs().max() <= 1
    assert (one.image.int() - batch.image[[3]].int()).abs().max() <= 1


def test_scenes_are_the_same_at_every_size(batch):
    small = Clevr(seed=5, size=50).sample([1, 2])
    assert small.image.shape == (2, 3, 50, 50)
    assert torch.equal(small.objects["position"], batch.objects["position"][[1, 2]])
    there = batch.present[[1, 2]]
    expected = batch.objects["visible"][[1, 2]][there] * (50 / 128) ** 2
    assert (small.objects["visible"][there] - expected).abs().max() < 6


def test_small_images_label_only_what_they_show():
    world = Clevr(seed=0, size=16)
    sample = world.sample(range(64))
    placed = world.scenes(torch.arange(64))[0].present
    counts = torch.stack([(sample.mask == k + 1).sum((1, 2)) for k in range(10)], dim=1)
    assert (placed & ~sample.present).any()
    assert torch.equal(sample.present, placed & (counts >= world.min_pixels))
    assert torch.equal(sample.objects["visible"], counts)
    for name, column in sample.objects.items():
        assert not column[~sample.present].any(), name


def test_seeds_are_other_datasets():
    a, b = (Clevr(seed=s).scenes(torch.arange(8))[1]["position"] for s in (0, 1))
    assert not torch.equal(a, b)


def test_centres_lie_at_pixel(batch):
    pixel = batch.objects["pixel"]
    # The middle of a sphere that is not hidden.
    ball = (batch.objects["shape"] == 1) & (batch.objects["visible"] > 80) & batch.present
    checked = 0
    for b, k in ball.nonzero().tolist():
        at = pixel[b, k, :2] * torch.tensor([128 / 480, 128 / 320])
        column, row = at.long().clamp(0, 127).tolist()
        checked += int(batch.mask[b, row, column]) == k + 1
    assert checked > 0.7 * ball.sum()


def test_real_centres_are_met():
    entries = real_scenes()[:120]
    scene = Clevr.from_json(entries)
    seen = project(scene, scene.position)
    off = [
        (240 + 525 * seen[i, k, 0] - item["pixel_coords"][0]) ** 2
        + (160 + 525 * seen[i, k, 1] - item["pixel_coords"][1]) ** 2
        for i, entry in enumerate(entries)
        for k, item in enumerate(entry["objects"])
    ]
    assert torch.stack(off).mean().sqrt() < 0.5
    jitter = (scene.camera - torch.tensor([7.4811, -6.5076, 5.3437])).abs()
    assert jitter.quantile(0.95) < 0.6


def test_real_images_are_matched():
    from PIL import Image

    entries = [
        e for e in real_scenes() if (SAMPLES / "images" / "train" / e["image_filename"]).exists()
    ][60:72]
    image, mask = Clevr().render_scene(entries)
    real = torch.stack(
        [
            torch.from_numpy(
                np.array(
                    Image.open(SAMPLES / "images" / "train" / e["image_filename"])
                    .convert("RGB")
                    .resize((128, 128), Image.Resampling.BILINEAR)
                )
            ).permute(2, 0, 1)
            for e in entries
        ]
    )
    off = (image.float() - real.float()).abs().mean(1)
    assert off[mask == 0].mean() < 7
    assert off[mask > 0].mean() < 13
    # Not just a grey image: with the objects' colours shuffled it is much worse.
    shuffled = (image.roll(1, 0).float() - real.float()).abs().mean(1)
    assert shuffled[mask > 0].mean() > 25


def test_bad_entries_are_named():
    entry = {"objects": [{"3d_coords": [0, 0, 0.7], "rotation": 1.0, "shape": "cone"}]}
    with pytest.raises(ValueError, match="entry 0 has shape 'cone'"):
        Clevr.from_json(entry)
    with pytest.raises(ValueError, match="no field 'objects'"):
        Clevr.from_json({})
    with pytest.raises(ValueError, match="no entry has an object"):
        Clevr.from_json([])
    with pytest.raises(ValueError, match="size is 0"):
        Clevr(size=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [Clevr, ClevrTex])
def test_the_gpu_makes_the_same_samples(kind):
    here = kind(seed=7).sample(range(8))
    there = kind(seed=7, device="cuda", compile=False).sample(range(8)).to("cpu")
    assert torch.equal(there.mask, here.mask)
    for name, column in there.objects.items():
        assert torch.equal(column, here.objects[name]), name
    off = (there.image.int() - here.image.int()).abs()
    assert (off > 1).float().mean() < 1e-3
