"""The kernel for exact transport against POT and against its own dual."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotmesh import SlotAttention
from slotmesh.nn import EMD
from slotmesh.ops import emd, set_value_checks
from slotmesh.ops.emd.triton import emd_small
from slotmesh.ops.problem import marginal_error

from ._reference import close, randn

SIZES = [(1, 1), (1, 7), (4, 1), (3, 5), (5, 33), (2, 40), (9, 12), (17, 20)]
F32, F64 = torch.float32, torch.float64


@pytest.fixture
def device(device, monkeypatch):
    """In the interpreter with a quick start, which leaves the paths more to do."""
    if device == "cpu":
        import triton.runtime.interpreter as interpreter

        from slotmesh.ops._triton import solve

        monkeypatch.setattr(solve, "TEMPERATURES", 1)
        # Its own loop over all entries takes longer than the rest of a kernel.
        monkeypatch.setattr(interpreter.ReduceOps, "generic_reduce", halve)
    return device


def halve(reduction, inputs):
    """Reduce by halves, as a GPU does; sizes are powers of two."""
    parts = [np.moveaxis(x.handle.data, reduction.axis, 0) for x in inputs]
    types = [x.dtype for x in inputs]
    while len(parts[0]) > 1:
        half = len(parts[0]) // 2
        pair = [p[:half] for p in parts] + [p[half:] for p in parts]
        both = map(reduction.to_tensor, pair, types * 2)
        parts = [x.handle.data for x in reduction.combine_fn.fn(*both)]
    return [reduction.to_tensor(p[0], t) for p, t in zip(parts, types, strict=True)]


def exact(t):
    """In float64 on the CPU, where a comparison is to be exact."""
    return t.detach().cpu().double()


def check(cost, a=None, b=None, device="cpu", atol=1e-9, **options):
    """Feasible, a vertex, proved optimal by its own duals, at POT's cost; returns the transport."""
    args = [None if x is None else x.to(device) for x in (cost, a, b)]
    moved = {k: x.to(device) for k, x in options.items()}
    t = emd(*args, **moved, backend="triton")
    truth = emd(cost.double(), a, b, **options, backend="pot")
    assert t.plan.device == args[0].device
    assert t.plan.dtype == cost.dtype
    assert t.converged.all()
    assert (t.n_iters == 0).all()
    assert (t.marginal_error <= 1e-12).all()
    plan, u, v = exact(t.plan), exact(t.u), exact(t.v)
    assert (plan >= 0).all()
    entries = plan > 0
    used = entries.any(-1).sum(-1) + entries.any(-2).sum(-1)
    assert (entries.sum((-2, -1)) <= used - 1).all()
    real = truth.cost.isfinite()
    clean = torch.where(real, cost.double(), 0.0)
    if cost.dtype == F64:
        close(plan.sum(-1), truth.plan.sum(-1), atol)
        close(plan.sum(-2), truth.plan.sum(-2), atol)
        scale = clean.abs().amax((-2, -1), keepdim=True).clamp(min=1e-300)
        slack = torch.where(real, clean - u[..., None] - v[..., None, :], 0.0) / scale
        assert slack.min() > -1e-12
        assert (slack * plan).abs().max() < 1e-12 * max(1.0, float(plan.max()))
    got, best = (clean * plan).sum((-2, -1)), (clean * truth.plan).sum((-2, -1))
    size = (clean.abs() * truth.plan).sum((-2, -1)).clamp(min=1e-300)
    assert ((got - best).abs() <= 1e-6 * size).all(), f"{got} is not {best}"
    return t


def random_problem(*shape, seed, dtype=F64, peaked=1.0):
    *batch, m, n = shape
    cost = randn(*shape, seed=seed, dtype=dtype)
    a = m * (peaked * randn(*batch, m, seed=seed + 1, dtype=dtype)).softmax(-1)
    b = m * (peaked * randn(*batch, n, seed=seed + 2, dtype=dtype)).softmax(-1)
    return cost, a, b


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_random_problems(device, m, n):
    check(*random_problem(2 if m < 5 else 1, m, n, seed=m * n), device)


@pytest.fixture
def scanned(device, monkeypatch):
    """Pairs of slots that were scanned again; None on a GPU, where nobody can watch."""
    if device == "cuda":
        return None
    from slotmesh.ops._triton import emd_moves

    pairs, scan_pair = [], emd_moves.scan_pair

    def spy(i, k, data, C):
        pairs.append((int(i), int(k)))
        return scan_pair(i, k, data, C)

    monkeypatch.setattr(emd_moves, "scan_pair", spy)
    return pairs


def test_costs_of_slots_that_are_not_there_are_not_read(device, scanned):
    if scanned is None:
        pytest.skip("only the interpreter can be watched")
    check(*random_problem(1, 17, 20, seed=340), device)
    assert scanned
    assert max(k for _, k in scanned) < 17


