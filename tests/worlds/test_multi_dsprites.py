"""Multi-dSprites: sprites as in dSprites, honest masks, uniform factors, the same bits always."""

import colorsys
import math
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.path import Path as Outline
from numpy.typing import NDArray
from PIL import Image, ImageSequence
from scipy import stats

from slotmesh.worlds import MultiDSprites, Sample, _sprites, multi_dsprites
from slotmesh.worlds._sprites import SCALES, sprites, unpack

GIF = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dsprites" / "dsprites.gif"


@pytest.fixture(scope="module")
def frames() -> NDArray[np.bool_]:
    if not GIF.exists():
        pytest.skip(f"the real frames are not here: {GIF}")
    with Image.open(GIF) as gif:
        return np.stack([np.asarray(f.convert("L")) > 127 for f in ImageSequence.Iterator(gif)])


@pytest.fixture(scope="module")
def many() -> Sample:
    world = MultiDSprites(seed=1)
    parts = [world.sample(range(start, start + 250)) for start in range(0, 10_000, 250)]
    return Sample(
        torch.cat([p.image for p in parts]),
        torch.cat([p.mask for p in parts]),
        {k: torch.cat([p.objects[k] for p in parts]) for k in parts[0].objects},
        torch.cat([p.present for p in parts]),
        torch.cat([p.index for p in parts]),
    )


def drawn(shape: int, scale: int, orientation: int, x: int, y: int) -> NDArray[np.bool_]:
    factors = (torch.tensor([k]) for k in (shape, scale, orientation, x, y))
    return unpack(sprites(64).draw(*factors), 64)[0].numpy() > 0


# Where each shape turns in the animation, where it grows, and the pixels that may be wrong in the
# 40 frames of the turn. The outlines were fitted to these frames: these are residuals of the fit.
@pytest.mark.parametrize(
    ("shape", "turning", "growing", "most"), [(0, 274, 256, 8), (1, 210, 192, 48), (2, 18, 0, 78)]
)
def test_sprites_are_those_of_dsprites(
    frames: NDArray[np.bool_], shape: int, turning: int, growing: int, most: int
) -> None:
    wrong = sum(int((drawn(shape, 5, k, 0, 0) != frames[turning + k]).sum()) for k in range(40))
    assert wrong <= most
    grown = [int((drawn(shape, k, 0, 0, 0) != frames[growing + k]).sum()) for k in range(6)]
    assert max(grown) <= (0 if shape == 0 else 4)


def test_positions_are_those_of_dsprites(frames: NDArray[np.bool_]) -> None:
    # A heart goes down, right, up and left, 32 steps each; a shift by one pixel would cost 1000s.
    wrong = 0
    for k in range(32):
        for first, x, y in ((58, 0, k), (90, k, 31), (122, 31, 31 - k), (154, 31 - k, 0)):
            wrong += int((drawn(2, 5, 0, x, y) != frames[first + k]).sum())
    assert wrong <= 70


