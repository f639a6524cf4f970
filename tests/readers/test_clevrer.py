import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotmesh.readers import BadRecord, ClevrerReader
from slotmesh.readers._identity import Detection, join

av = pytest.importorskip("av", reason="PyAV is not installed (the extra 'video')")

H, W = 32, 48
BLUE = {"color": "blue", "material": "rubber", "shape": "sphere"}
GRAY = {"color": "gray", "material": "metal", "shape": "cube"}
CYAN = {"color": "cyan", "material": "metal", "shape": "cylinder"}


def encode(mask: np.ndarray) -> dict[str, Any]:
    """COCO's compressed run lengths, a number and a character at a time."""
    flat = [0, *mask.T.reshape(-1).tolist()]
    ends = [i for i in range(1, len(flat)) if flat[i] != flat[i - 1]]
    runs = np.diff([1, *ends, len(flat)]).tolist()
    text = ""
    for i, run in enumerate(runs):
        left = run - runs[i - 2] if i > 2 else run
        while True:
            digit, left = left & 31, left >> 5
            last = left == (-1 if digit & 16 else 0)
            text += chr(48 + digit + (0 if last else 32))
            if last:
                break
    return {"size": list(mask.shape), "counts": text}


def box(top: int, left: int, bottom: int, right: int) -> np.ndarray:
    mask = np.zeros((H, W), dtype=np.uint8)
    mask[top:bottom, left:right] = 1
    return mask


def detected(kind: dict[str, str], mask: np.ndarray, score: float = 0.9) -> dict[str, Any]:
    return kind | {"score": score, "mask": encode(mask)}