@pytest.mark.parametrize(("seed", "tied"), [(27, False), (1, True)])
def test_the_last_of_32_slots(device, scanned, monkeypatch, seed, tied):
    """Its bit is the sign of an integer; without a start it and its neighbour have most inputs."""
    from slotmesh.ops._triton import solve

    run = solve.emd
    monkeypatch.setattr(solve, "emd", lambda *args: run(*args[:-1], 100))
    monkeypatch.setattr(solve, "TEMPERATURES", 0)
    cost, a, b = random_problem(32, 24, seed=seed, peaked=0.5)
    cost[30:] -= 1.0
    a[2:28] = 0
    if tied:
        cost = cost.round()
    check(cost, a, b * (a.sum() / b.sum()), device)
    if scanned is not None:
        assert {31} < {k for _, k in scanned}
        # Tied inputs leave it together, which scans all pairs at once.
        assert tied or 31 in {i for i, _ in scanned}


@pytest.mark.parametrize("peaked", [0.0, 3.0, 10.0])
def test_uniform_and_peaked_masses(device, peaked):
    check(*random_problem(5, 30, seed=1, peaked=peaked), device)


def test_default_masses(device):
    t = check(randn(3, 4, 10, seed=2), device=device)
    close(t.plan.sum(-1).cpu(), torch.ones(3, 4, dtype=F64), 1e-12)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    m=st.integers(1, 5),
    n=st.integers(1, 9),
    levels=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    zero_slots=st.integers(0, 2),
    zero_inputs=st.integers(0, 3),
)
def test_ties_and_no_masses(device, m, n, levels, seed, zero_slots, zero_inputs):
    """Whole-number costs from a small set, so that most paths are equally short."""
    random = torch.Generator().manual_seed(seed)
    cost = torch.randint(levels, (m, n), generator=random).double()
    a = torch.randint(1, 4, (m,), generator=random).double()
    b = torch.randint(1, 4, (n,), generator=random).double()
    a[1 : 1 + zero_slots] = 0
    b[1 : 1 + zero_inputs] = 0
    t = check(cost, a, b * (a.sum() / b.sum()), device)
    assert not t.plan[a.to(device) == 0].any()
    assert not t.plan[:, b.to(device) == 0].any()


@pytest.mark.parametrize(("m", "n"), [(2, 2), (4, 4), (3, 5), (5, 3), (4, 40)])
@pytest.mark.parametrize("value", [0.0, -3.0])
def test_all_equal_costs(device, m, n, value):
    """Tied inputs move together: far fewer paths than inputs."""
    cost = torch.full((1, m, n), value, dtype=F64, device=device)
    a, b = torch.ones(1, m, dtype=F64), torch.full((1, n), m / n, dtype=F64)
    steps = emd_small(cost, a.to(device), b.to(device))[3]
    assert 0 <= int(steps) <= 3 * m
    t = check(cost[0].cpu(), device=device)
    if m == n:
        assert sorted(t.plan.argmax(-1).tolist()) == list(range(m))


def test_copies_of_few_inputs(device):
    """Copies move together too, whatever is shared already: as many paths as for one of each."""
    which = torch.randint(6, (3, 1, 120), generator=torch.Generator().manual_seed(1))
    cost = randn(3, 5, 6, seed=1).gather(-1, which.expand(3, 5, 120))
    _, a, b = random_problem(3, 5, 120, seed=2)
    steps = emd_small(*(x.to(device) for x in (cost, a, b)))[3]
    assert 0 <= int(steps.max()) <= 10
    check(cost, a, b, device)


def test_equal_slots_and_equal_inputs(device):
    slots, inputs = randn(5, 40, seed=3), randn(5, 40, seed=4)
    slots[1:4] = slots[0]
    inputs[:, 10:] = inputs[:, 3:4]
    _, a, b = random_problem(5, 40, seed=5)
    for cost in (slots, inputs, slots.round()):
        check(cost, a, b, device)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_costs_of_many_sizes(device, dtype):
    """From 1e-3 to 1e3 in one matrix."""
    cost, a, b = random_problem(5, 20, seed=6, dtype=dtype)
    check(10 ** (1.5 * cost.clamp(-2, 2)), a, b, device)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e30])
