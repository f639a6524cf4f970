"""The MESH kernel against the pure-torch truth in float64.

On a GPU nearly all of the time is compilation, once for each size up to a power of two and each
set of arguments and gradients: tests share these where they can.
"""

import pytest
import torch

from slotmesh.ops import EntropyObjective, mesh
from slotmesh.ops._kernel_types import Operands
from slotmesh.ops._operator import transport_op
from slotmesh.ops.problem import SolverSettings

from ._kernels import blocks_of, both, record_moves, same_captured, storing
from ._reference import close, masses, randn

MODES = ["detach", "reuse", "fresh"]
SIZES = [(1, 1), (1, 7), (3, 1), (3, 9), (5, 105), (11, 130)]
F32 = torch.float32


def leaves(*shape: int, seed: int) -> dict[str, torch.Tensor]:
    """A cost, noise and marginals, all different."""
    *batch, m, n = shape
    return {
        "cost": 2 * randn(*shape, seed=seed, dtype=F32),
        "noise": 0.1 * randn(*shape, seed=seed + 1, dtype=F32),
        "a": masses(*batch, m, seed=seed, total=m, dtype=F32),
        "b": masses(*batch, n, seed=seed + 1, total=m, dtype=F32),
        "temperature": 0.5 + randn(*batch, seed=seed + 3, dtype=F32).abs(),
    }


EVERYTHING = ("plan", "u", "v", "cost")


@pytest.mark.parametrize(
    ("m", "n", "mode"), [(*size, MODES[i % 3]) for i, size in enumerate(SIZES)]
)
def test_values_and_all_gradients(device, m, n, mode):
    args = leaves(1, m, n, seed=m * n)
    both(mesh, device, args, n_steps=2, n_iters=3, lr=1.0, potentials=mode, through=EVERYTHING)


@pytest.mark.parametrize("lone", ["input", "slot"])
def test_nothing_moves_where_there_is_nothing_to_decide(device, lone):
    """One slot, or one input with mass: a step would follow rounding."""
    cost = 5 * randn(3, 6, 4, seed=0, dtype=F32).to(device)
    b = torch.tensor([0.0, 6.0, 0.0, 0.0], device=device) if lone == "input" else None
    mask = torch.arange(6, device=device) == 2 if lone == "slot" else None
    t = mesh(cost, b=b, slot_mask=mask, noise=0.0, lr=0.3, backend="triton")
    real = slice(None) if mask is None else mask
    assert torch.equal(t.cost[:, real], cost[:, real])


@pytest.mark.parametrize("mode", MODES)
def test_several_blocks(device, monkeypatch, mode):
    blocks_of(32, monkeypatch)
    args = leaves(1, 3, 70, seed=1)
    both(mesh, device, args, n_steps=2, n_iters=3, potentials=mode, through=EVERYTHING)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n_steps", "n_iters"), [(0, 2), (2, 1), (1, 2)])
def test_few_steps_and_iterations(device, n_steps, n_iters, mode):
    args = leaves(1, 3, 9, seed=2)
    both(
        mesh,
        device,
        args,
        n_steps=n_steps,
        n_iters=n_iters,
        potentials=mode,
        lr=0.5,
        through=EVERYTHING,
    )


def test_defaults(device):
    both(mesh, device, {"cost": leaves(1, 4, 33, seed=3)["cost"]}, noise=0.0)


