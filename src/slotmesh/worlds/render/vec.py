"""Vectors as tuples of three tensors, so that operations are elementwise and in a fixed order."""

from torch import Tensor

from slotmesh.worlds._exact import sqrt

Vec = tuple[Tensor, Tensor, Tensor]


def vec(x: Tensor) -> Vec:
    """Split the last dimension of a tensor ``(..., 3)``."""
    return x[..., 0], x[..., 1], x[..., 2]


def dot(a: Vec, b: Vec) -> Tensor:
    """Sum of products, from left to right."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def add(a: Vec, b: Vec) -> Vec:
    """The sum."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def sub(a: Vec, b: Vec) -> Vec:
    """The difference."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def scale(a: Vec, by: Tensor | float) -> Vec:
    """A vector times a number or a tensor."""
    return a[0] * by, a[1] * by, a[2] * by


def cross(a: Vec, b: Vec) -> Vec:
    """The cross product."""
    return (
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    )


def unit(a: Vec) -> Vec:
    """Normalise a vector that is not zero."""
    return scale(a, 1 / sqrt(dot(a, a)))


def rotate(matrix: Tensor, a: Vec) -> Vec:
    """``matrix @ a`` for a matrix ``(..., 3, 3)``."""
    x, y, z = (dot(vec(matrix[..., i, :]), a) for i in range(3))
    return x, y, z


def rotate_back(matrix: Tensor, a: Vec) -> Vec:
    """``matrix.T @ a`` for a matrix ``(..., 3, 3)``."""
    x, y, z = (dot(vec(matrix[..., :, i]), a) for i in range(3))
    return x, y, z
