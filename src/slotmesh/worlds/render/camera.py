"""A pinhole camera that looks at a point, with the world's z axis up."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slotmesh.worlds.render.scene import Scene
from slotmesh.worlds.render.vec import Vec, cross, dot, sub, unit, vec

CLEVR_CAMERA = (7.4811, -6.5076, 5.3437)
"""Position of CLEVR's camera before its jitter."""


class Camera(NamedTuple):
    """Position and axes of a batch of cameras, each a vector of ``(batch)`` tensors."""

    eye: Vec
    right: Vec
    down: Vec
    forward: Vec


def camera_of(scene: Scene) -> Camera:
    """The cameras of a batch of scenes, in the scene's precision."""
    eye = vec(scene.camera)
    away = sub(vec(scene.target), eye) if scene.target is not None else (-eye[0], -eye[1], -eye[2])
    forward = unit(away)
    zero = torch.zeros_like(forward[0])
    right = unit((forward[1], -forward[0], zero))
    return Camera(eye, right, cross(forward, right), forward)


def project(scene: Scene, point: Tensor) -> Tensor:
    """Project points into the image.

    Args:
        scene: The scenes, whose cameras are used.
        point: ``(batch, n, 3)`` in the world.

    Returns:
        ``(batch, n, 3)``: offsets to the right and down from the image's centre at distance one
        (so that pixels are ``width / 2 + focal * x``), and the depth along the camera's axis.
    """
    camera = camera_of(scene)
    eye, right, down, forward = ((x[:, None], y[:, None], z[:, None]) for x, y, z in camera)
    from_eye = sub(vec(point), eye)
    depth = dot(from_eye, forward)
    return torch.stack([dot(from_eye, right) / depth, dot(from_eye, down) / depth, depth], dim=-1)


def fit_camera(
    points: np.ndarray, pixels: np.ndarray, focal: float, centre: tuple[float, float]
) -> tuple[np.ndarray, float]:
    """Find the position of a camera that looks at the origin and sees points at these pixels.

    Args:
        points: ``(n, 3)`` in the world.
        pixels: ``(n, 2)`` where they were seen.
        focal: Focal length in pixels.
        centre: The image's centre in pixels.

    Returns:
        The position ``(3,)``, by least squares near CLEVR's camera, and the root-mean-square
        distance between observed and projected pixels.
    """
    # Slow to import, and only real scenes need it.
    from scipy.optimize import least_squares

    def off(place: np.ndarray) -> np.ndarray:
        forward = -place / np.linalg.norm(place)
        right = np.cross(forward, (0.0, 0.0, 1.0))
        right /= np.linalg.norm(right)
        seen = (points - place) @ np.stack([right, np.cross(forward, right), forward]).T
        return (focal * seen[:, :2] / seen[:, 2:] + np.asarray(centre) - pixels).ravel()

    # Few objects leave a direction undetermined: a weak prior keeps the camera within its jitter.
    def with_prior(place: np.ndarray) -> np.ndarray:
        return np.concatenate([off(place), 0.05 * (place - np.asarray(CLEVR_CAMERA))])

    place = least_squares(with_prior, np.asarray(CLEVR_CAMERA)).x
    return place, float(np.sqrt((off(place) ** 2).sum() / len(points)))
