"""Losses by step, copied to the host without waiting for the device."""

import torch
from torch import Tensor


class LossCurve:
    """Rows of losses that arrive on the host some time after they were added."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, torch.cuda.Event | None]] = []

    def add(self, rows: Tensor) -> None:
        """Add a copy of ``rows`` ``(steps, R)`` with its current values."""
        if not rows.is_cuda:
            self._parts.append((rows.clone(), None))
            return
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        host.copy_(rows, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._parts.append((host, arrived))

    def latest(self) -> Tensor | None:
        """Return the newest row ``(R)`` that has arrived, if any."""
        for host, arrived in reversed(self._parts):
            if arrived is None or arrived.query():
                return host[-1]
        return None

    def whole(self) -> Tensor:
        """Wait for all rows and return them, ``(steps, R)``."""
        if not self._parts:
            return torch.empty(0, 0)
        for _, arrived in self._parts:
            if arrived is not None:
                arrived.synchronize()
        rows = torch.cat([host for host, _ in self._parts])
        self._parts = [(rows, None)]
        return rows

    def load(self, rows: Tensor) -> None:
        """Replace all rows with these."""
        self._parts = [(rows, None)] if len(rows) else []
