"""Normalised RMSE against scipy's assignment."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from slotmesh.metrics import NormalisedRMSE, matched_squared_error, normalised_rmse


def sets(seed, *shape, sigma=1.0):
    rng = torch.Generator().manual_seed(seed)
    target = sigma * torch.randn(*shape, generator=rng)
    order = torch.randperm(shape[-2], generator=rng)
    noise = 0.5 * sigma * torch.randn(*shape, generator=rng)
    return target[..., order, :] + noise, target


@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), sigma=st.sampled_from([0.01, 1.0]))
def test_is_that_of_scipy(seed, n, sigma):
    predicted, target = sets(seed, 4, n, 3, sigma=sigma)
    squares = []
    for found, wanted in zip(predicted.double().numpy(), target.double().numpy(), strict=True):
        cost = cdist(found, wanted, "sqeuclidean")
        squares.append(cost[linear_sum_assignment(cost)].sum() / (n * 3))
    np.testing.assert_allclose(matched_squared_error(predicted, target).numpy(), squares)
    value = normalised_rmse(predicted, target, sigma=sigma)
    assert value.item() == pytest.approx(math.sqrt(np.mean(squares)) / sigma)


def test_errors_are_pooled_before_the_root():
    """Errors 0 and 1: the root of their mean, not the mean of their roots."""
    target = torch.zeros(2, 5, 4)
    predicted = torch.stack([target[0], target[0] + 2.0])
    assert normalised_rmse(predicted, target, sigma=2.0).item() == pytest.approx(math.sqrt(0.5))
    metric = NormalisedRMSE(sigma=2.0)
    metric.update(predicted[:1], target[:1])
    metric.update(predicted[1:], target[1:])
    assert metric.compute().item() == pytest.approx(math.sqrt(0.5))
    assert metric.per_image(predicted, target).tolist() == [0.0, 1.0]


def test_predicting_the_mean_gives_one():
    target = 0.1 * torch.randn(2000, 5, 32, generator=torch.Generator().manual_seed(0))
    value = normalised_rmse(torch.zeros_like(target), target, sigma=0.1)
    assert value.item() == pytest.approx(1.0, abs=0.01)


def test_sets_of_different_sizes_are_pooled_by_their_numbers():
    metric = NormalisedRMSE(sigma=1.0)
    metric.update(torch.ones(1, 3, 2), torch.zeros(1, 3, 2))
    metric.update(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))
    assert metric.compute().item() == pytest.approx(math.sqrt(6 / 8))


@given(seed=st.integers(0, 10**6))
def test_order_and_batches_do_not_matter(seed):
    predicted, target = sets(seed, 7, 5, 8)
    value = normalised_rmse(predicted, target, sigma=1.0).item()
    rng = torch.Generator().manual_seed(seed)
    images, slots = torch.randperm(7, generator=rng), torch.randperm(5, generator=rng)
    metric = NormalisedRMSE(sigma=1.0)
    for part in images.split(3):
        metric.update(predicted[part][:, slots], target[part])
    assert metric.compute().item() == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_prediction_shows(bad):
    predicted, target = sets(0, 3, 4, 2)
    predicted[1, 2, 0] = bad
    errors = matched_squared_error(predicted, target)
    assert errors.isfinite().tolist() == [True, False, True]
    metric = NormalisedRMSE(sigma=1.0)
    metric.update(predicted, target)
    assert not metric.compute().isfinite()


def test_bad_input():
    with pytest.raises(ValueError, match="expected the same"):
        matched_squared_error(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4))
    for make in (
        lambda: NormalisedRMSE(sigma=0.0),
        lambda: normalised_rmse(*sets(0, 1, 2, 3), sigma=-1.0),
    ):
        with pytest.raises(ValueError, match="sigma is"):
            make()
