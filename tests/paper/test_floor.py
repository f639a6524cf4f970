"""The bound that normalised inputs put under Table 1, by other ways."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi

from paper.table1.floor import mean_floor, norm_floor


@given(st.integers(2, 400))
def test_the_closed_form_is_scipys_chi(dim: int) -> None:
    expected = ((1 + chi(dim - 1).var()) / dim) ** 0.5
    # A variance near 1/2 of numbers near dim: what float64 leaves of it.
    assert norm_floor(dim) == pytest.approx(expected, abs=1e-9)
    assert mean_floor(dim) < norm_floor(dim) <= 1


@pytest.mark.parametrize("dim", [4, 32])
def test_no_factor_of_a_normalised_vector_is_better(dim: int) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, dim, generator=rng, dtype=torch.float64)
    seen = torch.nn.functional.layer_norm(x, (dim,), eps=0.0)
    errors = [float((x - factor * seen).square().mean().sqrt()) for factor in (0.8, 0.9, 1.0)]
    best = (x * seen).sum() / seen.square().sum()
    least = float((x - best * seen).square().mean().sqrt())
    assert least == pytest.approx(norm_floor(dim), rel=5e-3)
    assert min(errors) >= least


@pytest.mark.parametrize("dim", [4, 32])
def test_no_function_of_a_normalised_vector_is_better(dim: int) -> None:
    """What is lost does not depend on what is kept: the best guess of it is a constant."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(200_000, dim, generator=rng, dtype=torch.float64)
    seen = torch.nn.functional.layer_norm(x, (dim,), eps=0.0)
    lost = torch.stack((x.mean(-1), (x - x.mean(-1, keepdim=True)).norm(dim=-1)), -1)
    features = torch.cat((seen, seen**2, seen**3, seen[:, :1] * seen, torch.ones_like(x[:, :1])), 1)
    fitted = features @ torch.linalg.lstsq(features, lost, driver="gelsd").solution
    explained = 1 - (lost - fitted).square().mean(0) / lost.var(0)
    assert explained.max() < 2e-3


def test_an_epsilon_lets_the_norm_of_small_vectors_through() -> None:
    """With it known, only the mean is lost."""
    sigma, dim = 0.01, 32
    rng = torch.Generator().manual_seed(2)
    x = sigma * torch.randn(100_000, dim, generator=rng, dtype=torch.float64)
    seen = torch.nn.functional.layer_norm(x, (dim,), eps=1e-5)
    size = seen.square().mean(-1, keepdim=True)
    undone = seen * (1e-5 / (1 - size)).sqrt()
    error = float((x - undone).square().mean().sqrt()) / sigma
    assert error == pytest.approx(mean_floor(dim), rel=5e-3)


def test_one_number_is_too_few() -> None:
    with pytest.raises(ValueError, match="dim is 1, expected at least 2"):
        norm_floor(1)
