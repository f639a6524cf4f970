"""The assignment kernel against SciPy and against trying everything."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from slotmesh.ops import assign, set_value_checks
from slotmesh.ops.assignment import assign_small

from ._reference import randn

SIZES = [(1, 1), (1, 5), (5, 1), (2, 3), (4, 4), (7, 5), (9, 16), (16, 16), (17, 40), (40, 17)]


def check_best(cost, partner, maximize=False, slots=None, inputs=None):
    """One to one between real elements, as many as there can be, for SciPy's total."""
    cost, partner = cost.cpu().double().numpy(), partner.cpu().numpy()
    rows = np.arange(len(cost)) if slots is None else np.flatnonzero(slots.cpu())
    columns = np.arange(cost.shape[1]) if inputs is None else np.flatnonzero(inputs.cpu())
    real = cost[np.ix_(rows, columns)]
    chosen = linear_sum_assignment(real, maximize=maximize)
    matched = np.flatnonzero(partner >= 0)
    assert len(matched) == len(set(partner[matched])) == min(len(rows), len(columns))
    assert set(matched) <= set(rows)
    assert set(partner[matched]) <= set(columns)
    assert (partner[partner < 0] == -1).all()
    total = cost[matched, partner[matched]].sum()
    np.testing.assert_allclose(total, real[chosen].sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_equals_scipy(device, m, n, maximize):
    cost = randn(3, m, n, seed=m * n, dtype=torch.float32).to(device)
    partner = assign(cost, maximize=maximize, backend="triton")
    assert partner.dtype == torch.int64
    assert partner.device == cost.device
    for c, p in zip(cost, partner, strict=True):
        check_best(c, p, maximize)


@pytest.mark.parametrize(("m", "n"), [(3, 3), (2, 4), (5, 3), (6, 6)])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_ties(device, m, n, levels):
    random = torch.Generator().manual_seed(m + n)
    cost = torch.randint(levels, (4, m, n), generator=random).double().to(device)
    partner = assign(cost, backend="triton")
    for c, p in zip(cost, partner, strict=True):
        check_best(c, p)
    assert torch.equal(partner, assign(cost, backend="triton"))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_costs_of_all_sizes(device, scale):
    """Products such as the worst case for the Hungarian method, and eight orders of magnitude."""
    steps = torch.arange(1.0, 9.0, dtype=torch.float64)
    uneven = torch.exp(9 * randn(8, 8, seed=0))
    for cost in (steps[:, None] * steps, -steps[:, None] * steps, uneven, uneven - 1e3):
        cost = (scale * cost).to(device)
        check_best(cost / scale, assign(cost, backend="triton"))


@pytest.mark.parametrize("maximize", [False, True])
def test_masks_leave_elements_out(device, maximize):
    cost = randn(8, 5, 6, seed=0)
    slots, inputs = randn(8, 5, seed=1) > 0, randn(8, 6, seed=2) > 0
    slots[:, 0] = inputs[:, 3] = True
    cost = torch.where(slots[..., None] & inputs[:, None], cost, torch.nan)
    args = [x.to(device) for x in (cost, slots, inputs)]
    partner = assign(
        args[0], slot_mask=args[1], input_mask=args[2], maximize=maximize, backend="triton"
    )
    for c, p, s, i in zip(cost, partner, slots, inputs, strict=True):
        check_best(c, p, maximize, s, i)


@pytest.fixture
def unchecked():
    """Values are not looked at, as on a GPU."""
    before = set_value_checks("never")
    yield
    set_value_checks(before)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_costs_that_are_not_finite_match_nothing(device, unchecked, bad):
    cost = randn(2, 3, 4, seed=0)
    cost[0, 1, 2] = bad
    partner = assign(cost.to(device), backend="triton")
    assert partner[0].tolist() == [-1] * 3
    check_best(cost[1], partner[1])


def test_batches_broadcast_and_empty(device):
    cost = randn(2, 1, 3, 4, seed=0).to(device)
    mask = torch.tensor([[True, True, True], [True, False, True]], device=device)
    partner = assign(cost, slot_mask=mask, backend="triton")
    assert partner.shape == (2, 2, 3)
    for i, j in itertools.product(range(2), range(2)):
        assert torch.equal(partner[i, j], assign(cost[i, 0], slot_mask=mask[j], backend="triton"))
    assert assign(cost[:0], backend="triton").shape == (0, 1, 3)


def test_layout_and_half_precision(device):
    cost = randn(2, 4, 4, seed=1, dtype=torch.bfloat16).to(device)
    partner = assign(cost.mT, backend="triton")
    assert torch.equal(partner, assign(cost.mT.double().contiguous(), backend="triton"))
    assert torch.equal(partner.cpu(), assign(cost.mT.cpu(), backend="scipy"))


def test_inside_vmap(device):
    cost = randn(2, 3, 4, 5, seed=0).to(device)
    partner = torch.vmap(lambda c: assign(c, backend="triton"), in_dims=1)(cost)
    assert torch.equal(partner, assign(cost.movedim(1, 0), backend="triton"))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_operator_is_well_formed(device):
    cost = randn(2, 3, 4, seed=0).to(device)
    masks = [torch.ones(2, size, dtype=torch.bool, device=device) for size in (3, 4)]
    torch.library.opcheck(assign_small, (cost, *masks, False))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_as_one_graph(device):
    cost = randn(2, 3, 4, seed=0).to(device)

    def run(cost):
        return assign(cost.sin(), backend="triton") + 1

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(cost), run(cost))


def test_what_the_kernel_cannot_do(device):
    cost = torch.zeros(129, 130, device=device)
    with pytest.raises(
        ValueError, match=r"assign: backend is 'triton'.*129 x 130.*128 x 1024.*'scipy'"
    ):
        assign(cost, backend="triton")
    assert assign(cost).tolist() == assign(cost, backend="scipy").tolist()
    with pytest.raises(ValueError, match="assign: backend is 'cuda', expected one of 'auto'"):
        assign(cost, backend="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_the_kernel_is_the_default_on_a_gpu_and_waits_for_nothing(no_waiting):
    cost = randn(4, 5, 6, seed=0).cuda()
    mask = torch.ones(4, 6, dtype=torch.bool, device="cuda")
    assign(cost, input_mask=mask)  # compiles
    with no_waiting():
        partner = assign(cost, input_mask=mask)
    check_best(cost[0], partner[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = assign(cost, input_mask=mask)
    cost.neg_()
    graph.replay()
    check_best(cost[0], captured[0])
    # SciPy comes by way of the CPU, which waits.
    for big, backend in ((torch.zeros(129, 130, device="cuda"), "auto"), (cost, "scipy")):
        with no_waiting(), pytest.raises(RuntimeError, match="synchronizing"):
            assign(big, backend=backend)


@pytest.mark.parametrize(("m", "n"), [(128, 1024), (1024, 100), (20, 100), (128, 128)])
def test_larger_matrices(device, m, n):
    if device == "cpu":
        m, n = m // 4, n // 4  # an interpreter has its time
    cost = randn(2, m, n, seed=m + n, dtype=torch.float32).to(device)
    inputs = randn(2, n, seed=1).to(device) > -1.0
    for c, p in zip(cost, assign(cost, backend="triton"), strict=True):
        check_best(c, p)
    partner = assign(cost, input_mask=inputs, backend="triton")
    for c, p, mask in zip(cost, partner, inputs, strict=True):
        check_best(c, p, inputs=mask)
