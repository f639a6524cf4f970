"""The Sinkhorn kernel against the pure-torch truth in float64."""

import pytest
import torch

from slotmesh.ops import _fused, sinkhorn
from slotmesh.ops._kernel_types import Operands
from slotmesh.ops._operator import transport_op
from slotmesh.ops.problem import SolverSettings

from ._kernels import blocks_of, both, record_moves, storing
from ._reference import close, masses, randn

SIZES = [(1, 1), (1, 7), (3, 1), (3, 63), (5, 105), (11, 130)]
F32 = torch.float32


def leaves(*shape: int, seed: int) -> dict[str, torch.Tensor]:
    """A cost, marginals and a warm start, all different."""
    *batch, m, n = shape
    return {
        "cost": 2 * randn(*shape, seed=seed, dtype=F32),
        "a": masses(*batch, m, seed=seed, total=m, dtype=F32),
        "b": masses(*batch, n, seed=seed + 1, total=m, dtype=F32),
        "u": randn(*batch, m, seed=seed + 2, dtype=F32),
        "temperature": 0.5 + randn(*batch, seed=seed + 3, dtype=F32).abs(),
    }


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_values_and_all_gradients(device, m, n):
    both(sinkhorn, device, leaves(2, m, n, seed=m * n), n_iters=3)


@pytest.mark.parametrize("n_iters", [1, 2, 5])
def test_defaults_at_any_number_of_iterations(device, n_iters):
    both(sinkhorn, device, {"cost": randn(3, 9, seed=n_iters, dtype=F32)}, n_iters=n_iters)


@pytest.mark.parametrize("through", ["plan", "u", "v"])
def test_each_result_by_itself(device, through):
    both(sinkhorn, device, leaves(1, 3, 9, seed=1), n_iters=2, through=(through,))


@pytest.mark.parametrize("given", ["a", "b"])
def test_one_marginal(device, given):
    args = leaves(2, 3, 9, seed=2)
    both(sinkhorn, device, {"cost": args["cost"], given: args[given]}, n_iters=2)


@pytest.mark.parametrize("marginals", [True, False])
def test_blocks_and_masks(device, monkeypatch, marginals):
    blocks_of(32, monkeypatch)
    args = leaves(2, 5, 105, seed=3)
    slots, inputs = randn(2, 5, seed=0) > -0.3, randn(2, 105, seed=1) > -0.3
    slots[:, 1] = inputs[:, 50] = True
    with torch.no_grad():
        args["cost"][~(slots[:, :, None] & inputs[:, None])] = torch.nan
        args["a"] *= slots
        args["b"] *= inputs * (args["a"].sum(-1) / (args["b"] * inputs).sum(-1))[:, None]
    if not marginals:
        del args["a"], args["b"]
    # Potentials of padding are minus infinity, or nothing that anybody looks at.
    both(
        sinkhorn,
        device,
        args,
        n_iters=3,
        slot_mask=slots,
        input_mask=inputs,
        through=("plan",),
    )


def test_masses_of_zero(device):
    args = leaves(2, 5, 9, seed=4)
    args["a"][0, 2] = 0
    args["b"][0, 3:5] = 0
    args["b"][0] *= args["a"][0].sum() / args["b"][0].sum()
    args["a"][1] = args["b"][1] = 0
    both(sinkhorn, device, args, n_iters=3)


def test_masses_near_zero(device):
    args = leaves(1, 3, 9, seed=5)
    args["a"][0, 0] = 1e-20
    args["b"] *= args["a"].sum() / args["b"].sum()
    t = both(sinkhorn, device, args, n_iters=4, through=("plan", "v"))
    close(t.plan.sum(-1)[0, 0] / 1e-20, 1.0, 1e-5)


def test_warm_start_from_a_result_with_empty_slots(device):
    args = leaves(1, 3, 9, seed=6)
    args["u"][0, 1] = -torch.inf
    both(sinkhorn, device, args, n_iters=2)


@pytest.mark.parametrize("temperature", [0.1, 100.0])
def test_slots_far_from_all_inputs(device, temperature):
    cost = randn(1, 4, 33, seed=7, dtype=F32)
    cost[0, 1] += 30
    cost[0, 2] -= 40
    # Exponents of 1000 leave float32 four digits after the point.
    args = {"cost": cost, "u": torch.tensor([[0.0, 3.0, -torch.inf, 50.0]])}
    both(sinkhorn, device, args, n_iters=4, temperature=temperature, values=1e-4, gradients=1e-3)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("columns", [32, None])
