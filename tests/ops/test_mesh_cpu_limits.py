"""The CPU's path by scalings: what it leaves to the log domain, and what must not disturb it."""

import importlib

import pytest
import torch

from slotmesh.ops import _blocked as blocked
from slotmesh.ops import _scaling as scaling
from slotmesh.ops import mesh
from slotmesh.ops.sinkhorn.naive import solve

from ._reference import close, generator, gradients, leaf, masses, randn

cpu = importlib.import_module("slotmesh.ops.sinkhorn.cpu")

F32 = torch.float32


def test_hard_elements_alone_are_solved_in_the_log_domain(monkeypatch):
    cost = randn(5, 4, 9, seed=0, dtype=F32)
    cost[1, 2] += 100
    cost[3, 0] -= 1e5
    noise = 0.1 * randn(5, 4, 9, seed=1, dtype=F32)
    easy = mesh(cost[::2], noise=noise[::2], backend="cpu")
    solved = []

    def spy(task, *args):
        solved.append(task.cost.shape[0])
        return solve(task, *args)

    monkeypatch.setattr(cpu, "solve", spy)
    tracked = leaf(cost)
    t = mesh(tracked, noise=noise, backend="cpu")
    assert solved == [2]
    expected = mesh(cost[1::2], noise=noise[1::2], backend="torch")
    for x, y, z in zip(t, easy, expected, strict=True):
        assert torch.equal(x[::2], y)
        assert torch.equal(x[1::2], z)
    gradients(t.plan, [tracked])
    assert solved == [2, 2]


@pytest.mark.parametrize("kind", ["slots", "inputs", "mass"])
def test_padding_is_not_hard(monkeypatch, kind):
    """Zeros and what is made of them keep away from the log domain."""
    cost, noise = (randn(2, 4, 9, seed=s, dtype=F32) for s in (0, 1))
    options = {
        "slots": {"slot_mask": torch.tensor([True, False, True, True])},
        "inputs": {"input_mask": torch.arange(9) < 7},
        "mass": {"b": masses(2, 9, seed=0, total=4.0, dtype=F32) * (torch.arange(9) > 2)},
    }[kind]
    monkeypatch.setattr(cpu, "solve", None)
    tracked = leaf(cost)
    t = mesh(tracked, noise=noise, backend="cpu", **options)
    assert t.plan.isfinite().all()
    assert gradients(t.plan, [tracked])[0].isfinite().all()


def test_hopeless_blocks_are_given_up_at_once(monkeypatch):
    cost = randn(4, 3, 9, seed=0, dtype=F32)
    cost[:, 0] += 300
    count = []
    iterate = scaling.Scaling.iterate
    monkeypatch.setattr(
        scaling.Scaling, "iterate", lambda self: (count.append(1), iterate(self))[1]
    )
    t = mesh(cost, noise=0.0, backend="cpu")
    assert len(count) == 1
    close(t.plan, mesh(cost, noise=0.0, backend="torch").plan, 0.0)


def test_underflow_is_kept_out():
    """Numbers below the normal ones would take a hundred times as long."""
    cost = 200 * torch.rand(2, 5, 40, generator=generator(0))
    a, b = torch.ones(2, 5), torch.full((2, 40), 1 / 8)
    _, block = next(blocked.blocks(cost, a, b, None, 5))
    block.absorb(cost, 1.0, torch.zeros(2, 5, 1))
    assert (block.kernel >= 1e-30).all()


# Independence


def both_ways(cost, noise, **options):
    tracked = leaf(cost)
    t = mesh(tracked, noise=noise, backend="cpu", **options)
    return t.plan, t.u, t.v, t.cost, *gradients(t.plan, [tracked])


