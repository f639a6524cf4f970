"""The C of the CPU's path with several threads: torch's own, or others where these cannot be."""

import os
from pathlib import Path

import pytest
import torch

from slotmesh.ops import _native, mesh, sinkhorn
from slotmesh.ops._native import library

from ..processes import Script
from ._compiled import needs_c
from ._reference import gradients, leaf, randn

pytestmark = needs_c

F32 = torch.float32


@pytest.fixture(autouse=True)
def several_threads(monkeypatch):
    monkeypatch.setattr(_native, "GRAIN", 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "own"])
def threads(request, monkeypatch):
    """Whose."""
    if request.param == "own":
        monkeypatch.setattr(_native, "torch_threads", lambda process: None)
    elif library.torch_threads(os.getpid()) is None:
        pytest.skip("this torch has no OpenMP that C can call")
    return request.param


def results(cost, threads, **options):
    torch.set_num_threads(threads)
    tracked = leaf(cost)
    t = mesh(tracked, noise=0.0, backend="cpu", **options)
    return t.plan, t.u, t.v, t.cost, *gradients(t.plan, [tracked])


@pytest.mark.parametrize(
    ("batch", "m", "n"), [(1, 6, 300), (3, 11, 4096), (7, 5, 105), (40, 3, 17)]
)
def test_threads_change_no_bit(threads, batch, m, n):
    """Nor does how often: an element is another thread's each time."""
    cost = 2 * randn(batch, m, n, seed=0, dtype=F32)
    mask = randn(batch, m, seed=1) > -0.5
    mask[:, 0] = True
    expected = results(cost, 1, slot_mask=mask)
    for count in (2, 3, 16, 3, 3):
        for x, y in zip(results(cost, count, slot_mask=mask), expected, strict=True):
            assert torch.equal(x, y)


def test_hard_partners_change_no_bit(threads):
    """They are solved in the log domain, where torch's own sums depend on threads."""
    cost = 2 * randn(7, 5, 105, seed=0, dtype=F32)
    expected = results(cost, 1)
    cost[3, 0] += 1e3
    easy = torch.arange(7) != 3
    for x, y in zip(results(cost, 3), expected, strict=True):
        assert torch.equal(x[easy], y[easy])


def test_every_gradient_with_threads(threads):
    cost, u = 2 * randn(9, 4, 30, seed=0, dtype=F32), randn(9, 4, seed=1, dtype=F32)
    b = torch.rand(9, 30) + 0.1
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        leaves = [leaf(x) for x in (cost, b, u, 1 + torch.arange(9.0))]
        init = (leaves[2], torch.zeros(30))
        t = sinkhorn(leaves[0], b=leaves[1], init=init, temperature=leaves[3], backend="cpu")
        found.append(gradients(t.plan, leaves))
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


def test_threads_that_are_not_worth_it_stay_away(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(_native, "torch_threads", lambda process: pytest.fail("several threads"))
    torch.set_num_threads(4)
    mesh(torch.zeros(2, 3, 4), backend="cpu")
    with pytest.raises(pytest.fail.Exception, match="several threads"):
        mesh(torch.zeros(64, 5, 105), backend="cpu")


def test_fork(threads, tmp_path):
    """Threads of the parent do not live on in a child, which must not wait for them."""
    done = Script(Path(__file__).with_name("_fork.py"), tmp_path / "log", threads)
    assert done.wait() == 0, done.output
