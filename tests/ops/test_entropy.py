"""Entropy of plans against SciPy and closed forms."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from slotmesh.ops import EntropyObjective, SimilarityObjective, Transport, entropy, sinkhorn

from ._reference import close, generator, leaf, masses, plan_entropy, randn

shapes = st.tuples(st.integers(1, 5), st.integers(1, 5))
plans = shapes.flatmap(
    lambda s: arrays(np.float64, s, elements=st.one_of(st.just(0.0), st.floats(1e-6, 10.0)))
)


@given(plan=plans)
def test_equals_scipy(plan):
    expected = scipy.special.entr(plan).sum()
    close(entropy(torch.from_numpy(plan)), expected, 1e-12, 1e-12)
    if plan.sum():
        share = torch.from_numpy(plan / plan.sum())
        close(entropy(share), scipy.stats.entropy(plan.ravel()), 1e-12)


@given(plan=plans)
def test_normalized_is_one_minus_the_share_of_mutual_information(plan):
    actual = entropy(torch.from_numpy(plan), normalized=True)
    assert 0 <= actual <= 1
    if not plan.sum():
        assert actual == 0
        return
    p = plan / plan.sum()
    rows, columns = scipy.stats.entropy(p.sum(1)), scipy.stats.entropy(p.sum(0))
    if min(rows, columns) < 1e-3:  # nothing to decide, or hardly anything
        return
    information = rows + columns - scipy.stats.entropy(p.ravel())
    close(actual, 1 - information / min(rows, columns), 1e-9)


@given(plan=plans, scale=st.sampled_from([1e-9, 1e-3, 7.0, 1e9]))
def test_normalized_does_not_depend_on_the_mass(plan, scale):
    plan = torch.from_numpy(plan)
    marginals = [plan.sum(i) / max(plan.sum(), 1e-9) for i in (0, 1)]
    if min(x.square().sum() for x in marginals) > 0.999:
        return  # the marginals' own entropy is rounding
    close(entropy(scale * plan, normalized=True), entropy(plan, normalized=True), 1e-9)


@given(m=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_normalized_is_the_papers_for_doubly_stochastic_plans(m, seed):
    plan = sinkhorn(randn(m, m, seed=seed), n_iters=300).plan
    close(entropy(plan, normalized=True), entropy(plan) / (m * math.log(m)), 1e-9)


@given(m=st.integers(2, 6), n=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_normalized_is_one_for_independent_plans(m, n, seed):
    plan = masses(m, seed=seed, total=3.0)[:, None] * masses(n, seed=seed + 1, total=1.0)
    close(entropy(plan, normalized=True), 1.0, 1e-12)


@pytest.mark.parametrize(
    "plan",
    [
        torch.eye(4),
        torch.tensor([[0.3, 0.7, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]),  # each input to one slot
        torch.tensor([[0.3, 0.0], [0.7, 0.0], [0.0, 1.0]]),  # each slot from one input
        torch.ones(1, 5),
        torch.ones(5, 1),
        torch.ones(1, 1),
        torch.zeros(3, 4),
    ],
)
def test_normalized_is_zero_where_all_is_decided(plan):
    close(entropy(plan, normalized=True), 0.0, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_slot_with_mass_leaves_nothing_to_decide(dtype):
    """Its share of the mass is 1 up to rounding, and rounding is no entropy."""
    plan = torch.rand(200, 3, 500, dtype=dtype, generator=generator(0))
    plan[:, 1:] = 0
    assert not entropy(plan, normalized=True).any()
    assert not entropy(plan.mT, normalized=True).any()


def test_closed_forms():
    close(entropy(torch.full((2, 2), 0.5)), 2 * math.log(2), 1e-6)
    close(entropy(torch.full((3, 5), 1 / 5, dtype=torch.float64)), 3 * math.log(5), 1e-12)
    close(entropy(torch.eye(7)), 0.0, 0.0)
    batch = torch.stack([torch.eye(2), torch.full((2, 2), 0.5)])
    close(entropy(batch, normalized=True), torch.tensor([0.0, 1.0]), 1e-6)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    "plan",
    [
        torch.eye(3),
        torch.zeros(2, 3),
        torch.ones(1, 4),
        torch.tensor([[1.0, 0.0], [0.5, 0.0]]),
        torch.tensor([[0.7, 0.4, 0.2], [1e-25, 0.0, 1e-40]]),
    ],
)
def test_gradient_is_finite_with_zeros(plan, normalized):
    plan = leaf(plan)
    (gradient,) = torch.autograd.grad(entropy(plan, normalized=normalized), plan)
    assert gradient.isfinite().all()
    assert not gradient[plan == 0].any() or normalized


@pytest.mark.parametrize("normalized", [False, True])
def test_gradcheck(normalized):
    plan = leaf(randn(2, 3, 4, seed=0).softmax(-1))
    assert torch.autograd.gradcheck(lambda p: entropy(p, normalized=normalized), [plan])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    plan = randn(3, 4, seed=0).softmax(-1).to(dtype)
    for normalized in (False, True):
        actual = entropy(plan, normalized=normalized)
        assert actual.dtype == torch.float32
        assert torch.equal(actual, entropy(plan.float(), normalized=normalized))


def test_transport_entropy_is_that_of_its_plan():
    t = sinkhorn(randn(2, 3, 4, seed=0))
    assert isinstance(t, Transport)
    assert torch.equal(t.entropy(), entropy(t.plan))
    assert torch.equal(t.entropy(normalized=True), entropy(t.plan, normalized=True))


def test_works_inside_vmap_and_on_meta():
    plan = randn(3, 4, 5, seed=0).softmax(-1)
    close(torch.vmap(entropy)(plan), entropy(plan), 1e-14)
    assert entropy(plan.to("meta"), normalized=True).shape == (3,)


# Objectives


def test_entropy_objective_is_the_derivative():
    plan = leaf(randn(3, 4, seed=0).softmax(-1))
    close(
        EntropyObjective().derivative(plan), torch.autograd.grad(plan_entropy(plan), plan)[0], 1e-13
    )
    assert EntropyObjective().derivative(torch.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]


def test_similarity_objective_is_the_derivative():
    plan = leaf(randn(2, 3, 4, seed=0).softmax(-1))
    similarity, reference = randn(2, 3, 3, seed=1).softmax(-2), randn(2, 3, 4, seed=2).softmax(-1)
    value = plan_entropy(plan) + 1.5 * (similarity.mT @ plan - reference).square().sum()
    close(
        SimilarityObjective(similarity, reference, 1.5).derivative(plan),
        torch.autograd.grad(value, plan)[0],
        1e-13,
    )
