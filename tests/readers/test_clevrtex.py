import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slotmesh.readers import BadRecord, ClevrTexReader
from slotmesh.readers.labels import CLEVRTEX_MATERIALS

# The generator's palette: its first two entries are the background and object 1.
PALETTE = [0, 0, 0, 255, 0, 0, 0, 128, 0, 0, 0, 255, 255, 255, 0, 141, 211, 199]


def thing(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "shape": "monkey",
        "rotation": 12.5,
        "size": "medium",
        "3d_coords": [0.5 * index, -1.0, 0.6],
        "pixel_coords": [160, 120, 9.5],
        "index": index,
        "color": "red",
        "material": "poliigonmarble13",
    } | changes


def picture(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    image = rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)
    mask = np.zeros((240, 320), dtype=np.uint8)
    mask[30:90, 70:130] = 1
    mask[100:200, 140 + number % 7 : 250] = 2
    mask[0:20, 0:50] = 3
    return image, mask


def write(root: Path, number: int, objects: list[Any], variant: str = "full") -> Path:
    folder = root / f"clevrtex_{variant}" / str(number // 1000)
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"CLEVRTEX_{variant}_{number:06d}"
    image, mask = picture(number)
    Image.fromarray(np.dstack([image, np.full((240, 320), 255, np.uint8)])).save(
        folder / f"{stem}.png"
    )
    flat = Image.new("P", (320, 240))
    flat.putdata(mask.reshape(-1).tolist())
    flat.putpalette(PALETTE)
    flat.save(folder / f"{stem}_flat.png")
    scene = {"num_objects": len(objects), "objects": objects, "ground_material": "x"}
    (folder / f"{stem}.json").write_text(json.dumps(scene))
    return folder / stem


THREE = [thing(2, shape="cube", size="small"), thing(1, size="large"), thing(3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in (0, 1, 2):
        write(tmp_path, number, THREE)
    return tmp_path


def test_uncut_images_masks_and_objects(root: Path) -> None:
    reader = ClevrTexReader(root, "test", size=None, crop=False)
    assert (len(reader), reader.max_objects, reader.has_masks) == (3, 10, True)
    batch = reader.sample([0, 1, 2])
    for i in range(3):
        image, mask = picture(i)
        assert (batch.image[i].permute(1, 2, 0).numpy() == image).all()
        assert (batch.mask[i].numpy() == mask).all()
    assert batch.mask.dtype == torch.uint8
    assert batch.present.tolist() == [[True] * 3 + [False] * 7] * 3
    # Rows go by the object's own index, whatever the order in the file.
    assert batch.objects["shape"][0].tolist() == [3, 0, 3] + [0] * 7
    assert batch.objects["size"][0].tolist() == [2, 0, 1] + [0] * 7
    assert torch.allclose(batch.objects["position"][0, :3, 0], torch.tensor([0.5, 1.0, 1.5]))
    names = [CLEVRTEX_MATERIALS[i] for i in batch.objects["material"][0, :3]]
    assert names == ["poliigonmarble13"] * 3


def test_crop_and_resize_as_the_authors_do(root: Path) -> None:
    sample = ClevrTexReader(root, "test").read(1)
    image, mask = picture(1)
    assert sample.image.shape == (1, 3, 64, 64)
    # 192 to 64 by OpenCV: the nearest takes pixels 0, 3, 6 ..., the bilinear hits 1, 4, 7 ...
    assert (sample.mask[0].numpy() == mask[24:216:3, 64:256:3]).all()
    expected = image[25:216:3, 65:256:3]
    assert (sample.image[0].permute(1, 2, 0).numpy() == expected).all()
    # Object 3 lies outside of the cut: still an object, without pixels.
    assert sample.present[0, 2]
    assert not (sample.mask == 3).any()
    soft = ClevrTexReader(root, "test", antialias=True).read(1).image
    cut = Image.fromarray(image[24:216, 64:256]).resize((64, 64), Image.Resampling.BILINEAR)
    assert (soft[0].permute(1, 2, 0).numpy() == np.asarray(cut)).all()


def test_splits_and_variants(tmp_path: Path) -> None:
    for number in (4999, 5000, 5001, 10000):
        write(tmp_path, number, THREE)
    write(tmp_path, 0, THREE)
    write(tmp_path, 0, THREE, "camo")
    assert len(ClevrTexReader(tmp_path, "val")) == 2
    assert len(ClevrTexReader(tmp_path, "full-val")) == 2
    assert len(ClevrTexReader(tmp_path, "train")) == 1
    assert len(ClevrTexReader(tmp_path, "test", partial=True)) == 2
    assert len(ClevrTexReader(tmp_path / "clevrtex_camo", range(10), variant="camo")) == 1
    image, _ = picture(5001)
    found = ClevrTexReader(tmp_path, "val", size=None, crop=False).read(1).image
    assert (found[0].permute(1, 2, 0).numpy() == image).all()
    splits = {k: (v.start, v.stop) for k, v in ClevrTexReader.splits.items()}
    assert splits["train"] == (10000, 50000)
    assert splits["val"] == (5000, 5320)
    assert splits["test"] == (0, 5000)


def test_a_gap_is_a_bad_record_unless_partial(tmp_path: Path) -> None:
    for number in (0, 2):
        write(tmp_path, number, THREE)
    found = list(ClevrTexReader(tmp_path, "test").records())
    assert [isinstance(f, BadRecord) for f in found] == [False, True, False]
    assert "CLEVRTEX_full_000001.json: the file is missing" in str(found[1])
    assert len(ClevrTexReader(tmp_path, "test", partial=True)) == 2


def test_unknown_and_renamed_materials(tmp_path: Path) -> None:
    renamed = thing(1, material="PoliigonFabricUpholsteryMidCenturyPebbles001")
    write(tmp_path, 0, [renamed, thing(2, material="ambientcg_new"), thing(3)])
    codes = ClevrTexReader(tmp_path, "test").read(0).objects["material"][0, :3]
    names = [CLEVRTEX_MATERIALS[i] for i in codes]
    assert names[:2] == ["poliigonfabricupholsterybrightanglepattern001", "other"]
    assert len(set(CLEVRTEX_MATERIALS)) == len(CLEVRTEX_MATERIALS) == 61


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([thing(1), thing(2)], r"_flat\.png: the mask holds the index 3, which no object"),
        ([thing(1), thing(1)], r"json: objects\[1\].index is 1, expected 1 to 10, each once"),
        ([thing(0)], r"json: objects\[0\].index is 0, expected 1 to 10"),
        ([thing(11)], r"json: objects\[0\].index is 11"),
        ([thing(True)], r"json: objects\[0\].index is True, expected a whole number"),
        ([thing(1, shape="egg")], r"json: objects\[0\].shape is 'egg', expected one of cube"),
        ([thing(1, material=7)], r"json: objects\[0\].material is 7, expected a string"),
        ([{"index": 1}], r"json: objects\[0\] has no field 'shape'"),
    ],
)
def test_bad_descriptions(root: Path, objects: list[Any], reason: str) -> None:
    write(root, 1, objects)
    reader = ClevrTexReader(root, "test")
    with pytest.raises(BadRecord, match="CLEVRTEX_full_000001.*" + reason):
        reader.read(1)
    assert [isinstance(f, BadRecord) for f in reader.records()] == [False, True, False]


@pytest.mark.parametrize("ending", [".png", "_flat.png", ".json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "noise"])
def test_damaged_files(root: Path, ending: str, damage: str) -> None:
    path = root / "clevrtex_full" / "0" / f"CLEVRTEX_full_000001{ending}"
    raw = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(raw[: len(raw) // 2] if damage == "cut" else b"\x00noise")
    what = "missing" if damage == "missing" else "not JSON|not a PNG image, or damaged"
    with pytest.raises(BadRecord, match=rf"CLEVRTEX_full_000001\{ending}: .*({what})"):
        ClevrTexReader(root, "test").read(1)


def test_masks_of_the_wrong_kind(root: Path) -> None:
    path = root / "clevrtex_full" / "0" / "CLEVRTEX_full_000001_flat.png"
    Image.new("RGB", (320, 240)).save(path)
    with pytest.raises(BadRecord, match="its mode is RGB, expected P"):
        ClevrTexReader(root, "test").read(1)
    Image.new("P", (32, 24)).save(path)
    with pytest.raises(BadRecord, match=r"mask has shape \(24, 32\), its image \(240, 320\)"):
        ClevrTexReader(root, "test").read(1)


def test_what_is_not_there(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist(.|\n)*_000000_flat\.png"):
        ClevrTexReader(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no folder 10"):
        ClevrTexReader(root, "train")
    (root / "clevrtex_full" / "5").mkdir()
    with pytest.raises(ValueError, match="has none of the images 5000 to 5319"):
        ClevrTexReader(root, "val")