@pytest.mark.parametrize(
    ("mode", "marginals"), [*((mode, True) for mode in MODES), ("reuse", False)]
)
def test_masks(device, mode, marginals):
    args = leaves(2, 5, 33, seed=4)
    slots, inputs = randn(2, 5, seed=0) > -0.3, randn(2, 33, seed=1) > -0.3
    slots[:, 1:3] = inputs[:, 20:25] = True
    padding = ~(slots[:, :, None] & inputs[:, None])
    args["cost"][padding] = torch.nan
    args["noise"][padding] = torch.inf
    args["a"] *= slots
    args["b"] *= inputs * (args["a"].sum(-1) / (args["b"] * inputs).sum(-1))[:, None]
    if not marginals:
        del args["a"], args["b"]
    t = both(
        mesh,
        device,
        args,
        n_steps=2,
        n_iters=3,
        step=0.1,
        potentials=mode,
        slot_mask=slots,
        input_mask=inputs,
        through=("plan", "cost"),
    )
    assert (t.plan.cpu()[padding] == 0).all()
    assert (t.cost.cpu()[padding] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_masses_of_zero(device, mode):
    args = leaves(2, 3, 9, seed=5)
    args["a"][0, 2] = 0
    args["b"][0, 3:5] = 0
    args["b"][0] *= args["a"][0].sum() / args["b"][0].sum()
    args["a"][1] = args["b"][1] = 0
    both(mesh, device, args, n_steps=2, n_iters=2, potentials=mode, lr=0.5, through=EVERYTHING)


@pytest.mark.parametrize("mode", MODES)
def test_a_slot_far_from_all_inputs(device, mode):
    cost = randn(1, 4, 33, seed=6, dtype=F32)
    cost[0, 1] += 300
    both(
        mesh,
        device,
        {"cost": cost},
        noise=0.0,
        n_steps=2,
        n_iters=3,
        lr=1.0,
        potentials=mode,
        values=1e-4,
        gradients=1e-3,
    )


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("columns", [32, None])
@pytest.mark.parametrize("mode", MODES)
def test_potentials_that_travel_far(device, monkeypatch, mode, columns, stored):
    """Exponentials are stored from one iteration to the next only while potentials are near."""
    if columns is not None:
        blocks_of(columns, monkeypatch)
    storing(stored, monkeypatch)
    moves = record_moves(monkeypatch)
    cost = 30 * randn(2, 5, 70, seed=7, dtype=F32)
    cost[:, 2] += 150
    both(
        mesh,
        device,
        {"cost": cost},
        noise=0.0,
        n_steps=2,
        n_iters=5,
        lr=3.0,
        potentials=mode,
        values=1e-4,
        gradients=1e-3,
        through=EVERYTHING,
    )
    assert moves[0] >= 1


@pytest.mark.parametrize("seed", [7, 11, 12])
def test_one_iteration_of_hard_costs(device, seed):
    """The first potentials of slots far from every input are still in kappa, as tiny numbers."""
    both(
        mesh,
        device,
        {"cost": 100 * randn(1, 17, 2, seed=seed, dtype=F32)},
        noise=0.0,
        n_steps=1,
        n_iters=1,
        lr=0.3,
        values=1e-3,
        gradients=1e-2,
        through=("plan",),
    )


@pytest.mark.parametrize(("dtype", "mode"), [(torch.bfloat16, "detach"), (torch.float16, "reuse")])
def test_half_precision_outside(device, monkeypatch, dtype, mode):
    blocks_of(32, monkeypatch)
    args = leaves(1, 3, 40, seed=7)
    args = {k: args[k].to(dtype) for k in ("cost", "a")}
    t = both(
        mesh,
        device,
        args,
        noise=0.0,
        n_steps=2,
        n_iters=3,
        lr=1.0,
        potentials=mode,
        values=4e-3,
        gradients=2e-2,
        through=("plan",),
    )
    assert t.plan.dtype == dtype
    assert t.cost.dtype == t.u.dtype == t.v.dtype == F32


def test_broadcast_batch_and_noise(device):
    args = {
        "cost": randn(2, 1, 3, 9, seed=8, dtype=F32),
        "a": masses(2, 3, seed=8, total=3, dtype=F32),
        "noise": 0.1 * randn(3, 9, seed=9, dtype=F32),
        "temperature": torch.tensor([[0.5], [2.0]]),
    }
    t = both(mesh, device, args, n_steps=1, n_iters=2, lr=0.5, through=EVERYTHING)
    assert t.plan.shape == t.cost.shape == (2, 2, 3, 9)


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_the_same_noise_is_drawn(device, dtype):
    cost = randn(2, 3, 9, seed=10, dtype=dtype).to(device)
    results = [
        mesh(
            cost,
            noise=0.5,
            n_steps=0,
            generator=torch.Generator(device).manual_seed(3),
            backend=backend,
        )
        for backend in ("triton", "torch")
    ]
    close(results[0].cost, results[1].cost, 1e-6)
    assert (results[0].cost != cost.float()).all()


def test_equal_slots_part_ways(device):
    tie = torch.ones(2, 2, device=device)
    generator = torch.Generator(device).manual_seed(0)
    plan = mesh(tie, generator=generator, backend="triton").plan.cpu()
    close(plan.round().sum(0), torch.ones(2), 0)
    close(plan.round().sum(1), torch.ones(2), 0)


@pytest.mark.parametrize("masked", [False, True])
def test_the_default_step_is_the_temperature(device, masked):
    cost = randn(3, 4, 33, seed=14, dtype=F32)
    options = {"noise": 0.0, "n_steps": 2, "n_iters": 3}
    if masked:
        options["input_mask"] = torch.arange(33) < torch.tensor([[33], [20], [5]])
    for units in (0.25, torch.tensor(0.25), torch.tensor([0.5, 4.0, 32.0])):
        expected = mesh(cost, temperature=units, backend="torch", **options)
        there = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in options.items()}
        tau = units.to(device) if isinstance(units, torch.Tensor) else units
        found = mesh(cost.to(device), temperature=tau, backend="triton", **there)
        close(found.plan.cpu(), expected.plan, 1e-4)


