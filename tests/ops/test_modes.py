"""Grad modes, torch.func, torch.compile, and tensors without values."""

import shutil
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from slotmesh.ops import Transport, assign, emd, entropy, mesh, pairwise_cost, sinkhorn
from slotmesh.ops.assignment import assign_batch
from slotmesh.ops.emd.cpu import emd_batch

from ._reference import close, gradients, leaf, problem, randn

NOISE = 1e-2 * randn(3, 4, seed=99)
SLOT_MASK = torch.tensor([[True, True, True], [True, False, True]])
INPUT_MASK = torch.tensor([[True, True, False, True], [True, True, True, True]])

# Few steps: the graphs that torch.compile traces grow with them.
short_mesh = partial(mesh, n_steps=2, n_iters=1, noise=NOISE)
OPS = {
    "sinkhorn": partial(sinkhorn, n_iters=3),
    "sinkhorn tol": partial(sinkhorn, n_iters=4, tol=1e-1),
    "sinkhorn implicit": partial(sinkhorn, n_iters=4, grad="implicit"),
    "sinkhorn implicit tol": partial(sinkhorn, n_iters=4, tol=1e-1, grad="implicit"),
    "emd": emd,
    **{
        f"mesh {potentials} {grad}": partial(short_mesh, potentials=potentials, grad=grad, **length)
        for potentials, length in (("detach", {"lr": 1.0}), ("reuse", {"step": 0.2}), ("fresh", {}))
        for grad in ("straight_through", "implicit", "unroll", "truncated")
        if (potentials, grad) not in (("reuse", "implicit"), ("detach", "unroll"))
        and (potentials == "detach" or grad != "truncated")
    },
}
# All that is in them is in others, too.
MIXED = {"sinkhorn implicit tol", "mesh fresh straight_through", "mesh fresh implicit"}
WITH_GRADIENT = [name for name in OPS if name != "emd"]


def same(actual: Transport, expected: Transport, atol: float = 0.0) -> None:
    for x, y in zip(actual, expected, strict=True):
        assert x.dtype == y.dtype
        close(x, y, atol)


# no_grad and inference_mode


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", OPS)
def test_without_grad(name, mode):
    """The same values as with gradients, and no graph left behind."""
    leaves = [leaf(x) for x in problem(2, 3, 4, seed=0)]
    expected = OPS[name](*leaves)
    with mode():
        t = OPS[name](*leaves)
        assert not any(x.requires_grad for x in t[:3])
        assert t.plan.grad_fn is None
        same(t, Transport(*(x.detach() for x in expected)))
        if mode is torch.inference_mode:
            assert t.plan.is_inference()
            fresh = OPS[name](*(x.clone() for x in leaves))
            close(fresh.plan, expected.plan, 0.0)
    assert torch.is_grad_enabled()
    assert OPS[name](*leaves).plan.requires_grad == (name != "emd")


def test_other_operations_in_inference_mode():
    cost = leaf(randn(3, 4, seed=0))
    with torch.inference_mode():
        assert not assign(cost).requires_grad
        assert not entropy(cost.softmax(-1), normalized=True).requires_grad
        assert not pairwise_cost(cost, cost).requires_grad


@pytest.mark.parametrize("name", OPS)
def test_nothing_requires_grad_unasked(name):
    t = OPS[name](*problem(2, 3, 4, seed=0))
    assert not any(x.requires_grad for x in t)


# torch.func


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_vmap(name, masked):
    inputs = problem(2, 3, 4, seed=0)
    masks = {"slot_mask": SLOT_MASK, "input_mask": INPUT_MASK} if masked else {}
    if masked:
        inputs = inputs[:1]
    actual = torch.vmap(lambda args, masks: OPS[name](*args, **masks))(inputs, masks)
    same(actual, OPS[name](*inputs, **masks), 1e-13)


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_functional_gradients(name):
    inputs = problem(2, 3, 4, seed=0)
    weights = randn(3, 4, seed=5)

    def loss(cost, a, b):
        return (OPS[name](cost, a, b).plan * weights).sum()

    leaves = [leaf(x) for x in inputs]
    total = (OPS[name](*leaves).plan * weights).sum()
    expected = torch.autograd.grad(total, leaves)
    each = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*inputs)
    for x, y in zip(each, expected, strict=True):
        close(x, y, 1e-12)
    one = torch.func.grad(loss, argnums=(0, 1, 2))(*(x[0] for x in inputs))
    for x, y in zip(one, expected, strict=True):
        close(x, y[0], 1e-12)


def test_functional_gradient_of_the_exact_optimum():
    cost, a, b = problem(3, 4, seed=0)
    gradient = torch.func.grad(lambda c: (emd(c, a, b).plan * c).sum())(cost)
    close(gradient, emd(cost, a, b).plan, 1e-14)


@pytest.mark.parametrize("grad", ["unroll", "implicit"])
def test_jacobian(grad):
    """Rows of the Jacobian come out of a vmap over the backward pass."""
    cost, a, b = problem(2, 3, seed=0)
    jacobian = torch.func.jacrev(lambda c: sinkhorn(c, a, b, n_iters=200, grad=grad).plan)(cost)
    assert jacobian.shape == (2, 3, 2, 3)
    expected = torch.autograd.functional.jacobian(
        lambda c: sinkhorn(c, a, b, n_iters=200).plan, cost
    )
    close(jacobian, expected, 1e-9)


