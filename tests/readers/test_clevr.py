import errno
import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from slotmesh.readers import BadRecord, ClevrReader

OBJECT: dict[str, Any] = {
    "color": "cyan",
    "size": "large",
    "rotation": 269.85,
    "shape": "cylinder",
    "3d_coords": [-1.37, 2.08, 0.7],
    "material": "metal",
    "pixel_coords": [269, 88, 12.66],
}
OTHER = OBJECT | {"color": "gray", "size": "small", "shape": "cube", "material": "rubber"}


def scene(number: int, objects: list[Any], split: str = "train") -> dict[str, Any]:
    return {
        "image_index": number,
        "objects": objects,
        "relationships": {},
        "image_filename": f"CLEVR_{split}_{number:06d}.png",
        "split": split,
        "directions": {},
    }


def picture(number: int) -> np.ndarray:
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (32, 48, 4), dtype=np.uint8)


def write(root: Path, scenes: list[Any], split: str = "train") -> Path:
    (root / "images" / split).mkdir(parents=True)
    (root / "scenes").mkdir(exist_ok=True)
    for s in scenes:
        if isinstance(s, dict) and "image_filename" in s:
            path = root / "images" / split / str(s["image_filename"])
            Image.fromarray(picture(s["image_index"])).save(path)
    content = {"info": {"split": split, "version": "1.0"}, "scenes": scenes}
    (root / "scenes" / f"CLEVR_{split}_scenes.json").write_text(json.dumps(content))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    scenes = [scene(0, [OBJECT, OTHER]), scene(1, [OTHER] * 10), scene(2, [])]
    return write(tmp_path / "CLEVR_v1.0", scenes)


def test_images_and_objects(root: Path) -> None:
    reader = ClevrReader(root, size=None)
    assert (len(reader), reader.max_objects, reader.has_masks) == (3, 10, False)
    batch = reader.sample([0, 1, 2])
    assert batch.image.dtype == torch.uint8
    for i in range(3):
        assert (batch.image[i].permute(1, 2, 0).numpy() == picture(i)[..., :3]).all()
    assert batch.mask.shape == (3, 32, 48)
    assert not batch.mask.any()
    assert batch.present.sum(1).tolist() == [2, 10, 0]
    assert batch.objects["color"][0].tolist() == [6, 0] + [0] * 8
    assert batch.objects["material"][0].tolist() == [1, 0] + [0] * 8
    assert batch.objects["shape"][0].tolist() == [2, 0] + [0] * 8
    assert batch.objects["size"][0].tolist() == [1, 0] + [0] * 8
    assert batch.objects["color"].dtype == torch.int64
    assert torch.allclose(batch.objects["position"][0, 0], torch.tensor([-1.37, 2.08, 0.7]))
    assert batch.objects["rotation"][0, 0] == torch.tensor(269.85)
    assert batch.objects["pixel"][0, 0].tolist()[:2] == [269, 88]
    assert not batch.objects["position"][0, 2:].any()


def test_the_whole_image_is_squeezed_as_pillow_does(root: Path) -> None:
    small = ClevrReader(root, size=16).read(1).image[0].permute(1, 2, 0).numpy()
    expected = Image.fromarray(picture(1)[..., :3]).resize((16, 16), Image.Resampling.BILINEAR)
    assert (small == np.asarray(expected)).all()
    assert ClevrReader(root).read(0).image.shape == (1, 3, 128, 128)
    assert ClevrReader(root, size=(8, 12)).read(0).image.shape == (1, 3, 8, 12)
    sharp = ClevrReader(root, size=16, antialias=False).read(1).image[0].permute(1, 2, 0).numpy()
    assert (sharp != small).any()


def test_splits_go_by_the_number_of_the_image(tmp_path: Path) -> None:
    scenes = [scene(i, [OBJECT] * (i % 3)) for i in (510, 511, 512, 513, 514)]
    root = write(tmp_path, scenes)
    write(root, [scene(0, [OBJECT], "val")], "val")
    assert [len(ClevrReader(root, s)) for s in ("train", "sa-train-eval", "sa-train")] == [5, 2, 3]
    first = ClevrReader(root, "sa-train", size=None).read(0)
    assert (first.image[0].permute(1, 2, 0).numpy() == picture(512)[..., :3]).all()
    assert len(ClevrReader(root, range(511, 514))) == 3
    assert len(ClevrReader(root, "val")) == len(ClevrReader(root, "sa-test")) == 1
    with pytest.raises(
        ValueError, match=r"images/test does not exist(.|\n)*images/test/CLEVR_test"
    ):
        ClevrReader(root, "test")


def test_the_test_split_has_no_labels(tmp_path: Path) -> None:
    root = write(tmp_path, [scene(i, [OBJECT], "test") for i in range(3)], "test")
    (root / "scenes" / "CLEVR_test_scenes.json").unlink()
    batch = ClevrReader(root, "test", size=None).sample(range(3))
    assert not batch.present.any()
    assert (batch.image[2].permute(1, 2, 0).numpy() == picture(2)[..., :3]).all()
    assert set(batch.objects) >= {"color", "position"}


def test_an_incomplete_copy(root: Path) -> None:
    (root / "images" / "train" / "CLEVR_train_000001.png").unlink()
    reader = ClevrReader(root)
    found = list(reader.records())
    assert [isinstance(f, BadRecord) for f in found] == [False, True, False]
    assert "CLEVR_train_000001.png: the file is missing. To use an incomplete" in str(found[1])
    assert "on the command line --partial" in str(found[1])
    partial = ClevrReader(root, partial=True, size=None)
    assert len(partial) == 2
    assert (partial.read(1).image[0].permute(1, 2, 0).numpy() == picture(2)[..., :3]).all()
    (root / "images" / "train" / "CLEVR_train_000002.png").unlink()
    with pytest.raises(BadRecord, match=r"000002.png: the file is missing$"):
        partial.read(1)