def test_the_size_of_costs_and_masses_does_not_matter(device, scale):
    cost, a, b = (x.to(device) for x in random_problem(4, 9, seed=7))
    expected = emd(cost, a, b, backend="triton")
    close(emd(scale * cost, a, b, backend="triton").plan.cpu(), expected.plan.cpu(), 1e-12)
    t = emd(cost, scale * a, scale * b, backend="triton")
    close(t.plan.cpu() / scale, expected.plan.cpu(), 1e-12)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_masks(device):
    cost, a, b = random_problem(4, 5, 12, seed=8)
    slots, inputs = randn(4, 5, seed=9) > -0.3, randn(4, 12, seed=10) > -0.3
    slots[:, 1] = inputs[:, 3:5] = True
    padding = ~(slots[:, :, None] & inputs[:, None])
    cost[padding] = torch.nan
    a, b = a * slots, b * inputs
    b = b * (a.sum(-1) / b.sum(-1))[:, None]
    for marginals in ((None, None), (a, b)):
        t = check(cost, *marginals, device, slot_mask=slots, input_mask=inputs)
        assert not t.plan.cpu()[padding].any()
        assert not t.u.cpu()[~slots].any()
        assert not t.v.cpu()[~inputs].any()


def test_no_mass_at_all(device):
    cost = randn(2, 3, 4, seed=11).to(device)
    a, b = torch.ones(2, 3, device=device), torch.full((2, 4), 0.75, device=device)
    a[0] = b[0] = 0
    t = emd(cost, a, b, backend="triton")
    assert not t.plan[0].any()
    assert t.converged.all()
    assert (cost[0] - t.u[0, :, None] - t.v[0]).min() >= 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, F32])
def test_low_precision_is_solved_in_float64(device, dtype):
    cost, a, b = random_problem(4, 6, seed=12, dtype=F32)
    cost, a, b = cost.to(dtype).to(device), a.to(device), b.to(device)
    t, truth = emd(cost, a, b, backend="triton"), emd(cost.double(), a, b, backend="triton")
    assert t.plan.dtype == dtype
    assert t.u.dtype == t.v.dtype == t.marginal_error.dtype == F32
    assert torch.equal(t.plan, truth.plan.to(dtype))


@pytest.fixture
def unchecked():
    """Values are not looked at, as on a GPU."""
    before = set_value_checks("never")
    yield
    set_value_checks(before)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_costs_that_are_not_finite_show(device, unchecked, bad):
    cost = randn(2, 3, 4, seed=13)
    cost[0, 1, 2] = bad
    t = emd(cost.to(device), backend="triton")
    assert t.converged.tolist() == [False, True]
    assert t.plan[0].isnan().all()
    assert torch.equal(t.plan[1].cpu(), emd(cost[1].to(device), backend="triton").plan.cpu())


@pytest.mark.parametrize("columns", [16, 32])
def test_several_blocks(device, monkeypatch, columns):
    from slotmesh.ops._triton import solve

    monkeypatch.setattr(solve, "choose", lambda *_: solve.EmdCase(8, columns, 16, 16, 1, 1))
    cost, a, b = random_problem(5, 50, seed=14)
    check(cost, a, b, device)
    cost[3] = cost[2]
    cost[:, 10:45] = cost[:, 10:11]  # ties that go over several blocks
    check(cost, a, b, device)


def test_a_good_start_leaves_few_paths(device, monkeypatch):
    cost, a, b = (x[None].to(device) for x in random_problem(4, 200, seed=15))
    few = emd_small(cost, a, b)[3]
    if device == "cpu":
        from slotmesh.ops._triton import solve

        monkeypatch.setattr(solve, "TEMPERATURES", 6)
        many, few = few, emd_small(cost, a, b)[3]
        assert int(few) < int(many)
    assert 0 <= int(few) <= 8


def test_giving_up_is_reported(device, monkeypatch):
    from slotmesh.ops._triton import solve

    run = solve.emd
    monkeypatch.setattr(solve, "emd", lambda *args: run(*args[:-1], 1))
    cost, a, b = random_problem(2, 5, 12, seed=16)
    a[0], b[0] = 1.0, 5.0 / 12
    if device == "cpu":
        with pytest.warns(UserWarning, match="emd: 2 of 2 problems stopped before their optimum"):
            t = emd(cost, a, b, backend="triton")
    else:
        t = emd(cost.to(device), a.to(device), b.to(device), backend="triton")
    assert not t.converged.any()
    expected = marginal_error(t.plan.cpu(), a, b)
    assert (expected > 1e-3).all()
    close(t.marginal_error, expected, 1e-12)


def test_masses_are_brought_to_one_total(device):
    cost, a, b = (x.to(device) for x in random_problem(2, 4, 9, seed=24))
    plan, _, _, steps, error = emd_small(cost, a, 1.001 * b)
    close(plan.sum(-1), a, 1e-12)
    close(plan.sum(-2), b, 1e-12)
    assert (steps >= 0).all()
    assert (error < 1e-12).all()


