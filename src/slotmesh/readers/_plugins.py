"""HDF5 without its plugins: a file can name a filter, and HDF5 would load the code that has it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from h5py import h5pl  # pyright: ignore

_lock = threading.RLock()


@contextmanager
def no_plugins() -> Iterator[None]:
    """Where HDF5 looks for shared libraries is a setting of the whole process: empty meanwhile."""
    with _lock:
        folders = [h5pl.get(i) for i in range(h5pl.size())]
        for _ in folders:
            h5pl.remove(0)
        try:
            yield
        finally:
            for folder in folders:
                h5pl.append(folder)


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


# A process that is forked while another thread holds the lock would wait for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
