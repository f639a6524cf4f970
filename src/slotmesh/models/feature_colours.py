"""Show features as colours."""

import torch
from torch import Tensor


def feature_colours(
    features: Tensor, reconstruction: Tensor, grid: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Show features, and their reconstruction, by three principal components of the features.

    Args:
        features: ``(n, dim)``, of one image.
        reconstruction: ``(n, dim)``, shown by the same components.
        grid: Rows and columns, whose cells are the ``n`` patches.

    Returns:
        Both as uint8 ``(3, rows, columns)``; equal colours mean equal components.

    Example:
        >>> import torch
        >>> from slotmesh.models.feature_colours import feature_colours
        >>> x = torch.randn(64, 16)
        >>> shown, again = feature_colours(x, x, (8, 8))
        >>> shown.shape, torch.equal(shown, again)
        (torch.Size([3, 8, 8]), True)
    """
    x, y = (values.detach().double().cpu() for values in (features, reconstruction))
    mean = x.mean(0)
    # Eigenvectors of a small matrix: the directions in which patches differ most.
    _, vectors = torch.linalg.eigh((x - mean).T @ (x - mean))
    basis = vectors[:, -3:].flip(-1)
    # The sign of an eigenvector is arbitrary.
    largest = basis.gather(0, basis.abs().argmax(0, keepdim=True))
    basis = basis * torch.where(largest < 0, -1.0, 1.0)
    if basis.shape[1] < 3:
        basis = torch.nn.functional.pad(basis, (0, 3 - basis.shape[1]))
    a, b = (x - mean) @ basis, (y - mean) @ basis
    low, high = a.aminmax(dim=0)
    scale = 255 / (high - low).clamp_min(1e-12)

    def shown(values: Tensor) -> Tensor:
        levels = ((values - low) * scale).round().clamp(0, 255).to(torch.uint8)
        return levels.T.unflatten(-1, grid)

    return shown(a), shown(b)
