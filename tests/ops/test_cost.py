"""Pairwise costs against SciPy."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from slotmesh.ops import pairwise_cost

from ._reference import close, leaf, randn

SCIPY = {"l2": "euclidean", "sqeuclidean": "sqeuclidean", "cosine": "cosine"}
KINDS = ["l2", "sqeuclidean", "cosine", "dot"]


@given(
    m=st.integers(1, 5),
    n=st.integers(1, 5),
    d=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS),
)
def test_equals_scipy(m, n, d, seed, kind):
    queries, keys = randn(m, d, seed=seed), randn(n, d, seed=seed + 1)
    expected = -queries @ keys.T if kind == "dot" else cdist(queries, keys, SCIPY[kind])
    close(pairwise_cost(queries, keys, kind), expected, 1e-12)


def test_euclidean_distance_is_the_default():
    queries, keys = randn(2, 3, seed=0), randn(4, 3, seed=1)
    assert torch.equal(pairwise_cost(queries, keys), pairwise_cost(queries, keys, "l2"))
    close(pairwise_cost(queries, keys), cdist(queries, keys), 1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_broadcast(kind):
    queries, keys = randn(5, 1, 2, 3, seed=0), randn(4, 6, 3, seed=1)
    cost = pairwise_cost(queries, keys, kind)
    assert cost.shape == (5, 4, 2, 6)
    close(cost[3, 2], pairwise_cost(queries[3, 0], keys[2], kind), 1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind):
    queries, keys = leaf(randn(2, 3, 4, seed=0)), leaf(randn(2, 2, 4, seed=1))
    assert torch.autograd.gradcheck(lambda q, k: pairwise_cost(q, k, kind), [queries, keys])


@pytest.mark.parametrize("kind", ["l2", "sqeuclidean"])
def test_gradient_at_distance_zero_is_zero(kind):
    keys = leaf(randn(2, 3, seed=0))
    queries = leaf(keys)
    cost = pairwise_cost(queries, keys, kind)
    close(cost.diagonal(), torch.zeros(2), 0.0)
    for gradient in torch.autograd.grad(cost.diagonal().sum(), [queries, keys]):
        close(gradient, torch.zeros(2, 3), 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_zero_vectors_is_finite(kind):
    queries, keys = leaf(torch.zeros(2, 3)), leaf(torch.zeros(4, 3))
    cost = pairwise_cost(queries, keys, kind)
    assert cost.isfinite().all()
    for gradient in torch.autograd.grad(cost.sum(), [queries, keys]):
        assert gradient.isfinite().all()


def test_near_neighbours_keep_their_distance():
    """The expanded square |q|^2 - 2 q.k + |k|^2 would lose it: 1e6 has no digits left for 1e-3."""
    keys = 1000.0 + torch.zeros(30, 4)
    keys[1:, 0] += 2.0**-10
    cost = pairwise_cost(keys, keys)
    close(cost[0, 1:], torch.full((29,), 2.0**-10), 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(kind, dtype):
    queries, keys = randn(3, 16, seed=0, dtype=dtype), randn(4, 16, seed=1, dtype=dtype)
    cost = pairwise_cost(queries, keys, kind)
    assert cost.dtype == dtype
    assert torch.equal(cost, pairwise_cost(queries.float(), keys.float(), kind).to(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_nothing(kind):
    queries, keys = (randn(k, 8, seed=k, dtype=torch.float32) for k in (3, 4))
    expected = pairwise_cost(queries, keys, kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = pairwise_cost(queries, keys, kind)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_inside_torch_func_and_on_meta(kind):
    queries, keys = randn(3, 2, 4, seed=0), randn(3, 5, 4, seed=1)
    expected = pairwise_cost(queries, keys, kind)
    close(torch.vmap(lambda q, k: pairwise_cost(q, k, kind))(queries, keys), expected, 1e-14)
    gradient = torch.func.grad(lambda q: pairwise_cost(q, keys, kind).sum())(queries)
    tracked = leaf(queries)
    close(
        gradient, torch.autograd.grad(pairwise_cost(tracked, keys, kind).sum(), tracked)[0], 1e-14
    )
    assert pairwise_cost(queries.to("meta"), keys.to("meta"), kind).shape == (3, 2, 5)
