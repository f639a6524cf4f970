"""The Hungarian loss against scipy, torch and finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from slotmesh.training.tasks.matching import match


def draw(seed: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(*shape, dtype=torch.float64, generator=rng) for _ in range(2))
    return x, 2 * y


@pytest.mark.parametrize("error", ["squared", "smooth_l1"])
@given(seed=st.integers(0, 10_000), k=st.integers(1, 7), dim=st.integers(1, 5))
def test_it_is_scipy_s_assignment(error: str, seed: int, k: int, dim: int) -> None:
    x, y = draw(seed, 3, k, dim)
    found = match(x, y, error)  # pyright: ignore[reportArgumentType]
    one = torch.nn.functional.mse_loss if error == "squared" else torch.nn.functional.smooth_l1_loss
    for i in range(3):
        costs = np.array([[float(one(x[i, a], y[i, b])) for b in range(k)] for a in range(k)])
        rows, columns = linear_sum_assignment(costs)
        # Of equally good matchings, solvers may choose different ones.
        partner = found.partner[i].tolist()
        assert sorted(partner) == list(range(k))
        assert costs[rows, partner].sum() == pytest.approx(costs[rows, columns].sum(), rel=1e-9)
        assert float(found.cost[i]) == pytest.approx(costs[rows, columns].mean(), rel=1e-12)


@given(seed=st.integers(0, 10_000))
def test_the_order_of_neither_side_matters(seed: int) -> None:
    x, y = draw(seed, 2, 5, 3)
    rng = torch.Generator().manual_seed(seed)
    a, b = (torch.randperm(5, generator=rng) for _ in range(2))
    torch.testing.assert_close(match(x[:, a], y[:, b]).cost, match(x, y).cost)


@pytest.mark.parametrize("error", ["squared", "smooth_l1"])
def test_gradient(error: str) -> None:
    x, y = draw(0, 2, 4, 3)
    x.requires_grad_()
    torch.autograd.gradcheck(lambda x: match(x, y, error).cost, x)  # pyright: ignore


def test_equal_sets_cost_nothing() -> None:
    x, _ = draw(0, 2, 6, 3)
    found = match(x, x.flip(1))
    assert torch.equal(found.cost, torch.zeros(2, dtype=torch.float64))
    assert found.partner.tolist() == [[5, 4, 3, 2, 1, 0]] * 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_numbers_that_are_none_give_a_loss_that_is_none() -> None:
    """The trainer finds it in the loss; an index of -1 would have ended the process."""
    x, y = (t.float().cuda() for t in draw(0, 3, 4, 2))
    x[1, 2] = float("nan")
    cost = match(x, y).cost
    assert cost.isnan().tolist() == [False, True, False]
