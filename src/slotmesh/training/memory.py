"""What to say where the memory is too small."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# What torch says where it asks the system for memory, or cannot even count the bytes.
_SIGNS = ("allocate memory", "out of memory", "overflow")


@contextmanager
def memory_checked() -> Iterator[None]:
    """Raise a ValueError that says what to do where there is not enough memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and not any(sign in said for sign in _SIGNS):
            raise
        raise ValueError(
            f"There is not enough memory ({said or 'MemoryError'}). Lower --data.batch-size, or "
            "the sizes of the data and the model."
        ) from error