@pytest.mark.parametrize("through", ["plan", "v"])
def test_potentials_that_travel_far(device, monkeypatch, through, columns, stored):
    """Exponentials are stored from one iteration to the next only while potentials are near."""
    if columns is not None:
        blocks_of(columns, monkeypatch)
    storing(stored, monkeypatch)
    moves = record_moves(monkeypatch)
    # Slots bid against each other: each iteration moves their potentials by the same, and further
    # in one element than in the other. One slot is far from all inputs.
    ladder = torch.arange(5.0)[:, None] * torch.arange(40.0)
    cost = torch.stack((20 * ladder, 7 - 30 * ladder))
    cost[0, 2] += 200
    args = {"cost": cost, "u": randn(2, 5, seed=17, dtype=F32)}
    both(sinkhorn, device, args, n_iters=40, through=(through,), values=1e-4, gradients=1e-3)
    assert moves[0] >= 4


def test_near_potentials_keep_their_exponentials(device, monkeypatch):
    blocks_of(32, monkeypatch)
    moves = record_moves(monkeypatch)
    sinkhorn(5 * randn(8, 7, 70, seed=18, dtype=F32).to(device), n_iters=9, backend="triton")
    assert moves == [0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outside(device, dtype):
    args = leaves(2, 3, 9, seed=8)
    args = {k: args[k].to(dtype) for k in ("cost", "a")}
    t = both(sinkhorn, device, args, n_iters=3, values=4e-3, gradients=2e-2, through=("plan",))
    assert t.plan.dtype == dtype
    assert t.u.dtype == t.v.dtype == F32


def test_broadcast_batch(device):
    args = {
        "cost": randn(2, 1, 3, 9, seed=9, dtype=F32),
        "a": masses(2, 3, seed=9, total=3, dtype=F32),
        "temperature": torch.tensor([[0.5], [2.0]]),
        "u": randn(3, seed=10, dtype=F32),
    }
    t = both(sinkhorn, device, args, n_iters=2)
    assert t.plan.shape == (2, 2, 3, 9)


def test_transposed_cost_and_expanded_gradient(device):
    cost = randn(9, 3, seed=11, dtype=F32).to(device).T.requires_grad_()
    t = sinkhorn(cost, backend="triton")
    (grad,) = torch.autograd.grad((t.plan * cost.detach()).sum(), cost)
    truth = sinkhorn(cost.double(), backend="torch")
    (expected,) = torch.autograd.grad((truth.plan * cost.detach()).sum(), cost)
    close(grad, expected, 1e-6)
    (constant,) = torch.autograd.grad(sinkhorn(cost, backend="triton").plan.sum(), cost)
    close(constant, torch.zeros(3, 9), 1e-6)


def test_no_batch_element(device):
    t = sinkhorn(torch.zeros(0, 3, 9, device=device, requires_grad=True), backend="triton")
    t.plan.sum().backward()
    assert t.plan.shape == (0, 3, 9)


def test_no_graph_without_gradients(device):
    cost = randn(3, 9, seed=12, dtype=F32).to(device).requires_grad_()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert not sinkhorn(cost, n_iters=1, backend="triton").plan.requires_grad
    t = sinkhorn(cost, n_iters=1, backend="triton")
    assert not t.marginal_error.requires_grad


def test_second_derivatives_are_refused(device):
    cost = randn(3, 9, seed=13, dtype=F32).to(device).requires_grad_()
    t = sinkhorn(cost, n_iters=1, backend="triton")
    (grad,) = torch.autograd.grad(t.plan.square().sum(), cost, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        grad.sum().backward()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("implicit", [True, False])
def test_operator_is_well_formed(device, implicit):
    args = {k: x.to(device) for k, x in leaves(1, 2, 5, seed=14).items()}
    cost, a, b, u, tau = (x.requires_grad_() for x in args.values())
    masks = torch.ones(1, 2, dtype=torch.bool, device=device), None
    operands = Operands(cost, None, a, b, *masks, tau, u)
    torch.library.opcheck(transport_op, (*operands, *SolverSettings(n_iters=2, implicit=implicit)))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_as_one_graph(device):
    def run(cost, a):
        t = sinkhorn(cost, a, n_iters=2, backend="triton")
        return t.plan, t.u, t.v

    args = leaves(2, 3, 9, seed=15)
    cost, a = (args[k].to(device).requires_grad_() for k in ("cost", "a"))
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    results = []
    for call in (run, compiled):
        out = call(cost, a)
        results.append((*out, *torch.autograd.grad(sum(x.sin().sum() for x in out), (cost, a))))
    for x, y in zip(*results, strict=True):
        close(x, y, 1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "reason"),
    [
        ((3, 9), torch.float64, {}, "dtype torch.float64"),
        ((1025, 9), F32, {}, "cost is 1025 x 9, and the kernels take at most 1024 x 65536"),
        ((3, 65_537), F32, {}, "cost is 3 x 65537"),
        ((3, 9), F32, {"tol": 1e-3}, "tol is given"),
    ],
)
def test_what_the_kernel_cannot_do(device, shape, dtype, options, reason):
    cost = torch.zeros(shape, dtype=dtype, device=device)
    with pytest.raises(ValueError, match=rf"backend is 'triton'.*{reason}.*backend='torch'"):
        sinkhorn(cost, backend="triton", **options)
    assert sinkhorn(cost, **options).plan.isfinite().all()


def test_transforms_are_left_to_torch(device):
    cost = randn(2, 3, 9, seed=16, dtype=F32).to(device)
    with pytest.raises(ValueError, match=r"torch\.func, of which kernels support only vmap"):
        torch.func.grad(lambda c: sinkhorn(c, backend="triton").plan.sum())(cost)
    grad = torch.func.grad(lambda c: sinkhorn(c).plan.square().sum())(cost)
    leaf = cost.clone().requires_grad_()
    close(grad, torch.autograd.grad(sinkhorn(leaf).plan.square().sum(), leaf)[0], 1e-6)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(cost, torch.ones_like(cost))
        with pytest.raises(ValueError, match="forward-mode"):
            sinkhorn(dual, backend="triton")
        assert torch.autograd.forward_ad.unpack_dual(sinkhorn(dual).plan).tangent is not None


def test_needs_a_device(monkeypatch):
    monkeypatch.setattr(_fused, "_HAS_TRITON", True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="cost is on cpu, and the kernels need a CUDA device"):
        sinkhorn(torch.zeros(3, 9), backend="triton")


def test_needs_triton(monkeypatch):
    monkeypatch.setattr(_fused, "_HAS_TRITON", False)
    with pytest.raises(ValueError, match="triton is not installed"):
        sinkhorn(torch.zeros(3, 9), backend="triton")


def test_values_are_checked_as_ever(device):
    if device != "cpu":
        pytest.skip("values on a GPU are not looked at")
    bad = torch.full((3, 9), torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        sinkhorn(bad, backend="triton")


def test_exchange_between_programs(device):
    """One part runs; what the other sends lies in the boxes already, as it may."""
    from slotmesh.ops._triton.launch import Case

    from ._exchange import exchange_kernel

    split, m = 2, 4
    mine, theirs = torch.tensor([1.0, -2.0, 3.0, 0.5]), torch.tensor([0.25, 4.0, -1.0, 0.0])
    pair = torch.stack([theirs, 10 * theirs], -1).flatten()
    mail = torch.zeros(2, 2 * split * m, dtype=torch.int64)
    for turn, (sent, size) in enumerate([(theirs, m), (pair, 2 * m)]):
        bits = sent.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        mail[turn, size : 2 * size] = bits | (turn + 1) << 32
    x, y, mail = mine.clone().to(device), (2 * mine).to(device), mail.to(device)
    exchange_kernel[(1,)](x, y, mail, 0, Case(m, 32, split))
    close(x.cpu(), mine + theirs, 0)
    close(y.cpu(), 2 * mine + 10 * theirs + 100 * torch.maximum(mine, theirs), 1e-4)
    # What was sent: the number in the low half of a word, the count of exchanges in the high half.
    words = mail.cpu()[0, :m]
    close((words & 0xFFFFFFFF).to(torch.int32).view(torch.float32), mine, 0)
    assert (words >> 32 == 1).all()
    assert (mail.cpu()[1, : 2 * m] >> 32 == 2).all()
