"""Common base of batches: of samples, and of scenes."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorRecord:
    """Tensors, dicts of tensors or None, with one row per sample; the first field is a tensor."""

    def to(self, device: torch.device | str) -> Self:
        """The same record on another device."""
        return self._map(lambda x: x.to(device))

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, rows: slice | Tensor) -> Self:
        # A number would drop the first dimension, and make records iterable.
        if not isinstance(rows, slice) and not (isinstance(rows, Tensor) and rows.ndim == 1):
            raise TypeError(
                f"{type(self).__name__}: the rows are {rows!r}, expected a slice or a tensor. Pass "
                "[3:4] for a batch of the sample in row 3."
            )
        return self._map(lambda x: x[rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        def changed(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: change(x) for k, x in value.items()}
            return None if value is None else change(value)

        return replace(self, **{k: changed(v) for k, v in vars(self).items()})