def test_batches(device):
    cost, a, b = (x.to(device) for x in random_problem(2, 3, 4, 9, seed=17))
    t = emd(cost, a, b, backend="triton")
    assert t.plan.shape == (2, 3, 4, 9)
    one = emd(cost[1, 2], a[1, 2], b[1, 2], backend="triton")
    for whole, part in zip(t, one, strict=True):
        assert torch.equal(whole[1, 2], part)
    shared = emd(cost[0, 0], a[0], b[0, 0] * 0 + a[0].sum(-1, keepdim=True) / 9, backend="triton")
    assert shared.plan.shape == (3, 4, 9)
    assert emd(cost[:, :0], backend="triton").plan.shape == (2, 0, 4, 9)


def test_inside_vmap(device):
    cost, a, b = (x.to(device) for x in random_problem(2, 3, 4, seed=18))
    moved = torch.vmap(lambda c, a, b: emd(c, a, b, backend="triton").plan, in_dims=(2, 1, 0))
    plan = moved(cost.movedim(0, 2), a.movedim(0, 1), b)
    assert torch.equal(plan, emd(cost, a, b, backend="triton").plan)


def test_no_gradient(device):
    cost = randn(3, 4, seed=19).to(device).requires_grad_()
    t = emd(cost, backend="triton")
    assert not any(x.requires_grad for x in (t.plan, t.u, t.v, t.marginal_error))
    (gradient,) = torch.autograd.grad((t.plan * cost).sum(), cost)
    assert torch.equal(gradient, t.plan)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_operator_is_well_formed(device):
    cost, a, b = (x.to(device) for x in random_problem(1, 2, 5, seed=20))
    torch.library.opcheck(emd_small, (cost, a, b))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_as_one_graph(device):
    def run(cost, a):
        t = emd(cost.sin(), a, backend="triton")
        return t.plan, t.u, t.converged

    cost, a, _ = (x.to(device) for x in random_problem(2, 3, 5, seed=21))
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for x, y in zip(compiled(cost, a), run(cost, a), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("shape", [(33, 40), (2, 16_385)])
def test_what_the_kernel_cannot_do(device, shape):
    cost = torch.zeros(shape, device=device)
    with pytest.raises(ValueError, match=r"emd: backend is 'triton'.*32 x 16384.*backend='pot'"):
        emd(cost, backend="triton")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(64, 6, 4096), (16, 10, 1024), (4, 11, 16_384), (8, 32, 2048)])
def test_sizes_of_real_scenes(device, shape):
    if device == "cpu":
        pytest.skip("takes minutes in the interpreter")
    check(*random_problem(*shape, seed=22, dtype=F32), device)


@pytest.fixture
def kernel_calls(monkeypatch):
    """Calls of the kernel, on a GPU only."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    from slotmesh.ops._triton import solve

    calls, run = [], solve.emd
    monkeypatch.setattr(solve, "emd", lambda *args: calls.append(args[0].shape) or run(*args))
    return calls


@pytest.mark.gpu
def test_the_kernel_is_the_default_on_a_gpu_and_waits_for_nothing(kernel_calls, no_waiting):
    cost, a, b = (x.cuda() for x in random_problem(2, 3, 50, seed=23))
    mask = torch.ones(2, 50, dtype=torch.bool, device="cuda")

    def run():
        return emd(cost, a, b), emd(cost, input_mask=mask)

    run()  # compiles
    with no_waiting():
        results = run()
    assert all(t.converged.all() for t in results)
    assert len(kernel_calls) == 4
    emd(cost, a, b, backend="pot")
    emd(torch.rand(1, 33, 40, device="cuda"))
    assert len(kernel_calls) == 4


@pytest.mark.gpu
def test_inside_a_cuda_graph(kernel_calls):
    cost, a, b = (x.cuda() for x in random_problem(2, 3, 50, seed=25))
    expected = emd(cost, a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = emd(cost, a, b)
    captured.plan.zero_()
    graph.replay()
    for x, y in zip(captured, expected, strict=True):
        assert torch.equal(x, y)
    # Other costs in the same place.
    cost.neg_()
    graph.replay()
    assert torch.equal(captured.plan, emd(cost, a, b).plan)


@pytest.mark.gpu
def test_slot_attention_waits_for_nothing_and_compiles(kernel_calls, no_waiting):
    attention = SlotAttention(16, 16, 3, transport=EMD()).cuda()
    inputs, slots = torch.randn(2, 50, 16).cuda(), torch.randn(2, 3, 16).cuda()
    attention(inputs, slots).slots.sum().backward()  # compiles
    with no_waiting():
        eager = attention(inputs, slots).slots
        eager.sum().backward()
    assert len(kernel_calls) == 2 * attention.n_iters
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")(inputs, slots).slots
    close(compiled, eager, 1e-5)
    compiled.sum().backward()