def video(path: Path, n_frames: int = 20) -> None:
    """A grey that grows brighter from frame to frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = W, H, "yuv420p"
        stream.bit_rate = 4_000_000
        for t in range(n_frames):
            pixels = np.full((H, W, 3), 40 + 8 * t, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def annotation(kinds: list[dict[str, str]], inside: list[bool], n_frames: int = 20) -> Any:
    def moment(t: int) -> dict[str, Any]:
        objects = [
            {
                "object_id": i,
                "location": [float(t), float(i), 0.2],
                "orientation": [0.0, 0.0, 1.5],
                "velocity": [0.5, float(i), 0.0],
                "angular_velocity": [0.0, 0.0, 0.0],
                "inside_camera_view": inside[i],
            }
            for i in range(len(kinds))
        ]
        return {"frame_id": t, "objects": objects}

    return {
        "scene_index": 0,
        "object_property": [k | {"object_id": i} for i, k in enumerate(kinds)],
        "motion_trajectory": [moment(t) for t in range(n_frames)],
        "collision": [],
    }


def proposals(frames: dict[int, list[Any]], truth: list[Any] | None, n_frames: int = 20) -> Any:
    content: dict[str, Any] = {
        "video_name": "video.mp4",
        "frames": [
            {"frame_filename": f"{t}.png", "frame_index": t, "objects": frames.get(t, [])}
            for t in range(n_frames)
        ],
    }
    if truth is not None:
        content["ground_truth"] = {"objects": truth, "collisions": [], "in_outs": []}
    return content


FRAMES = {
    0: [detected(BLUE, box(4, 4, 14, 14)), detected(GRAY, box(10, 10, 20, 30), 0.8)],
    16: [detected(GRAY, box(0, 0, 8, 8)), detected(CYAN, box(16, 16, 32, 48))],
}


def put(root: Path, what: str, number: int, content: Any) -> Path:
    part = "train" if number < 10000 else "validation" if number < 15000 else "test"
    low = number // 1000 * 1000
    if what == "proposals":
        path = root / "processed_proposals" / f"sim_{number:05d}.json"
    else:
        folder = f"annotation_{low:05d}-{low + 1000:05d}"
        path = root / f"annotation_{part}" / folder / f"annotation_{number:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def video_path(root: Path, number: int) -> Path:
    part = "train" if number < 10000 else "validation" if number < 15000 else "test"
    low = number // 1000 * 1000
    return root / f"video_{part}" / f"video_{low:05d}-{low + 1000:05d}" / f"video_{number:05d}.mp4"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in (0, 1, 2):
        video(video_path(tmp_path, number))
        put(tmp_path, "annotation", number, annotation([GRAY, BLUE], [True, False]))
        put(tmp_path, "proposals", number, proposals(FRAMES, None))
    return tmp_path


def test_frames_masks_and_objects(root: Path) -> None:
    reader = ClevrerReader(root, range(3), size=None)
    assert (len(reader), reader.has_masks, reader.has_positions) == (3, True, True)
    batch = reader.sample([0, 2])
    assert batch.image.shape == (2, 2, 3, H, W)
    assert batch.mask.shape == (2, 2, H, W)
    # Compression changes a flat grey by a little only.
    assert (batch.image[:, 0].float() - 40).abs().max() < 6
    assert (batch.image[:, 1].float() - (40 + 8 * 16)).abs().max() < 6
    # The annotation's order first (gray, blue), then what only the detector saw (cyan).
    assert batch.objects["color"][0, :4].tolist() == [0, 2, 6, 0]
    assert batch.objects["material"][0, :4].tolist() == [1, 0, 1, 0]
    assert batch.objects["shape"][0, :4].tolist() == [0, 1, 2, 0]
    assert batch.present[0, :, :4].tolist() == [
        [True, True, False, False],
        [True, False, True, False],
    ]
    assert batch.objects["real"][0, :4].tolist() == [True, True, True, False]
    first = np.where(box(4, 4, 14, 14), 2, box(10, 10, 20, 30))
    assert (batch.mask[0, 0].numpy() == first).all()
    second = box(0, 0, 8, 8) + 3 * box(16, 16, 32, 48)
    assert (batch.mask[0, 1].numpy() == second).all()
    assert batch.objects["position"].shape == (2, 2, 14, 3)
    assert batch.objects["position"][0, 1, 1].tolist() == pytest.approx([16.0, 1.0, 0.2])
    assert batch.objects["velocity"][0, 0, 1].tolist() == pytest.approx([0.5, 1.0, 0.0])
    assert batch.objects["rotation"][0, 0, :3].tolist() == [1.5, 1.5, 0]
    assert not batch.objects["position"][:, :, 2:].any()


def test_the_frame_is_squashed_and_the_mask_is_nearest(root: Path) -> None:
    sample = ClevrerReader(root, range(1), size=16).read(0)
    full = ClevrerReader(root, range(1), size=None).read(0)
    assert sample.image.shape == (1, 2, 3, 16, 16)
    assert torch.equal(sample.mask, full.mask[:, :, ::2, ::3])


def test_the_higher_score_wins_an_overlap(root: Path) -> None:
    for scores, expected in (((0.9, 0.5), 1), ((0.5, 0.9), 2)):
        both = [
            detected(GRAY, box(0, 0, 10, 10), scores[0]),
            detected(BLUE, box(5, 5, 15, 15), scores[1]),
        ]
        put(root, "proposals", 0, proposals({0: both, 16: []}, None))
        sample = ClevrerReader(root, range(1), size=None).read(0)
        assert sample.mask[0, 0, 7, 7] == expected
        assert not sample.present[0, 1].any()


def test_two_that_look_alike_are_two_rows() -> None:
    kind, ones = (0, 0, 0), np.ones((2, 2), dtype=np.uint8)
    left, right = ones * [1, 0], ones * [0, 1]
    frames = [
        [Detection(kind, left, 0.5), Detection(kind, right, 0.9)],
        [Detection(kind, right, 0.1)],
    ]
    rows, mask = join(frames, [], (2, 2))
    assert rows == [kind, kind]
    assert mask[0].tolist() == [[2, 1], [2, 1]]
    assert mask[1].tolist() == [[0, 1], [0, 1]]
    rows, _ = join(frames, [(1, 0, 0), kind], (2, 2))
    assert rows == [(1, 0, 0), kind, kind]


def test_without_proposals_there_are_no_masks(root: Path) -> None:
    for path in (root / "processed_proposals").iterdir():
        path.unlink()
    (root / "processed_proposals").rmdir()
    reader = ClevrerReader(root, range(3))
    sample = reader.read(0)
    assert not reader.has_masks
    assert not sample.mask.any()
    # What the annotation says of the camera's view.
    assert sample.present[0, :, :3].tolist() == [[True, False, False]] * 2


def test_the_test_split_has_proposals_only(tmp_path: Path) -> None:
    video(video_path(tmp_path, 15000))
    folder = tmp_path / "derender_proposals"
    folder.mkdir()
    content = proposals(FRAMES, [CYAN | {"id": 0}, BLUE | {"id": 1}])
    (folder / "proposal_15000.json").write_text(json.dumps(content))
    reader = ClevrerReader(tmp_path, range(15000, 15001))
    sample = reader.read(0)
    assert not reader.has_positions
    assert "position" not in sample.objects
    assert sample.objects["color"][0, :3].tolist() == [6, 2, 0]
    assert sample.present[0, 1, :3].tolist() == [True, False, True]


def test_splits_leave_out_the_short_videos(root: Path) -> None:
    assert len(ClevrerReader(root, "train")) == 9998
    splits = {k: (v.start, v.stop) for k, v in ClevrerReader.splits.items()}
    assert splits["val"] == (10000, 10320)
    assert splits["test"] == (15000, 20000)
    assert len(ClevrerReader(root, "train", partial=True)) == 3
    for part in ("video_validation", "annotation_validation"):
        (root / part).mkdir()
    assert len(ClevrerReader(root, "full-val")) == 4999


def test_any_frames_in_any_order(root: Path) -> None:
    batch = ClevrerReader(root, range(1), frames=(16, 0, 5), size=None).read(0)
    levels = batch.image[0].float().mean((1, 2, 3)).tolist()
    assert levels == pytest.approx([168, 40, 80], abs=5)
    assert not batch.present[0, 2].any()
    for wrong in ((), (0, 128), (-1,), (0.5,)):
        with pytest.raises(ValueError, match="frames is"):
            ClevrerReader(root, range(1), frames=wrong)  # pyright: ignore


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "noise", "short", "torn"])
def test_damaged_videos(root: Path, damage: str) -> None:
    path = video_path(root, 1)
    raw = path.read_bytes()
    path.unlink()
    if damage == "short":
        video(path, 10)
    elif damage != "missing":
        content = {"empty": b"", "cut": raw[: len(raw) // 2], "noise": bytes(5000)}
        # The frames' data overwritten, the index whole.
        at = raw.index(b"mdat") + 8
        content["torn"] = raw[:at] + b"\xa5" * 3000 + raw[at + 3000 :]
        path.write_bytes(content[damage])
    reader = ClevrerReader(root, range(3))
    reason = {"missing": "is missing", "short": "10 frames, expected at least 17"}.get(damage, "")
    with pytest.raises(BadRecord, match=rf"video_00001\.mp4: .*{reason}"):
        reader.read(1)
    assert [isinstance(f, BadRecord) for f in reader.records()] == [False, True, False]


def changed(**changes: Any) -> list[Any]:
    return [detected(BLUE, box(4, 4, 14, 14)) | changes]


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        (changed(mask=7), r"frames\[0\].objects\[0\].mask is a number, expected an object"),
        (changed(mask={"size": [H, W]}), "mask has no field 'counts'"),
        (changed(mask={"size": [H, W], "counts": "9"}), "9 pixels, expected 32 x 48 = 1536"),
        (changed(mask={"size": [W, H], "counts": "9"}), "size is 48 x 32, its video 32 x 48"),
        (changed(mask={"size": [H, W], "counts": "P P"}), "cannot be decoded"),
        (changed(mask={"size": [H, W], "counts": None}), "neither a string nor a list"),
        (changed(color="teal"), "color is 'teal', expected one of gray"),
        (changed(score="high"), "score is 'high', expected a number"),
        ([{"mask": encode(box(0, 0, 2, 2))}], "has no field 'color'"),
    ],
)
def test_bad_proposals(root: Path, objects: list[Any], reason: str) -> None:
    put(root, "proposals", 1, proposals({0: objects}, None))
    reader = ClevrerReader(root, range(3))
    with pytest.raises(BadRecord, match=r"sim_00001\.json: .*" + reason):
        reader.read(1)
    assert [isinstance(f, BadRecord) for f in reader.records()] == [False, True, False]


def test_plain_run_lengths_are_masks_too(root: Path) -> None:
    mask = {"size": [H, W], "counts": [H, H, H * W - 2 * H]}
    put(root, "proposals", 0, proposals({0: [BLUE | {"mask": mask}]}, None))
    sample = ClevrerReader(root, range(1), size=None).read(0)
    assert (sample.mask[0, 0] == 2).nonzero()[:, 1].unique().tolist() == [1]


def test_too_few_frames_and_too_many_objects(root: Path) -> None:
    put(root, "proposals", 1, proposals(FRAMES, None, n_frames=10))
    with pytest.raises(BadRecord, match=r"sim_00001\.json: it has 10 frames, and not frame 16"):
        ClevrerReader(root, range(3)).read(1)
    with pytest.raises(BadRecord, match=r"3 objects, expected at most 2\. .* larger max_objects"):
        ClevrerReader(root, range(3), max_objects=2).read(0)
    put(root, "annotation", 2, annotation([GRAY, BLUE], [True, True], n_frames=10))
    with pytest.raises(BadRecord, match=r"annotation_00002\.json: .* 10 frames, and not frame 16"):
        ClevrerReader(root, range(3)).read(2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a.pop("object_property"), "no field 'object_property'"),
        (lambda a: a.pop("motion_trajectory"), "no field 'motion_trajectory'"),
        (lambda a: a["object_property"][0].pop("shape"), "no field 'shape'"),
        (lambda a: a["motion_trajectory"][0]["objects"][1].pop("location"), "no field 'location'"),
        (lambda a: a["motion_trajectory"][0]["objects"][1].update(object_id=9), "no such object"),
        (
            lambda a: a["motion_trajectory"][0]["objects"][1].update(inside_camera_view=1),
            "inside_camera_view is 1, expected true or false",
        ),
    ],
)
def test_bad_annotations(root: Path, change: Any, reason: str) -> None:
    content = annotation([GRAY, BLUE], [True, True])
    change(content)
    put(root, "annotation", 1, content)
    with pytest.raises(BadRecord, match=r"annotation_00001\.json: .*" + reason):
        ClevrerReader(root, range(3)).read(1)


def test_what_is_not_there(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ValueError, match=r"video_train does not exist(.|\n)*annotation_train"):
        ClevrerReader(tmp_path / "nowhere")
    (tmp_path / "bare" / "video_test").mkdir(parents=True)
    with pytest.raises(ValueError, match="neither annotations nor proposals for test"):
        ClevrerReader(tmp_path / "bare", "test")
    put(root, "annotation", 1, {}).unlink()
    with pytest.raises(BadRecord, match=r"annotation_00001\.json: the file is missing"):
        ClevrerReader(root, range(3)).read(1)


def test_without_pyav_it_says_how_to_get_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match="Install it with pip install av"):
        ClevrerReader(root)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data(), values, st.booleans())
def test_any_json_is_read_or_a_bad_record(root: Path, data, value: Any, of_masks: bool) -> None:
    if of_masks:
        content = copy.deepcopy(proposals(FRAMES, [BLUE | {"id": 0}]))
    else:
        content = annotation([GRAY, BLUE], [True, False])
    put(root, "proposals", 0, proposals(FRAMES, None))
    put(root, "annotation", 0, annotation([GRAY, BLUE], [True, False]))
    at: Any = content
    # Walk down to some place, the first frame more often than others, and put the value there.
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(min(len(at), 2)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.integers(0, 4)) == 0:
            break
        at = at[key]
    at[key] = value
    put(root, "proposals" if of_masks else "annotation", 0, content)
    found = next(ClevrerReader(root, range(1), size=None).records())
    if isinstance(found, BadRecord):
        assert "00000.json" in str(found)
    else:
        assert found.mask.shape == (1, 2, H, W)


def test_hundreds_of_detections_are_refused(root: Path) -> None:
    many = [detected(BLUE, box(0, 0, 2, 2))] * 300
    put(root, "proposals", 0, proposals({0: many}, None))
    with pytest.raises(BadRecord, match="it has 301 objects, expected at most 14"):
        ClevrerReader(root, range(1)).read(0)


def test_frames_of_numpy_are_frames(root: Path) -> None:
    reader = ClevrerReader(root, range(1), frames=np.array([0, 16]))
    assert reader.frames == (0, 16)


@pytest.mark.parametrize(
    "options",
    [{"frames": 5}, {"frames": None}, {"frames": (True,)}, {"frames": ()}]
    + [{"max_objects": k} for k in (None, "a", 3.5, True, 0, 256)],
)
def test_what_are_no_frames_or_objects_is_named(root: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"ClevrerReader: {name} is .*, expected"):
        ClevrerReader(root, **options)