def slow_sprite(
    shape: int, scale: float, angle: float, x: float, y: float, size: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Pixels inside, polygons by matplotlib, and those too near to the outline to be certain."""
    across, down = np.meshgrid(np.arange(size) + 0.5, np.arange(size) + 0.5)
    across, down = (p.ravel() / size - 0.25 - 0.5 * q for p, q in ((across, x), (down, y)))
    # Into the sprite's own frame, in pixels of a picture 64 wide at scale 1.
    u = 64 / scale * (math.cos(angle) * across - math.sin(angle) * down)
    v = 64 / scale * (math.sin(angle) * across + math.cos(angle) * down)
    if shape == 1:
        distance = (u / 12.8) ** 2 + (v / 7.2) ** 2 - 1
        inside, near = distance <= 0, np.abs(distance) < 1e-5
    else:
        half = np.array(_sprites._HEART)
        heart = np.concatenate((half, half[-2:0:-1] * (-1, 1)))
        square = 9.6 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
        ends = heart if shape == 2 else square
        points = np.stack((u, v), 1)
        inside = Outline(np.concatenate((ends, ends[:1])), closed=True).contains_points(points)
        near = np.zeros(size * size, dtype=bool)
        for a, b in zip(ends, np.roll(ends, -1, axis=0), strict=True):
            along = np.clip(((points - a) @ (b - a)) / ((b - a) @ (b - a)), 0, 1)
            near |= np.hypot(*(a + along[:, None] * (b - a) - points).T) < 1e-5
    return inside.reshape(size, size), near.reshape(size, size)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2),
    st.integers(0, 5),
    st.integers(0, 39),
    st.integers(0, 31),
    st.integers(0, 31),
    st.sampled_from([64, 72]),
)
def test_sprites_are_what_is_inside_the_outline(
    shape: int, scale: int, orientation: int, x: int, y: int, size: int
) -> None:
    factors = (torch.tensor([k]) for k in (shape, scale, orientation, x, y))
    found = unpack(sprites(size).draw(*factors), size)[0].numpy() > 0
    angle = 2 * math.pi * orientation / 39
    inside, near = slow_sprite(shape, SCALES[scale], angle, x / 31, y / 31, size)
    assert ((found == inside) | near).all()
    assert near.sum() <= 4


@pytest.mark.parametrize("size", [64, 72])
def test_the_picture_can_be_painted_again_from_the_table(size: int) -> None:
    sample = MultiDSprites(seed=5, size=size).sample(range(30))
    for i in range(30):
        table = {name: column[i].numpy() for name, column in sample.objects.items()}
        mask = np.zeros((size, size), dtype=np.uint8)
        unsure = np.zeros((size, size), dtype=bool)
        for row in range(int(sample.present[i].sum())):
            factors = (table[k][row] for k in ("scale", "orientation", "x", "y"))
            inside, near = slow_sprite(int(table["shape"][row]), *map(float, factors), size)
            mask[inside] = row + 1
            unsure |= near
        assert ((sample.mask[i].numpy() == mask) | unsure).all()
        assert unsure.sum() <= 4


def test_masks_and_colours_tell_the_truth(many: Sample) -> None:
    few = range(200)
    for i in few:
        image, mask = many.image[i].numpy(), many.mask[i].numpy()
        count = int(many.present[i].sum())
        # One grey where no sprite is; each sprite one colour, all of it, and nothing else.
        ground = image[:, mask == 0]
        assert (ground == ground[0, 0]).all()
        assert set(np.unique(mask)) == set(range(count + 1))
        for row in range(count):
            pixels = image[:, mask == row + 1]
            assert (pixels == pixels[:, :1]).all()
            colour = many.objects["color"][i, row].numpy()
            np.testing.assert_array_equal(pixels[:, 0], np.rint(colour * 255))
            assert int(many.objects["visible"][i, row]) == pixels.shape[1]


def test_the_table_is_padded_with_zeros_and_real_rows_come_first(many: Sample) -> None:
    order = many.present.to(torch.int64)
    assert (order[:, 1:] <= order[:, :-1]).all()
    for column in many.objects.values():
        assert not column[~many.present].any()
    assert many.image.dtype == many.mask.dtype == torch.uint8
    assert many.present.dtype == torch.bool


@pytest.mark.parametrize("min_visible", [1, 16, 40])
def test_every_sprite_shows_its_minimum(min_visible: int) -> None:
    sample = MultiDSprites(seed=2, min_visible=min_visible).sample(range(1500))
    seen = sample.objects["visible"][sample.present]
    assert int(seen.min()) >= min_visible
    counted = torch.stack([(sample.mask == k).sum((1, 2)) for k in range(1, 6)], 1)
    assert torch.equal(counted, sample.objects["visible"])


def test_the_last_resort_hides_no_sprite(monkeypatch: pytest.MonkeyPatch) -> None:
    # With one round, each scene that hides a sprite is set apart at once.
    monkeypatch.setattr(multi_dsprites, "_ROUNDS", 1)
    sample = MultiDSprites(seed=2, min_visible=40).sample(range(3000))
    apart = (sample.objects["x"][:, 0] == 0) & (sample.objects["x"][:, 1] == 1)
    assert int(apart.sum()) > 200
    assert int(sample.objects["visible"][sample.present].min()) >= 40


def test_counts_and_factors_are_uniform(many: Sample) -> None:
    counts = torch.bincount(many.present.sum(1), minlength=6)
    assert counts[:2].sum() == 0
    assert stats.chisquare(counts[2:].numpy()).pvalue > 1e-3
    steps = {"shape": (3, 1), "scale": (6, 10), "orientation": (40, 39 / (2 * math.pi))}
    steps |= {"x": (32, 31), "y": (32, 31)}
    for name, (n, step) in steps.items():
        values = many.objects[name][many.present].double()
        numbers = (values * step).round().to(torch.int64) - (5 if name == "scale" else 0)
        observed = torch.bincount(numbers, minlength=n).numpy()
        assert len(observed) == n
        assert stats.chisquare(observed).pvalue > 1e-3, name
    grey = many.image[:, 0][many.mask == 0]
    first = [int(many.image[i, 0][many.mask[i] == 0][0]) for i in range(len(many))]
    assert stats.chisquare(np.bincount(first, minlength=256)).pvalue > 1e-3
    assert 0 <= int(grey.min()) < int(grey.max()) <= 255


def test_colours_are_uniform_in_hue_and_never_grey(many: Sample) -> None:
    rgb = many.objects["color"][many.present].double().numpy()
    hsv = np.array([colorsys.rgb_to_hsv(*c) for c in rgb])
    assert stats.kstest(hsv[:, 0], "uniform").pvalue > 1e-3
    # Rounding to 255 levels moves saturation and value a little.
    assert hsv[:, 1].min() > 0.49
    assert hsv[:, 2].min() > 0.49
    assert stats.kstest((hsv[:, 1] - 0.5) * 2, "uniform").statistic < 0.01
    assert stats.kstest((hsv[:, 2] - 0.5) * 2, "uniform").statistic < 0.01


def test_colours_are_those_of_hsv() -> None:
    numbers = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    numbers[:7, 0] = torch.arange(7) / 6 - 1e-9
    found = multi_dsprites._rgb(numbers.clamp(min=0)).numpy()
    expected = [colorsys.hsv_to_rgb(h, 0.5 + s / 2, 0.5 + v / 2) for h, s, v in numbers.tolist()]
    assert np.abs(found - np.array(expected) * 255).max() <= 0.5 + 1e-6


def equal(a: Sample, b: Sample) -> bool:
    tables = all(torch.equal(a.objects[k], b.objects[k]) for k in a.objects)
    fields = ("image", "mask", "present", "index")
    return tables and all(torch.equal(getattr(a, f), getattr(b, f)) for f in fields)


def rows(sample: Sample, which: slice) -> Sample:
    return Sample(
        sample.image[which],
        sample.mask[which],
        {k: v[which] for k, v in sample.objects.items()},
        sample.present[which],
        sample.index[which],
    )


@settings(max_examples=20, deadline=None)
@given(
    st.integers(-3, 2**70),
    st.lists(st.integers(0, 10**15), min_size=1, max_size=6),
    st.sampled_from([1, 40]),
)
def test_a_sample_does_not_depend_on_its_batch(
    seed: int, index: list[int], min_visible: int
) -> None:
    world = MultiDSprites(seed=seed, min_visible=min_visible)
    together = world.sample(index)
    for i, number in enumerate(index):
        assert equal(rows(together, slice(i, i + 1)), world.sample([number]))


def test_any_split_into_batches_gives_the_same_bits(many: Sample) -> None:
    world = MultiDSprites(seed=1)
    for size in (7, 64, 250):
        batches = world.batches(size, start=500)
        for start in (500, 500 + size):
            assert equal(next(batches), rows(many, slice(start, start + size)))


def test_seeds_are_different_datasets(many: Sample) -> None:
    other = MultiDSprites(seed=2).sample(range(100))
    assert (other.image != many.image[:100]).flatten(1).any(1).all()


def test_far_samples_cost_no_more_memory() -> None:
    world = MultiDSprites()
    world.sample(range(64))
    state = set(vars(world))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for start in (10**6, 10**9, 10**12, 2**62):
        for step in range(10):
            sample = world.sample(range(start + 64 * step, start + 64 * (step + 1)))
            assert int(sample.present.sum(1).min()) >= 2
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 32 * 1024  # In kB; 40 batches kept would be 42 MB.
    assert set(vars(world)) == state


def test_bad_settings_are_told() -> None:
    with pytest.raises(ValueError, match="size is 8, expected 16 to 1024"):
        MultiDSprites(size=8)
    for wrong in (0, 41):
        with pytest.raises(ValueError, match=f"min_visible is {wrong}, expected 1 to 40"):
            MultiDSprites(min_visible=wrong)
    with pytest.raises(ValueError, match=r"Pass range\(64\)"):
        MultiDSprites().sample([])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_makes_the_same_samples(many: Sample) -> None:
    assert equal(
        MultiDSprites(seed=1, device="cuda").sample(range(2000)).to("cpu"), rows(many, slice(2000))
    )
