"""Programs that wait for each other in Triton's interpreter: a thread for each of them."""

import sys
import threading
from typing import Any

import numpy as np
import pytest
import triton.language as tl
import triton.runtime.interpreter as interpreter

from slotmesh.ops._triton import exchange, launch


class _Patched:
    """The interpreter's own scope belongs to the thread that started the others."""

    def restore(self) -> None:
        """Nothing: the others still run."""


def side_by_side(monkeypatch: pytest.MonkeyPatch, processors: int, at_once: int) -> list[int]:
    """Run programs of a cooperative launch at the same time; returns a list of their numbers.

    Args:
        monkeypatch: Undoes it.
        processors: How many the device is to have.
        at_once: Words that programs read at once; of more, each adds up a share.
    """
    me, run_on, launched = threading.local(), launch.run_on, []
    first = interpreter.InterpreterBuilder.create_get_program_id

    def program_id(builder: Any, axis: int) -> Any:
        number = getattr(me, "number", None)
        if number is None or axis > 0:
            return first(builder, axis)
        return interpreter.TensorHandle(np.array([number], dtype=np.int32), tl.int32)

    def run(device: Any, kernel: Any, grid: Any, *args: Any, together: bool = False, **more: Any):
        if not together:
            return run_on(device, kernel, grid, *args, **more)
        launched.append(grid[0])
        failed: list[BaseException] = []

        def one(number: int) -> None:
            me.number = number
            try:
                kernel[(1, 1, 1)](*args, **more)
            except BaseException as error:
                failed.append(error)
                raise

        scope, patch = interpreter._patch_lang(kernel.rewrite()), interpreter._patch_lang
        interpreter._patch_lang = lambda fn: _Patched()
        often = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        try:
            threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(grid[0])]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not failed:
                    thread.join(0.1)
        finally:
            sys.setswitchinterval(often)
            interpreter._patch_lang = patch
            scope.restore()
        assert not failed, failed
        return None

    rewrite, alone = interpreter.InterpretedFunction.rewrite, threading.RLock()

    def rewritten(function: Any) -> Any:
        # Python 3.11 counts the depth of a syntax tree for all threads together.
        with alone:
            return rewrite(function)

    monkeypatch.setattr(interpreter.InterpretedFunction, "rewrite", rewritten)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_get_program_id", program_id)
    monkeypatch.setattr(launch, "run_on", run)
    monkeypatch.setattr(launch, "_hardware", lambda device: (processors, 2**25))
    monkeypatch.setattr(exchange, "AT_ONCE", tl.constexpr(at_once))
    return launched
