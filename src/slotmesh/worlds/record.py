"""Common base of the batches that worlds and readers return."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorRecord:
    """Tensors, and dicts of tensors, that have one row per sample."""

    def to(self, device: torch.device | str) -> Self:
        """The same record on another device."""
        return self._map(lambda x: x.to(device))

    def __getitem__(self, rows: slice) -> Self:
        # A number would give tensors without their first dimension, and allow to iterate over them.
        if not isinstance(rows, slice):
            raise TypeError(
                f"{type(self).__name__}: the rows are {rows!r}, expected a slice. Pass [3:4] for "
                "a batch of the sample in row 3."
            )
        return self._map(lambda x: x[rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        now: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            columns = isinstance(value, dict)
            now[field.name] = {k: change(x) for k, x in value.items()} if columns else change(value)
        return replace(self, **now)
