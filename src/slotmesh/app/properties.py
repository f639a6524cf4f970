"""Properties: the CLEVR model names every object in an image and its position."""

from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from slotmesh.app.pictures import ShownImage, as_image, to_square
from slotmesh.metrics.clevr_table import CLEVR_COLUMNS, CLEVR_LABELS, POSITION_SCALE
from slotmesh.models import PropertyPredictor
from slotmesh.ops import assign
from slotmesh.palette import object_colour
from slotmesh.report.drawing import length, rgb, write
from slotmesh.worlds.render.camera import CLEVR_CAMERA

# The camera of CLEVR, and its half-extents by size.
_FOCAL, _WIDTH, _HEIGHT = 525.0, 480.0, 320.0
_EXTENTS = {"small": 0.35, "large": 0.7}
# Outlines are wider than the half-extent, which for a cube is half its side.
_OUTLINE = {"cube": 1.45, "sphere": 1.1, "cylinder": 1.25}
# An object within this distance counts as found, in CLEVR's units; objects are 0.7 or 1.4 wide.
_NEAR = 1.0
_SHOWN = (960, 640)
_LETTERS = 22


@dataclass(frozen=True)
class NamedObject:
    """An object that a model sees."""

    size: str
    color: str
    material: str
    shape: str
    position: tuple[float, float, float]
    """x, y and z in CLEVR's world."""
    confidence: float
    """Confidence that there is an object, from about 0 to 1."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom in the image, from 0 to 1."""
    right: frozenset[str] | None = None
    """Which of its properties are right, if the true objects are known; ``position`` if there is an
    object at all."""

    @property
    def words(self) -> str:
        """The object in words, such as ``large red metal cube``."""
        return f"{self.size} {self.color} {self.material} {self.shape}"


@torch.inference_mode()
def name_objects(
    model: PropertyPredictor, shown: ShownImage, *, confidence: float = 0.5, seed: int = 0
) -> list[NamedObject]:
    """Name the objects of an image, the nearest to the camera first.

    Args:
        model: Trained on CLEVR, in evaluation mode.
        shown: The image, of any size: CLEVR's 480 x 320, or the same as a square.
        confidence: Minimum confidence of an object.
        seed: Seed of the initial slots and of MESH's noise.

    Example:
        >>> from slotmesh.app.pictures import world_scene
        >>> from slotmesh.app.properties import name_objects
        >>> from slotmesh.models import PropertyPredictor
        >>> model = PropertyPredictor(resolution=(32, 32), channels=8).eval()
        >>> len(name_objects(model, world_scene("clevr", 0), confidence=-100.0))
        10
    """
    image = to_square(shown.pixels, model.encoder.resolution, crop=False)
    place = next(model.parameters()).device
    numbers = model(image[None].to(place), seed=seed).properties[0].float().cpu()
    sure = numbers[:, CLEVR_COLUMNS["real"]].squeeze(-1)
    numbers, sure = numbers[sure >= confidence], sure[sure >= confidence]
    positions = POSITION_SCALE * numbers[:, CLEVR_COLUMNS["position"]]
    labels = {
        name: [words[k] for k in numbers[:, CLEVR_COLUMNS[name]].argmax(-1).tolist()]
        for name, words in CLEVR_LABELS.items()
    }
    pairs = zip(labels["size"], labels["shape"], strict=True)
    extents = torch.tensor([_EXTENTS[size] * _OUTLINE[shape] for size, shape in pairs])
    boxes, depth = _boxes(positions, extents)
    right = _compare(shown, positions, labels)
    found = [
        NamedObject(
            **{name: column[k] for name, column in labels.items()},
            position=tuple(positions[k].tolist()),
            confidence=float(sure[k]),
            box=tuple(boxes[k].tolist()),
            right=right[k],
        )
        for k in range(len(sure))
    ]
    return [found[k] for k in depth.argsort().tolist()]


def missed(shown: ShownImage, found: list[NamedObject]) -> int | None:
    """True objects that were missed, if the true objects are known."""
    if shown.sample is None:
        return None
    return int(shown.sample.present.sum()) - sum("position" in (one.right or ()) for one in found)


def draw_boxes(pixels: Tensor, found: list[NamedObject]) -> Image.Image:
    """The image with a numbered box around every object.

    Args:
        pixels: uint8 ``(3, H, W)``.
        found: By :func:`name_objects`.
    """
    picture = as_image(pixels)
    width, height = picture.size
    # A square image is a squeezed CLEVR image.
    aspect = _WIDTH / _HEIGHT if width == height else width / height
    scale = min(_SHOWN[0] / aspect, _SHOWN[1])
    picture = picture.resize((round(scale * aspect), round(scale)), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture)
    # The nearest are drawn last.
    for k, one in reversed(list(enumerate(found))):
        left, top, right, bottom = (
            round(x * side) for x, side in zip(one.box, picture.size * 2, strict=True)
        )
        colour = rgb(object_colour(k + 1))
        pen.rounded_rectangle((left, top, right, bottom), 8, outline="white", width=5)
        pen.rounded_rectangle(
            (left + 1, top + 1, right - 1, bottom - 1), 7, outline=colour, width=3
        )
        word = str(k + 1)
        wide = length(word, _LETTERS) + 14
        pen.rounded_rectangle(
            (left, top - 14, left + wide, top + 16), 6, fill=colour, outline="white"
        )
        write(pen, (left + 7, top - 12), word, (255, 255, 255), size=_LETTERS, bold=True)
    return picture


def _boxes(positions: Tensor, extents: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes ``(k, 4)`` of objects at these places in CLEVR's camera, and their depths ``(k)``."""
    eye = torch.tensor(CLEVR_CAMERA)
    forward = -eye / eye.norm()
    right = torch.linalg.cross(forward, torch.tensor([0.0, 0.0, 1.0]))
    right = right / right.norm()
    down = torch.linalg.cross(forward, right)
    seen = (positions - eye) @ torch.stack((right, down, forward), -1)
    depth = seen[:, 2].clamp(min=0.1)
    centre = _FOCAL * seen[:, :2] / depth.unsqueeze(-1) + torch.tensor([_WIDTH, _HEIGHT]) / 2
    half = (_FOCAL * extents / depth).unsqueeze(-1)
    sides = torch.tensor([_WIDTH, _HEIGHT])
    return torch.cat(((centre - half) / sides, (centre + half) / sides), -1).clamp(0, 1), depth


def _compare(
    shown: ShownImage, positions: Tensor, labels: dict[str, list[str]]
) -> list[frozenset[str] | None]:
    """Which properties are right, each object compared with the nearest true one."""
    if shown.sample is None or "material" not in shown.sample.objects:
        return [None] * len(positions)
    if len(positions) == 0:
        return []
    present = shown.sample.present[0]
    table = {name: column[0][present] for name, column in shown.sample.objects.items()}
    distance = torch.cdist(positions, table["position"].float())
    right: list[frozenset[str] | None] = []
    for k, other in enumerate(assign(distance).tolist()):
        near = other >= 0 and float(distance[k, other]) < _NEAR
        good = {"position"} if near else set()
        for name, words in CLEVR_LABELS.items():
            if near and words[int(table[name][other])] == labels[name][k]:
                good.add(name)
        right.append(frozenset(good))
    return right
