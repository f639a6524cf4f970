"""One-to-one assignment against SciPy and against trying everything."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment
from torch._subclasses.fake_tensor import FakeTensorMode

from slotmesh.ops import _fused, assign
from slotmesh.ops.assignment import assign_batch

from ._reference import operators_of, randn

sizes = st.integers(1, 5)
seeds = st.integers(0, 10**6)
costs = st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda s: arrays(np.int64, s, elements=st.integers(-3, 3))
)


def total(cost, partner):
    return sum(float(cost[i, j]) for i, j in enumerate(partner.tolist()) if j >= 0)


def check_one_to_one(partner, m, n):
    matched = [j for j in partner.tolist() if j >= 0]
    assert len(matched) == len(set(matched)) == min(m, n)
    assert all(j < n for j in matched)


@given(m=sizes, n=sizes, seed=seeds, maximize=st.booleans())
def test_equals_scipy(m, n, seed, maximize):
    cost = randn(m, n, seed=seed)
    rows, columns = linear_sum_assignment(cost.numpy(), maximize=maximize)
    expected = np.full(m, -1)
    expected[rows] = columns
    actual = assign(cost, maximize=maximize)
    assert actual.dtype == torch.int64
    assert actual.tolist() == expected.tolist()


@given(cost=costs, maximize=st.booleans())
def test_no_permutation_is_better(cost, maximize):
    """Whole-number costs, so that ties are common."""
    m, n = cost.shape
    partner = assign(torch.from_numpy(cost).double(), maximize=maximize)
    check_one_to_one(partner, m, n)
    short, long = (cost, n) if m <= n else (cost.T, m)
    values = [
        sum(short[i, j] for i, j in enumerate(chosen))
        for chosen in itertools.permutations(range(long), len(short))
    ]
    assert total(cost, partner) == (max(values) if maximize else min(values))


@given(seed=seeds, maximize=st.booleans())
def test_masks_leave_elements_out(seed, maximize):
    cost = randn(3, 4, 5, seed=seed)
    slot_mask, input_mask = randn(3, 4, seed=seed + 1) > 0, randn(3, 5, seed=seed + 2) > 0
    slot_mask[:, 0] = input_mask[:, 0] = True
    garbage = torch.where(slot_mask[..., None] & input_mask[:, None], cost, torch.nan)
    partner = assign(garbage, slot_mask=slot_mask, input_mask=input_mask, maximize=maximize)
    for i in range(3):
        slots, inputs = slot_mask[i].nonzero()[:, 0], input_mask[i].nonzero()[:, 0]
        small = assign(cost[i][slots][:, inputs], maximize=maximize)
        expected = torch.where(small >= 0, inputs[small], -1)
        assert partner[i][slots].tolist() == expected.tolist()
        assert (partner[i][~slot_mask[i]] == -1).all()


def test_slots_left_over_are_minus_one():
    cost = torch.tensor([[5.0], [1.0], [3.0]])
    assert assign(cost).tolist() == [-1, 0, -1]
    assert assign(cost, maximize=True).tolist() == [0, -1, -1]


@pytest.mark.parametrize("batch", [(), (0,), (2,), (2, 1, 3)])
def test_batches(batch):
    cost = randn(*batch, 3, 4, seed=0)
    partner = assign(cost)
    assert partner.shape == (*batch, 3)
    for index in itertools.product(*map(range, batch)):
        assert torch.equal(partner[index], assign(cost[index]))


def test_works_inside_vmap():
    cost = randn(3, 4, 5, seed=0)
    slot_mask = torch.tensor([[True] * 4, [True, False, True, True], [False, True, False, True]])
    assert torch.equal(torch.vmap(assign)(cost), assign(cost))
    actual = torch.vmap(lambda mask: assign(cost[0], slot_mask=mask))(slot_mask)
    assert torch.equal(actual, assign(cost[0], slot_mask=slot_mask))


def test_operator_inside_vmap_over_any_dimension():
    cost, slots, inputs = (
        randn(6, 2, 4, 5, seed=0),
        randn(6, 2, 4, seed=1) < 1,
        randn(5, seed=2) < 1,
    )
    moved = torch.vmap(partial(assign_batch, maximize=False, backend="auto"), in_dims=(3, 1, None))
    actual = moved(cost.movedim(0, 3), slots.movedim(0, 1), inputs.expand(2, 5))
    expected = assign(cost, slot_mask=slots, input_mask=inputs)
    assert torch.equal(actual, expected)


def test_half_precision_and_gradients_are_no_obstacle():
    cost = randn(4, 4, seed=0, dtype=torch.bfloat16).requires_grad_()
    partner = assign(cost)
    assert torch.equal(partner, assign(cost.detach().double()))
    assert not partner.requires_grad


def test_chosen_solver(monkeypatch):
    """The kernel on a CUDA device where it fits, else C or SciPy; only by name on the CPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert operators_of(lambda: assign(randn(2, 3, 4, seed=0))) == ["assign"]
    with FakeTensorMode():  # a device that need not be there, whose values cannot be read
        small, large = (torch.empty(2, 128, n, device="cuda") for n in (1024, 1025))
        monkeypatch.setattr(_fused, "_HAS_TRITON", True)
        assert operators_of(lambda: assign(small)) == ["assign_small"]
        assert operators_of(lambda: assign(large)) == ["assign"]
        assert operators_of(lambda: assign(small, backend="scipy")) == ["assign"]
        monkeypatch.setattr(_fused, "_HAS_TRITON", False)
        assert operators_of(lambda: assign(small)) == ["assign"]
