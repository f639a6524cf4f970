"""One step of Adam for all replicas, each independent of the others."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Update:
    """Clip, check and apply the gradients of stacked parameters.

    All weights become views of one matrix with one row per replica, so a step is a few operations.
    A replica whose loss or gradient is not finite keeps its weights from then on.

    Args:
        model: A stacked model of ``size`` replicas; its parameters must not be moved afterwards.
        size: Number of replicas.
        clip: Maximum norm of a replica's gradient; None for no limit.
    """

    def __init__(self, model: nn.Module, size: int, clip: float | None) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        rows = torch.cat([p.detach().reshape(size, -1) for p in self.parameters], 1)
        first = 0
        for p in self.parameters:
            width = p[0].numel()
            p.data = rows[:, first : first + width].view(p.shape)
            first += width
        self._clip = clip
        self._weights = nn.Parameter(rows)
        device, cuda = rows.device, rows.is_cuda
        self._adam = torch.optim.Adam(
            [self._weights],
            # A CUDA graph reads the rate from this tensor.
            lr=torch.zeros((), device=device) if cuda else 0.0,
            fused=cuda,
            capturable=cuda,
        )
        dtype = torch.get_default_dtype()
        moments = {
            "step": torch.zeros((), dtype=dtype, device=device),
            "exp_avg": torch.zeros_like(rows),
            "exp_avg_sq": torch.zeros_like(rows),
        }
        self._adam.state[self._weights] = moments
        self._alive = torch.ones(size, dtype=torch.bool, device=device)
        self.failed_at = torch.full((size,), -1, device=device)
        """``(R)``: step at which a replica failed; -1 if it did not."""
        self.state = moments | {"alive": self._alive, "failed_at": self.failed_at}
        """Tensors that a step updates in place besides the weights."""

    @property
    def changed(self) -> list[Tensor]:
        """All tensors that a step updates in place."""
        return [self._weights.detach(), *self.state.values()]

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        group = self._adam.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    @torch.no_grad()
    def __call__(self, loss: Tensor, grads: Sequence[Tensor], step: Tensor) -> Tensor:
        """Take a step and return the losses, NaN for replicas that have failed.

        Args:
            loss: Loss of each replica, ``(R)``.
            grads: Gradient of each parameter, ``(R, ...)``.
            step: Number of the step, an int64 scalar.
        """
        grad = torch.cat([g.reshape(len(loss), -1) for g in grads], 1)
        norm = torch.linalg.vector_norm(grad, dim=1)
        fine = loss.isfinite() & norm.isfinite()
        self.failed_at.copy_(torch.where(self._alive & ~fine, step, self.failed_at))
        self._alive &= fine
        rows = self._alive.unsqueeze(1)
        if self._clip is not None:
            # The same formula as torch.nn.utils.clip_grad_norm_.
            grad = grad * (self._clip / (norm + 1e-6)).clamp(max=1.0).unsqueeze(1)
        self._weights.grad = torch.where(rows, grad, 0.0)
        before = self._weights.clone()
        self._adam.step()
        self._weights.copy_(torch.where(rows, self._weights, before))
        return torch.where(self._alive, loss, torch.nan)
