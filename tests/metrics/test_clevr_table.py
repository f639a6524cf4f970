"""The 19 numbers of an object, from the world and from the reader."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from slotmesh.metrics import CLEVR_COLUMNS, CLEVR_LABELS, CLEVR_WIDTH, encode_objects
from slotmesh.readers import ClevrReader, labels
from slotmesh.worlds import Clevr


def test_layout_is_that_of_idspn():
    """coord, material, color, shape, size, mask of 3, 2, 8, 3, 2, 1 numbers."""
    assert list(CLEVR_COLUMNS) == ["position", "material", "color", "shape", "size", "real"]
    assert [s.stop - s.start for s in CLEVR_COLUMNS.values()] == [3, 2, 8, 3, 2, 1]
    assert [s.start for s in CLEVR_COLUMNS.values()] == [0, 3, 5, 13, 16, 18]
    assert CLEVR_WIDTH == 19


def names(row: torch.Tensor) -> dict[str, str]:
    """What a row says, in words."""
    return {k: v[int(row[CLEVR_COLUMNS[k]].argmax())] for k, v in CLEVR_LABELS.items()}


def test_world():
    sample = Clevr(seed=3, size=32).sample(range(3))
    target = encode_objects(sample.objects, sample.present)
    assert target.shape == (3, 10, 19)
    assert target.dtype == torch.float32
    assert (~sample.present).any()
    for i in range(3):
        for k in range(10):
            row = target[i, k]
            if not sample.present[i, k]:
                assert not row.any()
                continue
            assert row[18] == 1
            torch.testing.assert_close(row[:3] * 3, sample.objects["position"][i, k].float())
            # One number of each attribute, and the flag.
            assert row[3:].sum() == 5
            for name, words in CLEVR_LABELS.items():
                assert names(row)[name] == words[int(sample.objects[name][i, k])]


def test_reader_and_world_mean_the_same_labels(tmp_path):
    """Objects written in words come out as the same words."""
    assert CLEVR_LABELS["color"] == labels.COLORS
    assert CLEVR_LABELS["material"] == labels.MATERIALS
    assert CLEVR_LABELS["shape"] == labels.SHAPES
    assert CLEVR_LABELS["size"] == labels.SIZES
    written = [
        {k: v[i % len(v)] for k, v in CLEVR_LABELS.items()}
        | {"3d_coords": [0.3 * i, -1.0, 0.7], "rotation": 0.0, "pixel_coords": [1, 2, 3.0]}
        for i in range(8)
    ]
    scene = {"image_index": 0, "image_filename": "CLEVR_val_000000.png", "objects": written}
    for folder in ("images/val", "scenes"):
        (tmp_path / "CLEVR_v1.0" / folder).mkdir(parents=True)
    root = tmp_path / "CLEVR_v1.0"
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(root / "images/val/CLEVR_val_000000.png")
    (root / "scenes" / "CLEVR_val_scenes.json").write_text(json.dumps({"scenes": [scene]}))
    sample = ClevrReader(root, split="val", size=8).sample([0])
    target = encode_objects(sample.objects, sample.present)[0]
    for row, thing in zip(target, written, strict=False):
        assert names(row) == {k: thing[k] for k in CLEVR_LABELS}
        torch.testing.assert_close(row[:3] * 3, torch.tensor(thing["3d_coords"]))
    assert target[:, 18].tolist() == [1] * 8 + [0] * 2
    assert not target[8:].any()


def test_padding_is_zero_whatever_the_table_holds():
    present = torch.tensor([[True, False]])
    objects = {name: torch.ones(1, 2).long() for name in CLEVR_LABELS}
    objects["color"][0, 1] = 99
    objects["position"] = torch.tensor([[[1.0, 2.0, 3.0], [torch.nan] * 3]])
    target = encode_objects(objects, present)
    assert target[0, 0].sum() == 2 + 5
    assert not target[0, 1].any()


def test_bad_tables():
    present = torch.ones(1, 2).bool()
    good = {name: torch.zeros(1, 2).long() for name in CLEVR_LABELS}
    good["position"] = torch.zeros(1, 2, 3)
    encode_objects(good, present)
    with pytest.raises(ValueError, match="no column size"):
        encode_objects({k: v for k, v in good.items() if k != "size"}, present)
    with pytest.raises(ValueError, match=r"torch\.bool"):
        encode_objects(good, present.float())
    with pytest.raises(ValueError, match="column color has shape"):
        encode_objects(good | {"color": torch.zeros(1, 3).long()}, present)
    with pytest.raises(ValueError, match="column material has labels from 0 to 2"):
        encode_objects(good | {"material": torch.tensor([[0, 2]])}, present)
