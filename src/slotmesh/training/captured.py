"""A computation on the GPU that is recorded once and replayed without the cost of launching it."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Captured(Generic[T]):
    """A function without arguments as a CUDA graph.

    It reads tensors whose memory does not move: write the next inputs into them with ``copy_``,
    then call this. It returns the same tensors every time, with new content.

    Args:
        run: What to record. It must not wait for the device, and may draw random numbers only
            from ``generators`` or the default one.
        generators: CUDA generators that it draws from. Seed them before a call as for ``run``
            itself: a replay then draws what ``run`` would.
        warmups: Calls before the recording, in which libraries and compilers make their choices.
        before: Called before each of them and before the recording, to undo what ``run`` changes.
    """

    def __init__(
        self,
        run: Callable[[], T],
        generators: Iterable[torch.Generator] = (),
        *,
        warmups: int = 3,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warmups):
                before()
                run()
        torch.cuda.current_stream().wait_stream(side)
        before()
        self._graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self._graph.register_generator_state(generator)
        with torch.cuda.graph(self._graph):
            self._result = run()

    def __call__(self) -> T:
        """Replay; the result is valid until the next call."""
        self._graph.replay()
        return self._result