def without(name: str) -> dict[str, Any]:
    return {k: v for k, v in OBJECT.items() if k != name}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (scene(1, [OBJECT, without("color")]), r"objects\[1\] has no field 'color'"),
        (scene(1, [without("3d_coords")]), r"objects\[0\] has no field '3d_coords'"),
        (scene(1, [OBJECT | {"color": "pink"}]), "color is 'pink', expected one of gray, red"),
        (scene(1, [OBJECT | {"color": ["red"]}]), "color is"),
        (scene(1, [OBJECT | {"3d_coords": [1, 2]}]), "3d_coords is .*, expected a list of 3"),
        (scene(1, [OBJECT | {"3d_coords": [1, 2, "3"]}]), "expected a list of 3 numbers"),
        (scene(1, [OBJECT | {"rotation": None}]), "rotation is None, expected a number"),
        (scene(1, [OBJECT | {"rotation": 10**400}]), "rotation is .*, expected a number"),
        (scene(1, [OBJECT] * 11), "11 objects, expected at most 10"),
        (scene(1, ["cube"]), r"objects\[0\] is a string, expected an object"),
        ({k: v for k, v in scene(1, []).items() if k != "objects"}, "no field 'objects'"),
        ({k: v for k, v in scene(1, []).items() if k != "image_filename"}, "'image_filename'"),
        (scene(1, []) | {"objects": 7}, "objects is 7, expected a list"),
        ([], "it is a list, expected an object"),
    ],
)
def test_a_bad_scene_is_one_bad_record(tmp_path: Path, bad: Any, reason: str) -> None:
    root = write(tmp_path, [scene(0, [OBJECT]), bad, scene(2, [OTHER])])
    reader = ClevrReader(root)
    assert len(reader) == 3
    with pytest.raises(BadRecord, match=rf"CLEVR_train_scenes\.json, record 1: .*{reason}"):
        reader.read(1)
    found = list(reader.records())
    assert [isinstance(f, BadRecord) for f in found] == [False, True, False]


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    root = write(tmp_path, [scene(0, [])])
    bad = scene(0, []) | {"image_filename": "../../secret.png"}
    (root / "scenes" / "CLEVR_train_scenes.json").write_text(json.dumps({"scenes": [bad]}))
    with pytest.raises(BadRecord, match="expected a name without a folder"):
        ClevrReader(root).read(0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not JSON"),
        ('{"scenes": [', "not JSON"),
        ("[" * 100000, "nested too deeply"),
        ("[]", "holds a list, expected an object"),
        ("{}", "no field 'scenes'"),
        ('{"scenes": 3}', "scenes is not a list"),
        (b"\xff\xfe{", "not JSON"),
    ],
)
def test_a_bad_scenes_file(root: Path, content: str | bytes, reason: str) -> None:
    path = root / "scenes" / "CLEVR_train_scenes.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadRecord, match=rf"CLEVR_train_scenes\.json: .*{reason}"):
        ClevrReader(root)
    assert gc.isenabled()


def test_a_damaged_image(root: Path) -> None:
    path = root / "images" / "train" / "CLEVR_train_000002.png"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadRecord, match=r"CLEVR_train_000002\.png: it is not a PNG image"):
        ClevrReader(root).read(2)


def test_what_is_not_there(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist(.|\n)*images/train/CLEVR_train"):
        ClevrReader(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no images"):
        ClevrReader(tmp_path / "empty")
    assert len(ClevrReader(root.parent)) == 3
    (root / "scenes" / "CLEVR_train_scenes.json").unlink()
    with pytest.raises(ValueError, match=r"CLEVR_train_scenes\.json does not exist"):
        ClevrReader(root)
    with pytest.raises(ValueError, match="split is 'dev'"):
        ClevrReader(root, "dev")
    with pytest.raises(ValueError, match="counts up"):
        ClevrReader(root, range(5, 0, -1))


def test_images_of_two_sizes_are_no_batch(root: Path) -> None:
    Image.new("RGB", (9, 9)).save(root / "images" / "train" / "CLEVR_train_000002.png")
    reader = ClevrReader(root, size=None)
    with pytest.raises(
        ValueError, match=r"do not fit into one batch\. Open the reader with a size"
    ):
        reader.sample([0, 2])
    assert reader.read(2).image.shape == (1, 3, 9, 9)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["image_index", "image_filename", "objects", None]),
    st.sampled_from([*OBJECT]),
    values,
    st.booleans(),
)
def test_any_json_is_read_or_a_bad_record(
    tmp_path_factory, field: str | None, inner: str, value: Any, whole: bool
) -> None:
    root = write(tmp_path_factory.mktemp("fuzz"), [scene(0, [OBJECT])])
    bad = scene(0, [OBJECT | {inner: value}]) if field is None else scene(0, []) | {field: value}
    content = json.dumps(value if whole else {"scenes": [bad, scene(0, [OTHER])]})
    (root / "scenes" / "CLEVR_train_scenes.json").write_text(content)
    try:
        reader = ClevrReader(root, size=None)
    except BadRecord:
        assert whole
        return
    for record in reader.records():
        assert isinstance(record, BadRecord) or record.image.shape == (1, 3, 32, 48)


def test_a_folder_that_cannot_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: Any = ".") -> Any:
        if Path(path) != root / "images" / "train":
            return scandir(path)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    # Not by permissions, which do not stop an administrator.
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ValueError, match=r"train cannot be read: .*\. Expected a folder"):
        ClevrReader(root, partial=True)
