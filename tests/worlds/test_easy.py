"""The easy worlds: what they promise, and that the others are what they were."""

import zlib

import pytest
import torch

from slotmesh.worlds import Clevr, Clevrer, ClevrTex, MultiDSprites, Sample, World, make_world
from slotmesh.worlds._tabletop import Tabletop
from slotmesh.worlds.clevr import CLEVR_COLOURS, CLEVR_MATERIALS, CLEVR_SIZES
from slotmesh.worlds.clevrtex import CLEVRTEX_MATERIALS, CLEVRTEX_SIZES

PICTURES = ("multi-dsprites", "clevr", "clevrtex", "clevrer-s", "clevrer-l")
FAR = 10**12
# Of whole numbers in the tables of samples 0, 1 and FAR at 32 x 32, seed 3.
TABLES = {
    "multi-dsprites": 3539959989,
    "clevr": 3775001212,
    "clevrtex": 671996481,
    "clevrer-s": 2172736108,
    "clevrer-l": 1317720009,
}


def world_of(name: str, seed: int = 3, size: int = 32) -> World:
    world = make_world(name, seed=seed, size=size, easy=True)
    assert isinstance(world, World)
    return world


@pytest.fixture(scope="module", params=PICTURES)
def made(request: pytest.FixtureRequest) -> tuple[World, Sample]:
    world = world_of(request.param)
    assert world.name == request.param
    return world, world.sample([*range(16), FAR])


def checksum(sample: Sample) -> int:
    """Of what is exact on every machine: columns of whole numbers, and masks."""
    found = zlib.crc32(sample.mask.numpy().tobytes())
    for name, column in sorted(sample.objects.items()):
        if not column.is_floating_point():
            found = zlib.crc32(
                column.contiguous().numpy().tobytes(), zlib.crc32(name.encode(), found)
            )
    return found


@pytest.mark.parametrize("name", PICTURES)
def test_the_other_worlds_are_what_they_were(name: str) -> None:
    world = make_world(name, seed=3, size=32)
    assert isinstance(world, World)
    sample = world.sample([0, 1, FAR])
    assert checksum(sample) == TABLES[name]
    assert checksum(sample) != checksum(world_of(name).sample([0, 1, FAR]))


def test_there_are_few_objects(made: tuple[World, Sample]) -> None:
    world, sample = made
    most = 4 if world.name.startswith("clevrer") else 3
    assert world.max_objects == sample.present.shape[-1] == most
    assert all(len(column.shape) < 2 or most in column.shape for column in sample.objects.values())
    if world.name in ("multi-dsprites", "clevr"):
        counts = {3} if world.name == "multi-dsprites" else {2, 3}
        assert set(sample.present.sum(1).tolist()) == counts
    masks = sample.mask.flatten(0, -3)
    for mask, present in zip(masks, sample.present.flatten(0, -2), strict=True):
        assert set(mask.unique().tolist()) - {0} == set((present.nonzero()[:, 0] + 1).tolist())


def test_a_sample_alone_is_the_same(made: tuple[World, Sample]) -> None:
    world, sample = made
    alone = world.sample([FAR])
    for name, column in sample.objects.items():
        assert torch.equal(column[-1:], alone.objects[name]), name
    assert torch.equal(sample.mask[-1:], alone.mask)
    difference = sample.image[-1:].to(torch.int16) - alone.image.to(torch.int16)
    assert int(difference.abs().max()) <= 1


def names_of(names: tuple[str, ...], column: torch.Tensor) -> set[str]:
    return {names[i] for i in column.flatten().tolist()}


def drawn(world: Tabletop) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    table, scene = world._draw(torch.arange(500))
    return table, scene.present


def test_objects_are_large_and_of_different_colours() -> None:
    table, there = drawn(Clevr(easy=True))
    assert names_of(CLEVR_SIZES, table["size"][there]) == {"large"}
    assert names_of(CLEVR_MATERIALS, table["material"][there]) == {"rubber"}
    assert names_of(CLEVR_COLOURS, table["color"][there]) == {"red", "blue", "green"}
    assert len(table["shape"][there].unique()) == 3
    table, there = drawn(ClevrTex(easy=True))
    assert names_of(CLEVRTEX_SIZES, table["size"][there]) == {"large"}
    materials = {"bubbles", "cracked ice", "dunes", "turquoise"}
    assert names_of(CLEVRTEX_MATERIALS, table["material"][there]) == materials
    assert names_of(CLEVRTEX_MATERIALS, table["ground"][there]) == {"ebony"}


def test_no_two_objects_are_alike() -> None:
    start, _ = Clevrer(easy=True).motion(torch.arange(100))
    for column, there in (
        (start.colour, start.real),
        *(
            (table[name], present)
            for world, name in ((Clevr(easy=True), "color"), (ClevrTex(easy=True), "material"))
            for table, present in (drawn(world),)
        ),
    ):
        for row, real in zip(column, there, strict=True):
            assert len(row[real].unique()) == int(real.sum())


def test_one_object_of_a_video_moves() -> None:
    world = Clevrer(frames=(0, 60), easy=True)
    start, path = world.motion(torch.arange(200))
    assert set(start.real.sum(1).tolist()) <= {3, 4}
    moves = (start.bodies.velocity != 0).any(-1)
    assert (moves.sum(1) == 1).all()
    assert path.position.shape[:2] == (200, 2)
    names = names_of(CLEVR_COLOURS, start.colour[start.real])
    assert names == {"red", "blue", "green", "yellow"}


def test_the_view_of_a_video_is_nearer() -> None:
    near, whole = Clevrer(easy=True), Clevrer(easy=True)
    whole._lens = Clevrer()._lens
    areas: list[float] = []
    for world in (near, whole):
        mask, present = world.masks(torch.arange(20))
        areas.append(float((mask > 0).sum() / present.sum()))
    # 480 x 320 pixels over 320 x 214 is 2.2, less what is cut off at the edges.
    assert 1.5 < areas[0] / areas[1] < 2.5


@pytest.mark.parametrize("size", [16, 24, 64])
def test_sprites_are_large_bright_and_apart(size: int) -> None:
    world = MultiDSprites(seed=1, size=size, easy=True)
    sample = world.sample(range(400))
    assert sample.present.all()
    assert sample.present.shape == (400, 3)
    assert int(sample.objects["visible"].min()) >= size * size // 64
    assert set(sample.objects["scale"].mul(10).round().flatten().tolist()) == {8.0, 9.0}
    for row in sample.objects["color"]:
        assert row.unique(dim=0).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    ground = sample.image.movedim(1, -1)[sample.mask == 0]
    assert not ground.any()
    # The positions of dSprites are the middle half of the picture.
    centres = torch.stack((sample.objects["x"], sample.objects["y"]), -1) / 2
    nearest = torch.stack([torch.pdist(places).min() for places in centres])
    assert float(nearest.min()) > 0.27
    # Sprites that cannot be placed are put into corners, half a picture apart: hardly ever.
    assert float((nearest > 0.45).float().mean()) < 0.02


@pytest.mark.parametrize("name", ["multi-dsprites", "clevr", "clevrtex"])
def test_brightness_tells_every_object_from_the_ground(name: str) -> None:
    sample = world_of(name).sample(range(32))
    sign = -1 if name == "clevr" else 1
    for picture, regions in zip(sample.image.float().mean(1), sample.mask, strict=True):
        ground = picture[regions == 0].mean()
        for which in set(regions.unique().tolist()) - {0}:
            assert sign * (picture[regions == which].mean() - ground) > 10
