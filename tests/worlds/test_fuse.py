"""Shading is compiled once: not for each batch, material, shape or mode of the caller."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from slotmesh.worlds import Clevr, ClevrTex
from slotmesh.worlds.render import fuse

MODES: dict[str, Callable[[], Any]] = {
    "grad": nullcontext,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs are captured as ever, but run as they are: compiling them takes long."""
    threads = torch.get_num_threads()
    # Those of a CPU have a number of threads each, which is compiled for too.
    torch.set_num_threads(1)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(fuse, "_cache", {})
    torch._dynamo.reset()
    counters.clear()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("kind", "size"), [(Clevr, 64), (ClevrTex, 32)])
def test_once_for_all_batches_and_modes(
    kind: type[Clevr | ClevrTex], size: int, traced: None
) -> None:
    world, plain = (kind(seed=3, size=size, compile=fused) for fused in (True, False))
    batches = (range(3), [5], [5, 6])
    first = world.sample(batches[0])
    assert 1 <= counters["stats"]["unique_graphs"] <= 8
    found = []
    with torch._dynamo.config.patch(error_on_recompile=True):
        for mode, batch in zip(list(MODES.values())[1:], batches, strict=True):
            with mode():
                found.append(world.sample(batch))
        assert 1 <= counters["stats"]["unique_graphs"] <= 8
    for batch, sample in zip((batches[0], *batches), (first, *found), strict=True):
        assert not sample.image.is_inference() or sample is found[1]
        off = (sample.image.int() - plain.sample(batch).image.int()).abs()
        assert off.max() <= 1


def test_few_rows_are_not_compiled_for(traced: None) -> None:
    double = fuse.compiled(lambda x: x * 2)
    for rows in (0, 1, 2):
        assert torch.equal(double(torch.ones(rows)), torch.full((rows,), 2.0))
    assert counters["stats"]["unique_graphs"] == 0
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (100, 64, 5000):
            assert torch.equal(double(torch.ones(rows)), torch.full((rows,), 2.0))
    assert counters["stats"]["unique_graphs"] == 1
