"""CLEVRER scenes for the ray caster, from columns of tensors or from a real annotation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slotmesh.worlds._dynamics import HALF_EXTENT, N_FRAMES, SHAPES
from slotmesh.worlds.clevr import CLEVR_COLOURS, CLEVR_MATERIALS, CLEVR_RGB
from slotmesh.worlds.render import METAL, RUBBER, Lens, Scene, yaw_matrix
from slotmesh.worlds.render.look import LAMPS

# 5 units from the origin, 30 degrees above the ground, looking at the origin along -x, with the
# focal length of CLEVR: rendered annotations then lie on the real frames to 0.4 pixels (median).
DISTANCE = 5.0
COS, SIN = math.sqrt(3) / 2, 0.5
FOCAL, WIDTH, HEIGHT = 525.0, 480.0, 320.0
_SCENE_MATERIAL = (RUBBER, METAL)
LENS = Lens.of(focal=FOCAL, width=WIDTH, height=HEIGHT)
NEAR_LENS = Lens.of(focal=FOCAL, width=WIDTH, height=HEIGHT, crop=(320.0, 214.0))
"""The middle of the view, for the easy world."""


def in_view(x: Tensor, y: Tensor, margin: float = 0.0, z: float = 0.2) -> Tensor:
    """True where an object's centre projects into the frame.

    Args:
        x: x coordinate of the centre, any shape.
        y: y coordinate of the centre, the same shape.
        margin: How far outside the frame still counts, in world units at the object's distance.
        z: Height of the centre.
    """
    depth = DISTANCE - (x * COS + z * SIN)
    up = z * COS - x * SIN
    # Without a division, and False behind the camera.
    inside_x = (y.abs() - margin) * (FOCAL * 2 / WIDTH) <= depth
    inside_y = (up.abs() - margin) * (FOCAL * 2 / HEIGHT) <= depth
    return inside_x & inside_y & (depth > 0)


def make_scene(
    position: Tensor,
    facing: Tensor,
    shape: Tensor,
    material: Tensor,
    colour: Tensor,
    present: Tensor,
) -> Scene:
    """Scenes under CLEVRER's camera and lamps.

    Args:
        position: float64 ``(batch, n, 2)``, centres on the ground plane.
        facing: float64 ``(batch, n, 2)``, cosine and sine of the turn.
        shape: int64 ``(batch, n)``, index into ``SHAPES``.
        material: int64 ``(batch, n)``, index into ``CLEVR_MATERIALS``.
        colour: int64 ``(batch, n)``, index into ``CLEVR_COLOURS``.
        present: bool ``(batch, n)``.
    """
    batch, device = len(position), position.device

    def constant(value: Sequence[Any], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(value, dtype=dtype, device=device)

    height = torch.full_like(position[..., :1], HALF_EXTENT)
    return Scene(
        position=torch.cat((position, height), dim=-1),
        rotation=yaw_matrix(facing[..., 0], facing[..., 1]),
        size=height[..., 0],
        shape=shape,
        material=constant(_SCENE_MATERIAL, torch.int64)[material],
        colour=(constant(CLEVR_RGB, torch.float32) * (1 / 255))[colour],
        present=present,
        camera=constant((DISTANCE * COS, 0.0, DISTANCE * SIN)).expand(batch, -1),
        lamps=constant(LAMPS).expand(batch, -1, -1),
    )


def scene_of_annotation(annotation: Mapping[str, Any], frames: Sequence[int]) -> Scene:
    """Scenes of some frames of a real annotation, one per frame; rows are its objects in order.

    Raises:
        ValueError: If the annotation lacks a field, a frame or a known name.
    """
    try:
        kinds = annotation["object_property"]
        motion = annotation["motion_trajectory"]
        rows = {kind["object_id"]: row for row, kind in enumerate(kinds)}
        columns = [
            [names.index(kind[field]) for kind in kinds]
            for field, names in (
                ("shape", SHAPES),
                ("material", CLEVR_MATERIALS),
                ("color", CLEVR_COLOURS),
            )
        ]
        position = torch.zeros(len(frames), len(rows), 2, dtype=torch.float64)
        turn = torch.zeros(len(frames), len(rows), dtype=torch.float64)
        present = torch.zeros(len(frames), len(rows), dtype=torch.bool)
        for k, frame in enumerate(frames):
            for body in motion[frame]["objects"]:
                row = rows[body["object_id"]]
                position[k, row] = torch.tensor(body["location"][:2], dtype=torch.float64)
                turn[k, row] = body["orientation"][2]
                present[k, row] = True
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"CLEVRER annotation: could not read frames {tuple(frames)} ({error!r}). Expected the "
            f"fields object_property and motion_trajectory with up to {N_FRAMES} frames, as in "
            "annotation_00000.json of the dataset."
        ) from error
    shape, material, colour = (
        torch.tensor(column, dtype=torch.int64).expand(len(frames), -1) for column in columns
    )
    facing = torch.stack((turn.cos(), turn.sin()), dim=-1)
    return make_scene(position, facing, shape, material, colour, present)
