"""The kernel of Euclidean distances against SciPy and torch, values and every gradient."""

import pytest
import torch
from scipy.spatial.distance import cdist

from slotmesh.ops import _distance, pairwise_cost
from slotmesh.ops._distance import distance_op, distances

from ._kernels import GRADIENTS, VALUES, near
from ._reference import randn

SHAPES = [(1, 1, 1, 1), (2, 3, 33, 7), (1, 6, 1030, 64), (1, 19, 70, 100), (2, 2, 17, 200)]


def leaves(batch: int, m: int, n: int, d: int, dtype: torch.dtype = torch.float32):
    return randn(batch, m, d, seed=1, dtype=dtype), randn(batch, n, d, seed=2, dtype=dtype)


@pytest.mark.parametrize("squared", [False, True], ids=["l2", "squared"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(device, shape, squared):
    queries, keys = leaves(*shape)
    weight = randn(*shape[:3], seed=3)
    name = "sqeuclidean" if squared else "euclidean"
    pairs = zip(queries, keys, strict=True)
    expected = torch.stack([torch.tensor(cdist(q, k, name)) for q, k in pairs])
    q, k = (x.to(device).requires_grad_() for x in (queries, keys))
    cost = distances(q, k, squared)
    near(cost, expected, VALUES, "cost")
    found = torch.autograd.grad(cost, [q, k], weight.to(device, torch.float32))
    exact = [x.double().requires_grad_() for x in (queries, keys)]
    truth = pairwise_cost(*exact, "sqeuclidean" if squared else "l2")
    wanted = torch.autograd.grad(truth, exact, weight)
    for name, actual, expected in zip("qk", found, wanted, strict=True):
        near(actual, expected, GRADIENTS, name)


def test_nearly_equal_vectors(device):
    base = randn(1, 1, 64, seed=0, dtype=torch.float32)
    keys = base + 1e-4 * randn(1, 50, 64, seed=1, dtype=torch.float32)
    expected = cdist(base[0].double(), keys[0].double())
    near(distances(base.to(device), keys.to(device), False)[0], torch.tensor(expected), 1e-6, "c")


def test_gradients_of_near_neighbours(device):
    """Far from zero, and with keys that are a hundred times nearer to a query than queries are."""
    queries = 10 + randn(1, 4, 64, seed=0, dtype=torch.float32)
    keys = queries[:, [0, 1, 2, 3] * 10] + 1e-2 * randn(1, 40, 64, seed=1, dtype=torch.float32)
    weight = randn(1, 4, 40, seed=3)
    q, k = (x.to(device).requires_grad_() for x in (queries, keys))
    cost = distances(q, k, False)
    found = torch.autograd.grad(cost, [q, k], weight.to(device, torch.float32))
    exact = [x.double().requires_grad_() for x in (queries, keys)]
    wanted = torch.autograd.grad(pairwise_cost(*exact), exact, weight)
    for name, actual, expected in zip("qk", found, wanted, strict=True):
        near(actual, expected, GRADIENTS, name)


@pytest.mark.parametrize("m", [4, 19])
def test_gradients_of_bfloat16_are_summed_in_float32(device, m):
    """Of keys that are as near to a query as bfloat16 can be, far from zero."""
    from slotmesh.ops._triton import distance

    queries = (10 + randn(2, m, 40, seed=0)).bfloat16()
    pick = torch.arange(70) % m
    steps = torch.randint(0, 2, (2, 70, 40), generator=torch.Generator().manual_seed(1))
    # A step of one, in the last place of a number between 8 and 16.
    keys = queries[:, pick] + (steps * 2.0**-4).bfloat16()
    weight = randn(2, m, 70, seed=3)
    exact = [x.double().requires_grad_() for x in (queries, keys)]
    truth = pairwise_cost(*exact)
    wanted = torch.autograd.grad(truth, exact, weight)
    by_queries = torch.full((2, m, 40), torch.nan, device=device)
    by_keys = torch.full((2, 70, 40), torch.nan, device=device)
    inputs = (queries, keys, truth.detach().float(), weight.float())
    distance.backward(*(x.to(device) for x in inputs), by_queries, by_keys, False)
    for name, actual, expected in zip("qk", (by_queries, by_keys), wanted, strict=True):
        near(actual, expected, GRADIENTS, name)


def test_gradient_at_distance_zero_is_zero(device):
    keys = randn(2, 5, 8, seed=0, dtype=torch.float32).to(device).requires_grad_()
    queries = keys.detach().clone().requires_grad_()
    cost = distances(queries, keys, False).diagonal(dim1=-2, dim2=-1)
    assert (cost == 0).all()
    for gradient in torch.autograd.grad(cost.sum(), [queries, keys]):
        assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(device, dtype):
    queries, keys = leaves(2, 3, 40, 16, dtype)
    expected = torch.cdist(queries.double(), keys.double())
    q, k = (x.to(device).requires_grad_() for x in (queries, keys))
    cost = distances(q, k, False)
    assert cost.dtype == torch.float32
    near(cost, expected, VALUES, "cost")
    weight = randn(2, 3, 40, seed=3)
    found = torch.autograd.grad(cost, [q, k], weight.to(device, torch.float32))
    exact = [x.double().requires_grad_() for x in (queries, keys)]
    wanted = torch.autograd.grad(torch.cdist(*exact), exact, weight)
    for name, actual, expected in zip("qk", found, wanted, strict=True):
        assert actual.dtype == dtype
        # No worse than what rounding the exact gradient to that type loses.
        near(actual, expected.to(dtype).double(), torch.finfo(dtype).eps, name)


def test_batches_broadcast_and_transposed_keys(device):
    queries = randn(5, 1, 2, 8, seed=0, dtype=torch.float32)
    keys = randn(4, 8, 6, seed=1, dtype=torch.float32).mT
    expected = torch.cdist(queries.double(), keys.double())
    near(distances(queries.to(device), keys.to(device), False), expected, VALUES, "cost")


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5)], ids=str)
def test_nothing(device, shape):
    queries, keys = (x.to(device).requires_grad_() for x in leaves(*shape))
    cost = distances(queries, keys, False)
    assert cost.shape == shape[:3]
    by_q, by_k = torch.autograd.grad(cost.sum(), [queries, keys])
    assert by_q.shape == queries.shape
    assert by_k.shape == keys.shape
    assert not torch.cat((by_q.flatten(), by_k.flatten())).any()


def test_operator_is_well_formed(device):
    queries, keys = (x.to(device).requires_grad_() for x in leaves(2, 3, 20, 8))
    torch.library.opcheck(distance_op, (queries, keys, False))


def test_the_cpu_has_its_own():
    queries, keys = leaves(1, 2, 3, 4)
    assert not _distance.use_distance(queries, keys)


@pytest.mark.gpu
def test_the_gpu_uses_the_kernel(monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    queries, keys = (x.cuda() for x in leaves(2, 3, 20, 8))
    expected = torch.cdist(queries.cpu().double(), keys.cpu().double())
    monkeypatch.setattr(torch, "cdist", None)
    near(pairwise_cost(queries, keys), expected, VALUES, "cost")
