"""Where the fused kernels run: natively on a CUDA device, else in Triton's interpreter."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ._quick import quicken


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A device that kernels run on; memory that they are to fill is full of NaN."""
    pytest.importorskip("triton", reason="triton is not installed")
    native = torch.cuda.is_available()
    if request.param == "cuda" and not native:
        pytest.skip("no CUDA device on this machine")
    if request.param == "cpu" and native:
        pytest.skip("runs natively on this machine, with -m gpu")
    if not native:
        _interpret(monkeypatch)
    # In this mode torch.empty is filled with NaN.
    torch.use_deterministic_algorithms(True)
    yield request.param
    torch.use_deterministic_algorithms(False)


def _interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.runtime.interpreter as interpreter

    # Read when a kernel is defined, so by the first of these tests; no other test defines one.
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from slotmesh.ops._triton import launch

    kernel = launch._forward.forward_kernel
    assert isinstance(kernel, interpreter.InterpretedFunction), "kernels were imported natively"

    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch_tensor(tensor, scope)
        # NumPy 2.4 makes no number of an array of one element, which all scalars are here.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
    # Calls inside a kernel would patch triton.language again, which takes longer than the kernel.
    monkeypatch.setattr(
        interpreter.InterpretedFunction, "__call__", lambda self, *a, **k: self.rewrite()(*a, **k)
    )
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)
    quicken(monkeypatch)


def _dot(builder: Any, a: Any, b: Any, c: Any, *precision: Any) -> Any:
    """A product as tensor cores make it; the interpreter takes the bits of bfloat16 for numbers."""
    from triton.runtime.interpreter import TensorHandle

    def numbers(x: Any) -> Any:
        if str(x.dtype.scalar) != "bf16":
            return x.data
        return (x.data.astype(np.uint32) << 16).view(np.float32)

    product = np.matmul(numbers(a), numbers(b), dtype=c.data.dtype)
    return TensorHandle(product + c.data, c.dtype.scalar)
