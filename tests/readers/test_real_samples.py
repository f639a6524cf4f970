"""The readers on pieces of the real datasets, where they are at hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from slotmesh.readers import BadRecord, ClevrerReader, ClevrReader
from slotmesh.readers._rle import decode
from slotmesh.readers.clips import load_frames

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def folder(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"no real samples: {DATA / name} is not there")
    return DATA / name


def test_clevr() -> None:
    root = folder("clevr_v1")
    reader = ClevrReader(root, size=None, partial=True)
    assert len(reader) == 100
    assert len(ClevrReader(root)) == 700
    batch = reader.sample(range(0, 100, 5))
    assert batch.image.shape[1:] == (3, 320, 480)
    present = batch.present
    assert present.sum(1).min() >= 3
    x, y, depth = (batch.objects["pixel"][..., i] for i in range(3))
    assert ((x[present] >= 0) & (x[present] < 480)).all()
    assert ((y[present] >= 0) & (y[present] < 320)).all()
    assert ((depth[present] > 5) & (depth[present] < 20)).all()
    position = batch.objects["position"][present]
    assert position[:, :2].abs().max() <= 3
    # Objects stand on the ground: their centre is as high as they are large.
    large = batch.objects["size"][present] == 1
    assert (position[large, 2] - 0.7).abs().max() < 1e-3
    assert (position[~large, 2] - 0.35).abs().max() < 1e-3


def test_colours_of_real_rubber_agree_with_their_labels() -> None:
    reader = ClevrReader(folder("clevr_v1"), size=None, partial=True)
    batch = reader.sample(range(100))
    found = {}
    for name, code in (("red", 1), ("blue", 2), ("green", 3)):
        objects = batch.objects
        which = batch.present & (objects["color"] == code) & (objects["material"] == 0)
        pixels = [
            batch.image[b, :, int(y), int(x)].float()
            for b, k in which.nonzero().tolist()
            for x, y, _ in [objects["pixel"][b, k].tolist()]
        ]
        assert len(pixels) > 5
        found[name] = np.median(np.stack(pixels), axis=0)
    # Channels are in the order red, green, blue.
    assert found["red"].argmax() == 0
    assert found["green"].argmax() == 1
    assert found["blue"].argmax() == 2


def test_the_other_renders_and_their_masks() -> None:
    root = folder("clevr_renders") / "1obj"
    parsed = root / "scenes_parsed" / "processed_proposals"
    for split in ("train", "val", "test"):
        # Their test split does have scenes.
        batch = ClevrReader(root, split, size=None).sample(range(10))
        assert batch.image.shape == (10, 3, 240, 320)
        assert batch.present.sum(1).tolist() == [1] * 10
        found = json.loads((parsed / f"{split}_obj_masks.json").read_text())
        inside = 0
        for number, rle in zip(found["image_idxs"], found["object_masks"], strict=True):
            mask = decode(rle["counts"], tuple(rle["size"]))
            assert mask.shape == (240, 320)
            # A detector's mask of one small or large object in such an image.
            assert 300 < mask.sum() < 10000
            x, y, _ = batch.objects["pixel"][number, 0].tolist()
            inside += int(mask[int(y), int(x)])
        # The file of the test images holds the masks of the training images (so in the source).
        assert split == "test" or inside >= 9


def test_clevrer() -> None:
    pytest.importorskip("av", reason="PyAV is not installed (the extra 'video')")
    root = folder("clevrer")
    reader = ClevrerReader(root, frames=(0, 127), size=None, partial=True)
    assert len(reader) == 3
    assert not reader.has_masks
    batch = reader.sample(range(3))
    assert batch.image.shape == (3, 2, 3, 320, 480)
    assert 4 <= batch.objects["real"].sum(1).min() <= batch.objects["real"].sum(1).max() <= 6
    assert (batch.present.any(1) <= batch.objects["real"]).all()
    # Real pictures: neither black nor flat, and the two frames differ.
    assert batch.image.float().std() > 10
    assert (batch.image[:, 0].float() - batch.image[:, 1].float()).abs().mean() > 0.3
    # Everything rolls or slides on the ground.
    position = batch.objects["position"].transpose(1, 2)[batch.objects["real"]]
    assert (position[..., 2] - 0.2).abs().max() < 0.05
    assert len(ClevrerReader(root, "val", partial=True)) == 1
    short = ClevrerReader(root, frames=(0, 16), partial=True).read(0)
    assert short.image.shape == (1, 2, 3, 64, 64)
    with pytest.raises(BadRecord, match=r"video_00001\.mp4: the file is missing"):
        ClevrerReader(root).read(1)


def test_clevrer_videos_have_128_frames(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (the extra 'video')")
    path = folder("clevrer") / "video_train" / "video_00000-01000" / "video_00000.mp4"
    assert len(load_frames(path, range(128))) == 128
    with pytest.raises(BadRecord, match="it has 128 frames, expected at least 129"):
        load_frames(path, [128])
    raw = path.read_bytes()
    torn = tmp_path / "torn.mp4"
    torn.write_bytes(raw[:100000] + b"\xa5" * 5000 + raw[105000:])
    with pytest.raises(BadRecord, match=r"torn\.mp4: "):
        load_frames(torn, [0, 127])
    torn.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(BadRecord, match=r"torn\.mp4: it is not an mp4"):
        load_frames(torn, [0])
