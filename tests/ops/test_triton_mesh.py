"""The MESH kernel against the pure-torch truth in float64."""

import pytest
import torch

from slotmesh.ops import EntropyObjective, mesh
from slotmesh.ops.mesh.triton import mesh_op

from ._kernels import blocks_of, both
from ._reference import close, masses, randn

SIZES = [(1, 1), (1, 7), (3, 1), (3, 63), (5, 105), (11, 130)]
MODES = ["detach", "reuse", "fresh"]
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


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_values_and_all_gradients(device, m, n):
    # One matrix entry, slot or input has no direction to go to but that of rounding.
    lr = 1.0 if min(m, n) > 1 else 0.0
    args = leaves(1, m, n, seed=m * n)
    mode = MODES[(m + n) % 3]
    both(mesh, device, args, n_steps=2, n_iters=3, lr=lr, potentials=mode, through=EVERYTHING)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", [128, 32])
def test_potentials_and_blocks(device, monkeypatch, mode, columns):
    blocks_of(columns, monkeypatch)
    args = leaves(1, 3, 70, seed=1)
    both(mesh, device, args, n_steps=2, n_iters=3, potentials=mode, through=EVERYTHING)


@pytest.mark.parametrize("mode", ["detach", "reuse"])
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
    args = leaves(5, 33, seed=3)
    both(mesh, device, {k: args[k] for k in ("cost", "noise")})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("marginals", [True, False])
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
    both(mesh, device, args, n_steps=2, n_iters=2, potentials=mode, lr=0.5)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["detach", "reuse"])
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
    t = both(mesh, device, args, n_steps=1, n_iters=2, lr=0.5)
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


def test_batch_elements_do_not_see_each_other(device):
    cost = randn(3, 5, 33, seed=11, dtype=F32).to(device)
    together = mesh(cost, noise=0.0, n_steps=2, n_iters=2, backend="triton").plan
    alone = mesh(cost[1], noise=0.0, n_steps=2, n_iters=2, backend="triton").plan
    if device == "cpu":  # a GPU may cut a smaller batch into more parts
        assert torch.equal(together[1], alone)
    close(together[1], alone, 1e-5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("keep", [True, False])
def test_operator_is_well_formed(device, keep):
    args = {k: x.to(device) for k, x in leaves(1, 2, 5, seed=12).items()}
    cost, noise, a, b, tau = (x.requires_grad_() for x in args.values())
    args = (cost, noise, a, b, None, None, tau, 1.0, 1.0, 0.5, False, 1, 2, False, keep)
    torch.library.opcheck(mesh_op, args)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["detach", "reuse"])
def test_compiles_as_one_graph(device, mode):
    def run(cost, temperature, noise):
        t = mesh(
            cost,
            n_steps=1,
            n_iters=2,
            noise=noise,
            temperature=temperature,
            potentials=mode,
            backend="triton",
        )
        return t.plan, t.cost

    args = leaves(2, 3, 9, seed=13)
    cost, tau = (args[k].to(device).requires_grad_() for k in ("cost", "temperature"))
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    results = []
    for call in (run, compiled):
        out = call(cost, tau, args["noise"].to(device))
        results.append((*out, *torch.autograd.grad(sum(x.sin().sum() for x in out), (cost, tau))))
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("batch", "m", "n"), [(2, 5, 1100), (64, 11, 4096), (3, 40, 5000)])
def test_programs_that_share_an_element(batch, m, n, mode):
    args = leaves(batch, m, n, seed=14)
    both(mesh, "cuda", args, n_steps=2, n_iters=3, lr=1.0, potentials=mode, through=EVERYTHING)
    both(mesh, "cuda", {"cost": args["cost"]}, noise=0.0, potentials=mode, lr=1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_the_kernel_is_the_default_on_a_gpu_and_can_be_captured():
    cost = randn(4, 5, 1100, seed=15, dtype=F32).cuda().requires_grad_()
    noise = 0.1 * torch.randn_like(cost)
    weight = torch.randn_like(cost)

    def run():
        plan = mesh(cost, noise=noise).plan
        return plan, *torch.autograd.grad(plan, cost, weight)

    with torch.profiler.profile() as profile:
        eager = run()
    assert any("forward_kernel" in event.key for event in profile.key_averages())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for x in captured:
        x.zero_()
    graph.replay()
    for x, y in zip(captured, eager, strict=True):
        close(x, y, 1e-6)
