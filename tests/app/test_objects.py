"""What the Objects view shows: bindings, slots that are switched off, links."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from slotmesh.app.explorer import Explorer
from slotmesh.app.links import ObjectsState, PropertiesState
from slotmesh.app.objects import bind, panel
from slotmesh.app.pictures import MOST_BYTES, ShownImage, load_upload, world_scene
from slotmesh.models import ObjectDiscovery

from ..readers._folders import header_of


@pytest.fixture(scope="module")
def model() -> ObjectDiscovery:
    torch.manual_seed(0)
    return ObjectDiscovery(4, resolution=(16, 16), channels=8).eval()


def test_bind(model: ObjectDiscovery) -> None:
    scene = world_scene("multi-dsprites", 3)
    found = bind(model, scene, n_slots=6, seed=1)
    assert found.masks.shape == (6, 16, 16)
    assert found.trace.shape == (3, 6, 16, 16)
    # Objects, then slots without one, then the background.
    assert sorted(found.labels[:-1]) == found.labels[:-1]
    assert found.labels[-1] == 0
    assert found.score is not None
    assert -1 <= found.score <= 1
    # The same as the model itself, in another order.
    with torch.inference_mode():
        out = model(found.image[None], n_slots=6, seed=1)
    areas = sorted(out.masks[0].sum((1, 2)).tolist())
    assert sorted(found.masks.sum((1, 2)).tolist()) == pytest.approx(areas, abs=0.1)
    whole = ((out.reconstruction[0] + 1) * 127.5).clamp(0, 255)
    # Pictures of slots are rounded before they are blended, and cut at black and white.
    inside = (out.rgb[0].abs() <= 1).all(0)
    difference = (found.reconstruction().float() - whole).abs()
    assert difference[inside].max() <= 1.01


def test_a_slot_that_is_off(model: ObjectDiscovery) -> None:
    found = bind(model, world_scene("multi-dsprites", 3), n_slots=3, seed=0)
    a, b, _ = found.masks
    expected = (a * found.pictures[0] + b * found.pictures[1]) / (a + b)
    assert (found.reconstruction({2}).float() - expected).abs().max() <= 0.51
    assert torch.equal(found.reconstruction({0, 2}), found.pictures[1])
    assert not found.reconstruction({0, 1, 2}).any()
    owner = found.masks.argmax(0)
    assert not found.segments({int(owner[0, 0])})[:, 0, 0].any()


def test_an_image_without_truth(model: ObjectDiscovery) -> None:
    pixels = torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8)
    found = bind(model, ShownImage("mine", pixels), n_slots=4, seed=0, crop=True)
    assert found.image.shape == (3, 16, 16)
    assert (found.labels, found.score) == ([1, 2, 3, 4], None)


def test_panel(model: ObjectDiscovery) -> None:
    found = bind(model, world_scene("multi-dsprites", 3), n_slots=5, seed=0)
    first, last = (panel("m", found, iteration=k, off={1}, trained=4) for k in (1, 99))
    assert (first["iteration"], last["iteration"]) == (1, 3)
    assert [slot["off"] for slot in first["slots"]] == [False, True, False, False, False]
    assert abs(sum(slot["share"] for slot in first["slots"]) - 100) <= 3
    shown = [[dict(s["pictures"])["attention"] for s in one["slots"]] for one in (first, last)]
    assert shown[0] != shown[1]


def test_scenes_are_the_same_again() -> None:
    world_scene.cache_clear()
    first = world_scene("clevr", 5, 32)
    world_scene.cache_clear()
    assert torch.equal(first.pixels, world_scene("clevr", 5, 32).pixels)
    assert first.key != world_scene("clevr", 6, 32).key
    for world, number, message in (("moon", 0, "expected one of"), ("clevr", -1, "expected 0 to")):
        with pytest.raises(ValueError, match=message):
            world_scene(world, number)


def test_uploads(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGBA", (30, 20), (255, 0, 0, 0)).save(path)
    shown = load_upload(path)
    assert shown.pixels.shape == (3, 20, 30)
    assert (shown.pixels == 255).all()  # transparent over white
    assert shown.truth is None


def test_bad_uploads(tmp_path: Path) -> None:
    bad = {"empty.png": b"", "text.jpg": b"no image", "large.bmp": bytes(MOST_BYTES + 1)}
    reasons = {"empty.png": "empty|not a PNG", "text.jpg": "not a PNG", "large.bmp": "10.1 MB"}
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"^{name} cannot be used: .*({reasons[name]})"):
            load_upload(tmp_path / name)
    (tmp_path / "huge.png").write_bytes(header_of(30_000, 30_000))
    with pytest.raises(ValueError, match=r"huge.png .* more than 16,000,000 pixels. Shrink it.$"):
        load_upload(tmp_path / "huge.png")
    Image.new("L", (5000, 4000)).save(tmp_path / "wide.png")
    with pytest.raises(ValueError, match=r"wide.png .* 5,000 x 4,000 pixels, expected at most"):
        load_upload(tmp_path / "wide.png")


def test_links() -> None:
    state = ObjectsState("clevr", 8, "a/b", "c", 5, 3, 2, (1, 2), (4,))
    query = state.to_query()
    assert ObjectsState.from_query(dict(pair.split("=") for pair in query.split("&"))) == state
    # What is damaged or of another view has its default.
    damaged = {"view": "objects", "scene": "x", "off_left": "1,two", "seed": "4"}
    assert ObjectsState.from_query(damaged) == ObjectsState(seed=4)
    assert PropertiesState.from_query({"view": "objects", "scene": "4"}) == PropertiesState()
    assert PropertiesState.from_query({"view": "properties", "confidence": "nan"}).confidence == 0.5


def test_any_link_is_brought_within_limits() -> None:
    explorer = Explorer()
    state = ObjectsState("moon", -4, "none", "none", 99, -1, 0, (0, 3, 77), ())
    settled = explorer.settle_objects(state)
    assert settled == ObjectsState(
        "multi-dsprites", 0, "multi-dsprites-sa", "multi-dsprites-sa-mesh", 12, 0, 1, (3,), ()
    )
    properties = explorer.settle_properties(PropertiesState(10**9, "none", 7.0))
    assert properties == PropertiesState(999_999, "clevr-properties-sa-mesh", 0.95)
