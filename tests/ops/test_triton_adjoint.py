"""The kernels of the implicit gradient against the pure-torch truth in float64."""

import importlib

import pytest
import torch

from slotmesh.ops import mesh, sinkhorn
from slotmesh.ops._operator import plan_adjoint

from ._kernels import both, near, same_captured
from ._reference import close, randn
from .test_triton_mesh import leaves

F32 = torch.float32
# The package has a function of the module's name.
truth = importlib.import_module("slotmesh.ops._implicit").plan_adjoint


def plans(batch, m, n, seed):
    """Plans and gradients; of each plan one slot and two inputs have nothing."""
    plan = (2 * randn(batch, m, n, seed=seed, dtype=F32)).softmax(-1)
    if m > 2 and n > 4:
        plan[:, 1] = plan[:, :, 2:4] = 0
    return plan, randn(batch, m, n, seed=seed + 1, dtype=F32)


def compare(plan, grad, device, scale=1.0):
    found = plan_adjoint(plan.to(device), grad.to(device), scale)
    expected = truth(plan.double(), grad.double())
    names = ("log kernel", "a", "b")
    for x, y, factor, name in zip(found, expected, (scale, 1, 1), names, strict=True):
        near(x, factor * y, 1e-5, name)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 7), (3, 1), (9, 3), (5, 105), (11, 130)])
def test_agrees(device, m, n):
    compare(*plans(2, m, n, seed=m * n), device, scale=-2.0)


def test_several_parts_of_several_blocks(device, monkeypatch):
    from slotmesh.ops._triton import adjoint

    monkeypatch.setattr(adjoint, "NUMBERS", 1)  # 32 inputs a block
    monkeypatch.setattr(adjoint, "PROGRAMS", 6)
    compare(*plans(2, 4, 250, seed=0), device)


def test_many_slots(device):
    compare(*plans(1, 64, 90, seed=0), device)


def test_a_nearly_hard_plan(device):
    plan, grad = plans(1, 4, 9, seed=3)
    compare((20 * plan).softmax(-2), grad, device)
    blocks = torch.block_diag(torch.full((2, 3), 0.2), torch.full((2, 4), 0.3))[None]
    blocks += 1e-6 * randn(1, 4, 7, seed=5, dtype=F32).abs()
    compare(blocks, grad[:, :, :7], device)


def test_a_gradient_where_nothing_goes_does_not_count(device):
    plan, grad = plans(2, 3, 9, seed=4)
    clean = plan_adjoint(plan.to(device), grad.to(device), 1.0)
    grad[plan == 0] = torch.nan
    for x, y in zip(plan_adjoint(plan.to(device), grad.to(device), 1.0), clean, strict=True):
        assert torch.equal(x, y)


def test_nothing(device):
    empty = torch.zeros(0, 3, 5, device=device)
    assert [x.shape for x in plan_adjoint(empty, empty, 1.0)] == [(0, 3, 5), (0, 3), (0, 5)]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_operator_is_well_formed(device):
    plan, grad = (x.to(device) for x in plans(2, 3, 9, seed=5))
    torch.library.opcheck(plan_adjoint, (plan, grad, 0.5))


MESH = {"grad": "implicit", "n_steps": 2, "n_iters": 5, "lr": 1.0, "through": ("plan", "cost")}


@pytest.mark.parametrize("mode", ["detach", "fresh"])
def test_mesh(device, mode):
    t = both(mesh, device, leaves(2, 5, 33, seed=6), potentials=mode, **MESH)
    assert not t.u.requires_grad
    assert not t.v.requires_grad


def test_mesh_by_the_cost_alone(device):
    both(mesh, device, {"cost": leaves(1, 4, 33, seed=7)["cost"]}, noise=0.0, **MESH)
    unused = {k: x for k, x in leaves(1, 4, 33, seed=7).items() if k in ("cost", "noise")}
    both(mesh, device, unused, **MESH | {"through": ("cost",)})


def test_sinkhorn(device):
    args = leaves(2, 5, 33, seed=8)
    del args["noise"]
    both(sinkhorn, device, args, n_iters=8, grad="implicit", through=("plan",))
    for names in (("cost",), ("cost", "a", "b")):  # where the rest is not there, it has no gradient
        some = {name: args[name] for name in names}
        both(sinkhorn, device, some, n_iters=8, grad="implicit", through=("plan",))


@pytest.mark.parametrize("op", [mesh, sinkhorn])
def test_masks_and_masses_of_zero(device, op):
    args = leaves(2, 5, 33, seed=9)
    slots, inputs = randn(2, 5, seed=0) > -0.3, randn(2, 33, seed=1) > -0.3
    slots[:, 1:3] = inputs[:, 20:25] = True
    padding = ~(slots[:, :, None] & inputs[:, None])
    args["cost"][padding] = torch.nan
    args["a"] *= slots
    args["a"][0, 2] = args["b"][0, 20] = 0
    args["b"] *= inputs * (args["a"].sum(-1) / (args["b"] * inputs).sum(-1))[:, None]
    options = MESH if op is mesh else {"grad": "implicit", "through": ("plan",)}
    if op is sinkhorn:
        del args["noise"]
    both(op, device, args, slot_mask=slots, input_mask=inputs, **options)


@pytest.mark.parametrize("op", [mesh, sinkhorn])
def test_half_precision_outside(device, op):
    args = {k: x.to(torch.bfloat16) for k, x in leaves(1, 3, 40, seed=10).items() if k in "cost a"}
    options = {"grad": "implicit", "n_iters": 5, "through": ("plan",)}
    options |= {"noise": 0.0, "lr": 1.0} if op is mesh else {}
    t = both(op, device, args, values=4e-3, gradients=2e-2, **options)
    assert t.plan.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("op", [mesh, sinkhorn])
def test_compiles_as_one_graph(device, op):
    options = {"noise": 0.0, "n_steps": 1} if op is mesh else {}

    def run(cost, a, b, temperature):
        t = op(cost, a, b, temperature=temperature, grad="implicit", backend="triton", **options)
        return t.plan

    args = leaves(2, 3, 9, seed=11)
    del args["noise"]
    args = [x.to(device).requires_grad_() for x in args.values()]
    torch._dynamo.reset()
    results = []
    for call in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        plan = call(*args)
        results.append((plan, *torch.autograd.grad(plan.sin().sum(), args)))
    for x, y in zip(*results, strict=True):
        close(x, y, 1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize(("batch", "m", "n"), [(64, 6, 4096), (3, 40, 5000), (1, 11, 65_536)])
def test_sizes_of_images(batch, m, n):
    compare(*plans(batch, m, n, seed=12), "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_can_be_captured():
    values, weight = (x.cuda() for x in plans(4, 5, 1100, seed=13))

    def run():
        # A leaf belongs to the stream that it was made in.
        cost = values.detach().requires_grad_()
        plan = mesh(cost, noise=0.0, grad="implicit").plan
        return plan.detach(), *torch.autograd.grad(plan, cost, weight)

    same_captured(run(), run)
