"""The CPU's path, in C: what it leaves to the log domain, and what must not disturb it."""

import importlib

import pytest
import torch

from slotmesh.ops import mesh, set_value_checks
from slotmesh.ops._naive import solve

from ._compiled import needs_c
from ._reference import close, gradients, leaf, masses, randn

cpu = importlib.import_module("slotmesh.ops._cpu")

pytestmark = needs_c

F32 = torch.float32


def test_hard_elements_alone_are_solved_in_the_log_domain(monkeypatch):
    cost = randn(5, 4, 9, seed=0, dtype=F32)
    cost[1, 2] += 100
    cost[3, 0] -= 1e5
    noise = 0.1 * randn(5, 4, 9, seed=1, dtype=F32)
    easy = mesh(cost[::2], lr=5.0, noise=noise[::2], backend="cpu")
    solved = []

    def spy(task, *args):
        solved.append(task.cost.shape[0])
        return solve(task, *args)

    monkeypatch.setattr(cpu, "solve", spy)
    tracked = leaf(cost)
    t = mesh(tracked, lr=5.0, noise=noise, backend="cpu")
    assert solved == [2]
    expected = mesh(cost[1::2], lr=5.0, noise=noise[1::2], backend="torch")
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
    t = mesh(tracked, lr=5.0, noise=noise, backend="cpu", **options)
    assert t.plan.isfinite().all()
    assert gradients(t.plan, [tracked])[0].isfinite().all()


def test_nan_stays_with_its_element():
    cost, noise = (randn(3, 4, 40, seed=s, dtype=F32) for s in (0, 1))
    expected = mesh(cost, noise=noise, backend="cpu")
    cost[1, 2, 3] = torch.nan
    before = set_value_checks("never")
    try:
        t = mesh(cost, noise=noise, backend="cpu")
    finally:
        set_value_checks(before)
    assert t.plan[1].isnan().all()
    for x, y in zip(t, expected, strict=True):
        assert torch.equal(x[::2], y[::2])


# Independence


def both_ways(cost, noise, **options):
    tracked = leaf(cost)
    t = mesh(tracked, lr=5.0, noise=noise, backend="cpu", **options)
    return t.plan, t.u, t.v, t.cost, *gradients(t.plan, [tracked])


@pytest.mark.parametrize(("m", "n"), [(5, 105), (11, 1024), (3, 7), (11, 4096)])
@pytest.mark.parametrize("hard", [False, True])
def test_partners_change_no_bit(m, n, hard):
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