@pytest.mark.parametrize(("m", "n"), [(5, 105), (11, 1024), (3, 7), (11, 4096)])
@pytest.mark.parametrize("hard", [False, True])
def test_partners_and_blocks_change_no_bit(monkeypatch, m, n, hard):
    cost, noise = (randn(5, m, n, seed=s, dtype=F32) for s in (0, 1))
    weights = randn(5, m, n, seed=104729, dtype=F32)
    if hard:
        cost[1, 0] += 1e3

    def both(rows):
        tracked = leaf(cost[rows])
        t = mesh(tracked, noise=1e-2 * noise[rows], n_steps=2, backend="cpu")
        (gradient,) = torch.autograd.grad(t.plan, tracked, weights[rows])
        return t.plan, t.u, t.v, t.cost, gradient

    together = both(slice(5))
    for rows in (slice(2, 3), slice(2, 5), slice(1, 3)):
        for whole, part in zip(together, both(rows), strict=True):
            assert torch.equal(whole[rows], part)
    monkeypatch.setattr(blocked, "BLOCK", 2 * m * n)
    for x, y in zip(together, both(slice(5)), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(("batch", "m", "n"), [(1, 6, 4096), (3, 11, 4096), (1, 11, 8192)])
def test_threads_change_no_bit(batch, m, n):
    cost, noise = (randn(batch, m, n, seed=s, dtype=F32) for s in (0, 1))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(both_ways(cost, 1e-2 * noise, n_steps=2))
    finally:
        torch.set_num_threads(before)
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("m", [2, 3, 5, 7, 11, 40])
@pytest.mark.parametrize("n", [3, 50, 105])
def test_equal_slots_stay_equal_without_noise(m, n):
    """A sum that is rounded otherwise for one slot would grow to a decision."""
    cost = randn(2, 1, n, seed=0, dtype=F32).expand(2, m, n)
    plan, u, _, changed, gradient = both_ways(cost, torch.zeros(1, 1))
    for x in (plan, u[..., None], changed):
        assert torch.equal(x, x[:, :1].expand_as(x))
    close(gradient.sum(-2), torch.zeros(2, n), 1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_one_slot_has_nothing_to_decide(masked):
    """Terms cancel there to no more than rounding, which is not to be followed."""
    cost, b = 3 * randn(50, 3, 30, seed=0, dtype=F32), masses(50, 30, seed=1, total=1.0, dtype=F32)
    mask = torch.tensor([False, True, False])
    given, options = (cost, {"slot_mask": mask}) if masked else (cost[:, 1:2], {})
    t = mesh(given, b=b, noise=0.0, lr=50.0, temperature=0.5, backend="cpu", **options)
    changed = t.cost[:, mask] if masked else t.cost
    assert torch.equal(changed, cost[:, 1:2])


@pytest.mark.parametrize("masked", [False, True])
def test_one_input_has_nothing_to_decide(masked):
    cost, a = 3 * randn(50, 5, 4, seed=0, dtype=F32), masses(50, 5, seed=1, total=1.0, dtype=F32)
    mask = torch.tensor([False, False, True, False])
    given, options = (cost, {"input_mask": mask}) if masked else (cost[..., 2:3], {})
    t = mesh(given, a, noise=0.0, lr=50.0, backend="cpu", **options)
    changed = t.cost[..., mask] if masked else t.cost
    assert torch.equal(changed, cost[..., 2:3])


def test_a_cost_of_zeros_stays():
    zeros = torch.zeros(2, 7, 50)
    assert torch.equal(mesh(zeros, noise=0.0, backend="cpu").cost, zeros)


def test_products_rounded_to_bfloat16_are_not_used(monkeypatch):
    cost, noise = (randn(4, 11, 600, seed=s, dtype=F32) for s in (0, 1))
    expected = both_ways(cost, 0.1 * noise)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        monkeypatch.setattr(torch, "bmm", None)
        found = both_ways(cost, 0.1 * noise)
    finally:
        torch.set_float32_matmul_precision(before)
    for x, y in zip(found, expected, strict=True):
        close(x, y, 1e-5, 1e-4)
