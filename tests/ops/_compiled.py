"""Where the CPU's path can be tested: it is in C."""

import pytest

from slotmesh.ops import _native

needs_c = pytest.mark.skipif(
    _native.unavailable() is not None, reason=f"no C: {_native.unavailable()}"
)
