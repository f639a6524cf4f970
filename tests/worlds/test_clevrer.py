"""The CLEVRER world: calibration, labels, identity, the real videos."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from slotmesh.worlds._clevrer_scene import in_view
from slotmesh.worlds._clevrer_start import MAX_BODIES, draw_start
from slotmesh.worlds.clevrer import FRAMES_L, FRAMES_S, Clevrer
from slotmesh.worlds.sample import Sample

REAL_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "clevrer"


@pytest.fixture(scope="module")
def seen(long: bool) -> tuple[Clevrer, Tensor]:
    """Which objects show in frames 0, 16 and 127 of many videos, by their masks."""
    world = Clevrer(frames=(0, 16, 127))
    return world, world.masks(torch.arange(2500 if long else 1000))[1]


@pytest.fixture(scope="module")
def video() -> Sample:
    return Clevrer(frames=(0, 16, 60, 127)).sample(range(24))


def annotations() -> list[dict]:
    files = sorted(REAL_DATA.rglob("annotation_*.json"))
    if not files:
        pytest.skip("no real CLEVRER annotations in shared/data beside the repository")
    return [json.loads(f.read_text()) for f in files]


def test_objects_appear_as_often_as_in_the_paper(seen) -> None:
    _, present = seen
    count = present.sum(-1)
    short = ((count[:, 1] - count[:, 0]) >= 2).double().mean().item()
    long = ((count[:, 2] - count[:, 0]) >= 2).double().mean().item()
    assert abs(short - 0.095) < 0.03
    assert abs(long - 0.688) < 0.03


def test_geometry_agrees_with_masks(seen) -> None:
    world, present = seen
    some = torch.arange(300)
    start, path = world.motion(some)
    inside = in_view(path.position[..., 0], path.position[..., 1], margin=0.15)
    inside &= start.real[:, None]
    rows = start.real[:, None].expand_as(inside)
    agree = (inside == present[:300, :, :MAX_BODIES])[rows].double().mean()
    assert agree > 0.98


def test_numbers_of_objects_and_collisions(seen) -> None:
    world, _ = seen
    start, path = world.motion(torch.arange(1000))
    n = start.real.sum(-1)
    assert n.min() >= 4
    assert n.max() <= 6
    assert n.unique().tolist() == [4, 5, 6]
    resting = ((path.velocity[:, 0] == 0).all(-1) & start.real).sum(-1)
    assert resting.min() >= 1
    share = resting.sum() / n.sum()
    assert 0.4 < share < 0.55
    collisions = path.collided[:, -1].sum((1, 2)) / 2
    # Real videos have 2 or 3.
    assert 2.0 < collisions.mean() < 3.0
    assert (collisions >= 1).double().mean() > 0.98


def test_starts_as_measured() -> None:
    start = draw_start(0, torch.arange(2000))
    body = start.bodies
    speed = body.velocity.norm(dim=-1)
    moving = (speed > 0) & start.real
    assert speed[moving].min() >= 2.72 - 1e-12
    assert speed[moving].max() <= 3.0 + 1e-12
    radius = body.position.norm(dim=-1)[moving]
    assert radius.min() >= 1.3
    assert radius.max() <= 10.5 + 1e-9
    view = in_view(body.position[..., 0], body.position[..., 1])
    assert view[start.real & ~moving].all()
    assert view[moving].double().mean() < 0.3
    # They run at the scene: nobody passes the origin's neighbourhood by.
    heading = body.velocity / speed.clamp_min(1e-9)[..., None]
    off = body.position[..., 0] * heading[..., 1] - body.position[..., 1] * heading[..., 0]
    assert off[moving].abs().max() < 3.2
    assert (speed[~start.real] == 0).all()


def test_no_two_objects_are_alike() -> None:
    start = draw_start(5, torch.arange(3000))
    kind = (start.shape * 2 + start.material) * 8 + start.colour
    kind = torch.where(start.real, kind, -1 - torch.arange(MAX_BODIES))
    ordered = kind.sort(-1).values
    assert (ordered.diff(dim=-1) != 0).all()


@pytest.mark.parametrize(("column", "n"), [("shape", 3), ("material", 2), ("colour", 8)])
def test_looks_are_uniform(column: str, n: int) -> None:
    start = draw_start(0, torch.arange(10_000))
    # One row a video: rows of one video are not independent.
    for row in (0, 3):
        found = getattr(start, column)[:, row].bincount(minlength=n)
        assert stats.chisquare(found.numpy()).pvalue > 1e-3


def test_shapes_and_types(video: Sample) -> None:
    assert video.image.shape == (24, 4, 3, 64, 64)
    assert video.image.dtype == torch.uint8
    assert video.mask.shape == (24, 4, 64, 64)
    assert video.mask.dtype == torch.uint8
    assert video.present.shape == (24, 4, 7)
    for name, column in video.objects.items():
        moving = name not in {"real", "shape", "material", "color"}
        assert column.shape[: 3 if moving else 2] == ((24, 4, 7) if moving else (24, 7)), name
        rows = ~video.objects["real"]
        padded = column[rows[:, None].expand(-1, 4, -1)] if moving else column[rows]
        assert (padded == 0).all(), name
    assert len(video) == 24


def test_masks_show_the_present_objects(video: Sample) -> None:
    pixels = torch.stack([(video.mask == k + 1).flatten(-2).sum(-1) for k in range(7)], dim=-1)
    assert torch.equal(pixels > 0, video.present)
    assert torch.equal(pixels, video.objects["visible"])
    assert pixels[video.present].min() >= 4
    assert not (video.present & ~video.objects["real"][:, None]).any()
    assert video.mask.max() <= 7
    # Some object of these videos is out of view at first: present is not just real.
    assert (video.objects["real"][:, None] & ~video.present).any()


def test_objects_keep_their_identity(video: Sample) -> None:
    # The same index has the same colour in every frame it shows in: compare with its own kind.
    image = video.image.permute(0, 1, 3, 4, 2).double()
    hue = image - image.mean(-1, keepdim=True)
    checked = 0
    for b in range(len(video)):
        for k in range(7):
            shown = [
                hue[b, t][video.mask[b, t] == k + 1].mean(0)
                for t in range(4)
                if (video.mask[b, t] == k + 1).sum() >= 20
            ]
            rubber = video.objects["material"][b, k] == 0
            if len(shown) >= 2 and rubber and video.objects["color"][b, k] != 0:
                a, z = shown[0], shown[-1]
                assert (a @ z) / (a.norm() * z.norm()) > 0.9
                checked += 1
    assert checked > 10


def test_masks_lie_where_the_table_says(video: Sample) -> None:
    # An independent projection: f = 525 pixels at width 480, camera 5 away and 30 degrees up.
    place = video.objects["position"].double().numpy()
    up, forward = np.array([-0.5, 0, 3**0.5 / 2]), np.array([-(3**0.5) / 2, 0, -0.5])
    from_eye = place - np.array([5 * 3**0.5 / 2, 0, 2.5])
    depth = from_eye @ forward
    x = (240 + 525 * from_eye[..., 1] / depth) * 64 / 480
    y = (160 - 525 * (from_eye @ up) / depth) * 64 / 320
    errors = []
    for b, t, k in video.present.nonzero().tolist():
        rows, columns = (video.mask[b, t] == k + 1).nonzero(as_tuple=True)
        whole = len(rows) >= 25 and columns.min() > 0 and columns.max() < 63 and rows.max() < 63
        alone = set(video.mask[b, t][rows.min() - 1 : rows.max() + 2].unique().tolist()) <= {
            0,
            k + 1,
        }
        if whole and alone and rows.min() > 0:
            errors.append(
                (
                    columns.double().mean() + 0.5 - x[b, t, k],
                    rows.double().mean() + 0.5 - y[b, t, k],
                )
            )
    errors = np.array(errors)
    assert len(errors) > 10
    # Perspective moves the outline's middle a little off the projected centre.
    assert np.abs(errors).max() < 0.8
    assert np.abs(errors.mean(0)).max() < 0.3


def test_batch_and_order_do_not_matter(video: Sample) -> None:
    order = [17, 3, 23]
    few = Clevrer(frames=(0, 16, 60, 127)).sample(order)
    assert torch.equal(few.image, video.image[order])
    assert torch.equal(few.mask, video.mask[order])
    assert torch.equal(few.present, video.present[order])
    for name, column in few.objects.items():
        assert torch.equal(column, video.objects[name][order]), name


def test_frames_are_windows_of_one_video(video: Sample) -> None:
    last = Clevrer.long().sample(range(4))
    for name in ("image", "mask", "present"):
        assert torch.equal(getattr(last, name), getattr(video, name)[:4, [0, 3]]), name


def test_masks_alone_are_the_same(video: Sample) -> None:
    mask, present = Clevrer(frames=(0, 16, 60, 127)).masks(torch.arange(24))
    assert torch.equal(mask, video.mask)
    assert torch.equal(present, video.present)


def test_seeds_and_names() -> None:
    one, other = (Clevrer(seed=s).sample([0]) for s in (0, 1))
    assert not torch.equal(one.image, other.image)
    assert Clevrer.short().frames == FRAMES_S == (0, 16)
    assert Clevrer.long().frames == FRAMES_L == (0, 127)
    assert Clevrer().name == "clevrer-s"
    assert Clevrer.long().name == "clevrer-l"
    assert Clevrer(frames=[5]).name == "clevrer"


def test_size_sets_image_and_minimum() -> None:
    big = Clevrer(size=128, frames=(60,))
    assert big.min_pixels == 16
    assert big.sample([1, 2]).image.shape == (2, 1, 3, 128, 128)
    assert Clevrer(size=8).min_pixels == 1


@pytest.mark.parametrize(
    "frames", [(), (0, 128), (-1, 3), (16, 0), (3, 3), (0.5,), (True, 2), ("a",)]
)
def test_bad_frames(frames) -> None:
    with pytest.raises(ValueError, match="whole number from 0 to 127, in ascending"):
        Clevrer(frames=frames)


@pytest.mark.parametrize("size", [0, -3, 1.5, True])
def test_bad_size(size) -> None:
    with pytest.raises(ValueError, match="size is"):
        Clevrer(size=size)


def test_bad_annotation() -> None:
    world = Clevrer()
    with pytest.raises(ValueError, match="motion_trajectory"):
        world.render_annotation({"object_property": []})
    kind = {"object_id": 0, "shape": "cone", "material": "rubber", "color": "red"}
    with pytest.raises(ValueError, match="CLEVRER annotation"):
        world.render_annotation({"object_property": [kind], "motion_trajectory": []})


def test_view_agrees_with_real_annotations() -> None:
    agree, total = 0, 0
    for video in annotations():
        for frame in video["motion_trajectory"]:
            place = torch.tensor([o["location"] for o in frame["objects"]], dtype=torch.float64)
            flag = torch.tensor([o["inside_camera_view"] for o in frame["objects"]])
            # The real flag is True from the first visible corner on.
            inside = in_view(place[:, 0], place[:, 1], margin=0.25)
            agree, total = agree + int((inside == flag).sum()), total + len(flag)
    assert agree / total > 0.99


def test_annotations_render_onto_the_real_frames() -> None:
    av = pytest.importorskip("av")
    checked = 0
    for annotation in annotations()[:3]:
        file = next(REAL_DATA.rglob(annotation["video_filename"]), None)
        if file is None:
            continue
        with av.open(str(file)) as container:
            real = next(container.decode(video=0)).to_ndarray(format="rgb24").astype(float)
        world = Clevrer(size=320)
        image, mask = world.render_annotation(annotation, frames=(0,))
        ours = image[0].permute(1, 2, 0).numpy().astype(float)
        # Our square frame against the real one, squashed in the same way.
        columns = ((np.arange(320) + 0.5) * 1.5).astype(int)
        real = real[:, columns]
        ground = mask[0].numpy() == 0
        assert np.abs(real[ground].mean(0) - ours[ground].mean(0)).max() < 8
        # Saturated or dark pixels of the real frame are the objects, and nothing else is.
        stands_out = np.abs(real - np.median(real[ground], axis=0)).max(-1) > 40
        overlap = (stands_out & ~ground).sum() / (stands_out | ~ground).sum()
        assert overlap > 0.8
        checked += 1
    if checked == 0:
        pytest.skip("no real CLEVRER videos in shared/data beside the repository")


@pytest.mark.gpu
def test_same_factors_and_masks_on_the_gpu(video: Sample) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    world = Clevrer(frames=(0, 16, 60, 127), device="cuda", compile=False)
    there = world.sample(range(24)).to("cpu")
    assert torch.equal(there.mask, video.mask)
    for name, column in there.objects.items():
        assert torch.equal(column, video.objects[name]), name
    assert (there.image.int() - video.image.int()).abs().max() <= 1