def test_random_noise_inside_vmap():
    cost = torch.zeros(3, 4, 4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plans = torch.vmap(lambda c: mesh(c).plan, randomness="different")(cost)
        assert not torch.allclose(plans[0], plans[1], atol=1e-3)
        plans = torch.vmap(lambda c: mesh(c).plan, randomness="same")(cost)
        assert torch.allclose(plans[0], plans[1], atol=1e-3)


# torch.compile


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def check_compiled(run, inputs, backend, atol):
    """Values and gradients of the compiled function are those of the function."""
    compiled = torch.compile(run, fullgraph=True, backend=backend)
    found = []
    for function in (run, compiled):
        leaves = [leaf(x) for x in inputs]
        t = function(*leaves)
        found.append((*t, *(gradients(t.plan, leaves) if t.plan.requires_grad else ())))
    for eager, traced in zip(*found, strict=True):
        assert eager.dtype == traced.dtype
        close(traced, eager, atol)


# torch makes an instance of every autograd function it traces, and warns of that.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", OPS)
def test_compiles_as_one_graph(name, long: bool):
    if name in MIXED and not long:
        pytest.skip("in make soak")

    def run(cost, a, b):
        return OPS[name](cost, a, b)

    check_compiled(run, problem(2, 3, 4, seed=0), "aot_eager", 1e-12)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["sinkhorn tol", "mesh reuse straight_through", "emd"])
def test_compiles_with_masks(name):
    def run(cost):
        return OPS[name](cost, slot_mask=SLOT_MASK, input_mask=INPUT_MASK)

    check_compiled(run, [randn(2, 3, 4, seed=0)], "aot_eager", 1e-12)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_with_random_noise_and_learned_temperature():
    def run(cost, temperature):
        return mesh(cost, n_steps=1, n_iters=2, temperature=temperature, noise=0.5)

    inputs = [randn(2, 3, 4, seed=0), torch.tensor([0.5, 2.0], dtype=torch.float64)]
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = run(*inputs)
        torch.manual_seed(0)
        same(compiled(*inputs), expected, 1e-12)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_with_a_number_that_changes_as_temperature():
    """The default step follows it, also where the compiler turns it into a symbol."""

    def run(cost, temperature):
        return mesh(cost, n_steps=1, n_iters=2, temperature=temperature, noise=0.0)

    cost = randn(2, 3, 4, seed=0)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for temperature in (0.5, 2.0, 3.5):
        same(compiled(cost, temperature), run(cost, temperature), 1e-12)


@pytest.mark.usefixtures("fresh_compiler")
def test_other_operations_compile():
    cost = randn(2, 3, 4, seed=0)

    def run(cost):
        plan = cost.softmax(-1)
        return (
            assign(cost, slot_mask=SLOT_MASK),
            entropy(plan, normalized=True),
            *(pairwise_cost(cost, cost, kind) for kind in ("l2", "sqeuclidean", "cosine", "dot")),
        )

    for x, y in zip(
        torch.compile(run, fullgraph=True, backend="aot_eager")(cost), run(cost), strict=True
    ):
        close(x, y, 1e-13)


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="inductor needs a C++ compiler"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
def test_inductor(long: bool):
    def run(cost, a, b):
        return mesh(cost, a, b, n_steps=1, n_iters=1, noise=NOISE)

    # The C++ of the backward pass takes a while to compile.
    with torch.set_grad_enabled(long):
        check_compiled(run, problem(2, 3, 4, seed=0), "inductor", 1e-11)


# Tensors without values


def shapes_of(t):
    return [(x.shape, x.dtype) for x in t]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_meta_device(name, masked):
    """No value is ever read, so nothing waits for a GPU."""
    cost, a, b = problem(2, 3, 4, seed=0)
    kinds = {"slot_mask": SLOT_MASK, "input_mask": INPUT_MASK} if masked else {"a": a, "b": b}
    options = {"noise": NOISE.to("meta")} if name.startswith("mesh") else {}
    moved = {key: x.to("meta") for key, x in kinds.items()}
    tracked = cost.to("meta").requires_grad_()
    t = OPS[name](tracked, **moved, **options)
    assert all(x.is_meta for x in t)
    assert shapes_of(t) == shapes_of(OPS[name](cost, **kinds))
    if name != "emd":
        t.plan.sum().backward()
        assert tracked.grad.shape == cost.shape


def test_meta_device_of_the_other_operations():
    cost = randn(2, 3, 4, seed=0).to("meta")
    assert assign(cost, slot_mask=SLOT_MASK.to("meta")).shape == (2, 3)
    assert entropy(cost, normalized=True).shape == (2,)
    assert pairwise_cost(cost, cost).shape == (2, 3, 3)
    assert mesh(cost, temperature=torch.ones(2, device="meta")).plan.is_meta
    t = sinkhorn(cost)
    assert sinkhorn(cost, init=(t.u, t.v), tol=1e-3).converged.is_meta


@pytest.mark.parametrize("name", OPS)
def test_fake_tensors(name):
    inputs = problem(2, 3, 4, seed=0)
    with FakeTensorMode() as mode:
        options = {"noise": mode.from_tensor(NOISE)} if name.startswith("mesh") else {}
        t = OPS[name](*(mode.from_tensor(x) for x in inputs), **options)
    assert shapes_of(t) == shapes_of(OPS[name](*inputs))


# The operators torch sees


def test_opcheck_of_exact_transport():
    cost, a, b = problem(2, 3, 4, seed=0)
    torch.library.opcheck(emd_batch, (cost, a, b, "auto"))


@pytest.mark.parametrize("maximize", [False, True])
def test_opcheck_of_assignment(maximize):
    cost = randn(2, 3, 4, seed=0)
    torch.library.opcheck(assign_batch, (cost, SLOT_MASK, INPUT_MASK, maximize, "auto"))