def test_batch_elements_do_not_see_each_other(device):
    cost = randn(3, 4, 33, seed=11, dtype=F32).to(device)
    together = mesh(cost, noise=0.0, n_steps=2, n_iters=2, backend="triton").plan
    alone = mesh(cost[1], noise=0.0, n_steps=2, n_iters=2, backend="triton").plan
    if device == "cpu":  # a GPU may cut a smaller batch into more parts
        assert torch.equal(together[1], alone)
    close(together[1], alone, 1e-5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(("keep", "implicit"), [(True, False), (False, False), (False, True)])
def test_operator_is_well_formed(device, keep, implicit):
    args = {k: x.to(device) for k, x in leaves(1, 3, 9, seed=12).items()}
    cost, noise, a, b, tau = (x.requires_grad_() for x in args.values())
    settings = SolverSettings(
        n_iters=2, implicit=implicit, mesh=True, n_steps=1, length=0.5, reuse=keep, keep=keep
    )
    operands = Operands(cost, noise, a, b, None, None, tau, None)
    torch.library.opcheck(transport_op, (*operands, *settings))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["detach", "reuse"])
def test_compiles_as_one_graph(device, mode):
    def run(cost, noise, a, b, temperature):
        t = mesh(
            cost,
            a,
            b,
            noise=noise,
            temperature=temperature,
            n_steps=1,
            n_iters=2,
            potentials=mode,
            backend="triton",
        )
        return t.plan, t.u, t.v, t.cost

    args = [x.to(device).requires_grad_() for x in leaves(2, 3, 9, seed=13).values()]
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    results = []
    for call in (run, compiled):
        out = call(*args)
        results.append((*out, *torch.autograd.grad(sum(x.sin().sum() for x in out), args)))
    for x, y in zip(*results, strict=True):
        close(x, y, 1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"grad": "unroll"}, "grad is 'unroll'"),
        ({"objective": EntropyObjective()}, "objective is given"),
    ],
)
def test_what_the_kernel_cannot_do(device, options, reason):
    cost = torch.zeros(3, 9, device=device)
    with pytest.raises(ValueError, match=rf"mesh: backend is 'triton'.*{reason}"):
        mesh(cost, backend="triton", **options)
    assert mesh(cost, **options).plan.isfinite().all()


def test_noise_is_checked_as_ever(device):
    cost = torch.zeros(3, 9, device=device)
    with pytest.raises(ValueError, match="both a noise tensor and a generator"):
        mesh(cost, noise=cost, generator=torch.Generator(device), backend="triton")
    with pytest.raises(ValueError, match="broadcasts to the cost's shape"):
        mesh(cost, noise=torch.zeros(2, 2, device=device), backend="triton")
    if device == "cpu":  # values on a GPU are not looked at
        with pytest.raises(ValueError, match="noise has 27 entries that are not finite"):
            mesh(cost, noise=cost / 0, backend="triton")


# Elements in four, two and sixteen parts on a GPU of 132 processors, of one block and of several.
PARTS = [*((2, 5, 1100, mode) for mode in MODES), (40, 11, 2048, "reuse"), (3, 40, 5000, "fresh")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize(("batch", "m", "n", "mode"), PARTS)
def test_programs_that_share_an_element(batch, m, n, mode):
    args = leaves(batch, m, n, seed=14)
    both(mesh, "cuda", args, n_steps=2, n_iters=3, lr=1.0, potentials=mode, through=EVERYTHING)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_programs_that_share_an_element_of_uniform_masses():
    both(mesh, "cuda", {"cost": leaves(40, 11, 2048, seed=14)["cost"]}, noise=0.0, lr=1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_the_kernel_is_the_default_on_a_gpu_and_can_be_captured(monkeypatch):
    from slotmesh.ops._triton import launch

    values = randn(4, 5, 1100, seed=15, dtype=F32).cuda()
    noise = 0.1 * torch.randn_like(values)
    weight = torch.randn_like(values)
    calls = []
    forward = launch.forward
    monkeypatch.setattr(launch, "forward", lambda *a, **k: calls.append(a) or forward(*a, **k))

    def run():
        # A leaf belongs to the stream that it was made in.
        cost = values.detach().requires_grad_()
        plan = mesh(cost, noise=noise).plan
        return plan.detach(), *torch.autograd.grad(plan, cost, weight)

    eager = run()
    assert len(calls) == 1
    same_captured(eager, run)
