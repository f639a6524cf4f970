"""Random objects: Gaussian numbers that are the same everywhere, among zeros."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from slotmesh.worlds import RandomObjects
from slotmesh.worlds._normal import log, normal, quantile


def test_quantile_is_that_of_the_normal_distribution() -> None:
    middle = np.linspace(0.001, 0.999, 20_001)
    tail = 10.0 ** -np.linspace(1, 15.9, 5_001)
    for p in (middle, tail, 1 - tail[tail > 1e-10]):
        expected = special.ndtri(p)
        found = quantile(torch.from_numpy(p)).numpy()
        np.testing.assert_allclose(found, expected, rtol=5e-15, atol=1e-15)


def test_log_is_the_logarithm() -> None:
    x = np.concatenate((np.linspace(1e-3, 0.99, 10_001), 2.0 ** -np.arange(1, 60)))
    np.testing.assert_allclose(log(torch.from_numpy(x)).numpy(), np.log(x), rtol=1e-15)


def test_numbers_are_gaussian() -> None:
    numbers = normal(0, torch.arange(1000), "g", (100,)).flatten().numpy()
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert abs(numbers.mean()) < 5 / math.sqrt(len(numbers))
    # Neither of two neighbouring numbers says anything about the other.
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / math.sqrt(len(numbers))


@pytest.mark.parametrize("sigma", [1.0, 0.1, 0.01])
def test_objects_come_first_and_zeros_after_them(sigma: float) -> None:
    sample = RandomObjects(sigma=sigma).sample(range(500))
    assert sample.inputs.shape == (500, 105, 32)
    assert sample.inputs.dtype == torch.float32
    assert torch.equal(sample.inputs[:, :5], sample.targets)
    assert not sample.inputs[:, 5:].any()
    scaled = sample.targets.double().flatten().numpy() / sigma
    assert stats.kstest(scaled, "norm").pvalue > 1e-3


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=5), st.integers(-5, 2**65))
def test_a_sample_does_not_depend_on_its_batch(index: list[int], seed: int) -> None:
    world = RandomObjects(seed=seed, n_objects=2, n_background=1, dim=3)
    together = world.sample(index)
    for i, number in enumerate(index):
        assert torch.equal(together.inputs[i], world.sample([number]).inputs[0])
    assert together.index.tolist() == index


def test_batches_follow_one_another() -> None:
    world = RandomObjects(dim=4)
    batches = world.batches(3, start=2)
    next(batches)
    assert torch.equal(next(batches).targets, world.sample(range(5, 8)).targets)


def test_bad_settings_are_told() -> None:
    with pytest.raises(ValueError, match="sigma is 0"):
        RandomObjects(sigma=0)
    with pytest.raises(ValueError, match="n_objects is 0"):
        RandomObjects(n_objects=0)
    with pytest.raises(ValueError, match="at least one whole number"):
        RandomObjects().sample([])
    with pytest.raises(ValueError, match="at least 0"):
        RandomObjects().sample([-1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_makes_the_same_bits() -> None:
    on_gpu = RandomObjects(seed=3, sigma=0.1, device="cuda").sample(range(4096)).to("cpu")
    assert torch.equal(on_gpu.inputs, RandomObjects(seed=3, sigma=0.1).sample(range(4096)).inputs)
