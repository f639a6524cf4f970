"""What the Properties view says about objects."""

import pytest
import torch

from slotmesh.app.explorer import Explorer
from slotmesh.app.links import PropertiesState
from slotmesh.app.pictures import ShownImage, world_scene
from slotmesh.app.properties import draw_boxes, missed, name_objects
from slotmesh.metrics import encode_objects
from slotmesh.models import PropertyPredictor
from slotmesh.models.property_predictor import PropertyOutput
from slotmesh.worlds.clevr import CLEVR_SHAPES


class Oracle(PropertyPredictor):
    """Answers with the truth of a scene, last object first."""

    def __init__(self, shown: ShownImage) -> None:
        super().__init__(resolution=(32, 32), channels=8)
        assert shown.sample is not None
        self.answer = encode_objects(shown.sample.objects, shown.sample.present).flip(1)

    def forward(self, image: torch.Tensor, **options: object) -> PropertyOutput:
        return PropertyOutput(self.answer, *[None] * 4)  # pyright: ignore


@pytest.fixture(scope="module")
def scene() -> ShownImage:
    return world_scene("clevr", 2)


def test_the_truth_is_right(scene: ShownImage) -> None:
    assert scene.sample is not None
    found = name_objects(Oracle(scene), scene)
    present = scene.sample.present[0]
    assert len(found) == int(present.sum())
    everything = {"position", "size", "color", "material", "shape"}
    assert all(one.right == everything for one in found)
    assert missed(scene, found) == 0
    assert {one.shape for one in found} <= set(CLEVR_SHAPES)
    # Boxes are around the objects: where the world says that they are seen, up to the camera.
    true = scene.sample.objects["pixel"][0][present][:, :2] / torch.tensor([480.0, 320.0])
    boxes = torch.tensor([one.box for one in found])
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    assert torch.cdist(centres, true).min(0).values.max() < 0.08


def test_a_mistake_is_marked(scene: ShownImage) -> None:
    oracle = Oracle(scene)
    oracle.answer = oracle.answer.clone()
    real = int(oracle.answer[0, :, -1].nonzero()[0])
    oracle.answer[0, real, 3:5] = oracle.answer[0, real, 3:5].flip(0)  # the other material
    wrong = [one for one in name_objects(oracle, scene) if "material" not in (one.right or ())]
    assert len(wrong) == 1
    oracle.answer[0, real, -1] = 0.2  # not sure that it is there
    found = name_objects(oracle, scene, confidence=0.5)
    assert missed(scene, found) == 1
    assert len(name_objects(oracle, scene, confidence=0.1)) == len(found) + 1


def test_boxes_are_drawn(scene: ShownImage) -> None:
    found = name_objects(Oracle(scene), scene)
    picture = draw_boxes(scene.pixels, found)
    assert picture.size == (960, 640)
    assert draw_boxes(scene.pixels, []).tobytes() != picture.tobytes()


def test_an_image_without_truth(scene: ShownImage) -> None:
    shown = ShownImage("mine", scene.pixels)
    found = name_objects(Oracle(scene), shown)
    assert all(one.right is None for one in found)
    assert missed(shown, found) is None


def test_shipped_weights_name_the_objects() -> None:
    """Nearly all are right (AP 99%)."""
    explorer = Explorer()
    html = explorer.properties(PropertiesState(scene=0))
    assert "8 objects, named by clevr-properties-sa-mesh" in html
    assert "Every object of the scene was found" in html
