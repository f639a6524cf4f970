"""The default step, which breaks exact ties at every size, and gradients that are what they say."""

import pytest
import torch

from slotmesh import emd, mesh, sinkhorn
from slotmesh.nn import Mesh

SIZES = [
    *((2, 2), (4, 4), (16, 16), (64, 64), (256, 256)),
    *((7, 196), (6, 4096), (11, 1024), (11, 4096), (64, 1024)),
]


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_exact_ties_break_and_marginals_hold(m: int, n: int) -> None:
    batch = 32 if m * n < 1000 else 4
    t = mesh(torch.ones(batch, m, n), generator=torch.Generator().manual_seed(0))
    assert sinkhorn(torch.ones(m, n)).entropy(normalized=True) > 0.99
    assert t.entropy(normalized=True).mean() < 0.05
    sums = t.plan.sum(-2) * n / m
    assert sums.min() > 0.85
    assert sums.max() < 1.15
    assert t.marginal_error.max() < 0.05


@pytest.mark.parametrize(("m", "n"), [(4, 16), (16, 4), (3, 9), (20, 10), (40, 10), (2, 3), (5, 3)])
def test_ties_of_a_few_inputs_per_slot(m: int, n: int) -> None:
    """What is left is little more than exact transport has, where slots have to share inputs."""
    left = mesh(torch.ones(128, m, n), generator=torch.Generator().manual_seed(0))
    exact = emd(torch.rand(128, m, n, generator=torch.Generator().manual_seed(1)))
    found, least = (t.entropy(normalized=True).mean() for t in (left, exact))
    assert found - least < 0.11 * (1 - least) + 0.02


@pytest.mark.parametrize(
    ("m", "n"), [(2, 4), (2, 8), (4, 16), (8, 32), (64, 128), (8, 4), (16, 4), (20, 10), (40, 10)]
)
def test_ties_of_two_to_four_inputs_per_slot_as_the_docs_say(m: int, n: int) -> None:
    """On average over the noise; single draws leave more."""
    tie = torch.ones(256, m, n)
    t = mesh(tie, generator=torch.Generator().manual_seed(0))
    assert t.entropy(normalized=True).mean() < 0.1


def test_a_step_has_the_unit_of_the_cost() -> None:
    """A cost, a step, noise and a temperature that are all 8 times as large: the same plan."""
    rng = torch.Generator().manual_seed(0)
    cost, noise = (torch.rand(3, 4, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    expected = mesh(cost, noise=0.1 * noise, n_steps=2, step=0.3)
    found = mesh(8 * cost, noise=0.8 * noise, n_steps=2, step=2.4, temperature=8.0)
    torch.testing.assert_close(found.plan, expected.plan, rtol=0, atol=1e-9)


TEMPERATURES = [0.01, 0.1, 1.0, 10.0, 100.0]


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize(("m", "n"), [(2, 2), (4, 4), (16, 16), (64, 64), (6, 1024)])
def test_exact_ties_break_at_every_temperature(m: int, n: int, backend: str) -> None:
    """A number, or one temperature per batch element."""
    batch = 32 if m * n < 1000 else 4
    tie = torch.ones(batch, m, n)
    for temperature in TEMPERATURES:
        rng = torch.Generator().manual_seed(0)
        t = mesh(tie, temperature=temperature, generator=rng, backend=backend)
        assert t.entropy(normalized=True).mean() < 0.1
        assert t.marginal_error.max() < 0.05
    ties, rng = torch.ones(5, batch, m, n), torch.Generator().manual_seed(0)
    t = mesh(ties, temperature=torch.tensor(TEMPERATURES)[:, None], generator=rng, backend=backend)
    assert (t.entropy(normalized=True).mean(1) < 0.1).all()
    assert t.marginal_error.max() < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("grad", ["straight_through", "implicit", "unroll"])
def test_the_unit_of_the_cost_does_not_matter(grad: str, masked: bool, dtype: torch.dtype) -> None:
    """Costs, noise and temperature in another unit: the same plan. Powers of two round nothing."""
    rng = torch.Generator().manual_seed(0)
    cost, noise = (torch.rand(3, 4, 30, generator=rng, dtype=dtype) for _ in range(2))
    options = {"n_steps": 2, "grad": grad}
    if masked:
        options["input_mask"] = torch.arange(30) < torch.tensor([[30], [20], [10]])
    expected = mesh(cost, noise=noise, **options)
    for units in (8.0, 2**-6, torch.tensor(0.25), torch.tensor([0.5, 4.0, 64.0])):
        factor = units[..., None, None] if isinstance(units, torch.Tensor) else units
        found = mesh(factor * cost, noise=factor * noise, temperature=units, **options)
        tol = 1e-9 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(found.plan, expected.plan, rtol=0, atol=tol)
        torch.testing.assert_close(found.cost / factor, expected.cost, rtol=0, atol=10 * tol)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_given_step_is_in_the_unit_of_the_cost(kind) -> None:
    cost = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    for options in ({"step": 0.1}, {"lr": 0.1 * 15**0.5}):
        t = mesh(cost, noise=0.0, n_steps=1, temperature=kind(4.0), **options)
        change = (t.cost - cost).square().mean().sqrt()
        torch.testing.assert_close(change, torch.tensor(0.1), rtol=1e-3, atol=0)
    assert Mesh(temperature=4.0, step=0.1).step == 0.1
    assert Mesh(temperature=4.0, lr=0.1).step is None


@pytest.mark.parametrize("options", [{}, {"potentials": "fresh"}])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_unroll_is_exact_for_a_learned_temperature(shape: tuple[int, ...], options) -> None:
    """Finite differences: the default step grows with the temperature."""
    rng = torch.Generator().manual_seed(1)
    cost = torch.rand(2, 3, 4, dtype=torch.float64, generator=rng)
    noise = torch.arange(12, dtype=torch.float64).reshape(3, 4).cos() / 10
    temperature = torch.rand(shape, dtype=torch.float64, generator=rng) + 2.5

    def plan(x: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
        t = mesh(x, noise=noise, temperature=tau, n_steps=2, n_iters=5, grad="unroll", **options)
        return t.plan

    assert torch.autograd.gradcheck(plan, (cost.requires_grad_(), temperature.requires_grad_()))


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("grad", ["straight_through", "implicit"])
def test_steps_are_constants_for_other_gradients(grad: str, backend: str) -> None:
    """The gradient of a learned temperature is that of the last Sinkhorn of the adjusted cost."""
    rng = torch.Generator().manual_seed(0)
    cost = torch.rand(3, 20, generator=rng)
    options = {"noise": 0.0, "n_steps": 2, "potentials": "fresh", "backend": backend}
    grads = []
    for adjusted in (False, True):
        tau = torch.tensor(0.7, requires_grad=True)
        if adjusted:
            changed = mesh(cost, temperature=tau.detach(), **options).cost
            kind = "implicit" if grad == "implicit" else "unroll"
            plan = sinkhorn(changed, temperature=tau, grad=kind, backend=backend).plan
        else:
            plan = mesh(cost, temperature=tau, grad=grad, **options).plan
        grads.append(torch.autograd.grad(plan.square().sum(), tau)[0])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_a_temperature_for_each_element_of_vmap() -> None:
    rng = torch.Generator().manual_seed(0)
    cost, noise = (torch.rand(3, 4, 30, generator=rng) for _ in range(2))
    units = torch.tensor([0.2, 1.0, 5.0])

    def plan(x: torch.Tensor, n: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
        return mesh(x, noise=n, temperature=tau, n_steps=2).plan

    found = torch.func.vmap(plan)(cost, noise, units)
    expected = torch.stack([plan(*x) for x in zip(cost, noise, units.tolist(), strict=True)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    shared = torch.func.vmap(plan, in_dims=(0, 0, None))(cost, noise, units[0])
    torch.testing.assert_close(shared, plan(cost, noise, units[0]), rtol=0, atol=1e-4)


def test_function_and_module_have_the_same_default() -> None:
    assert Mesh(temperature=0.25).step == 0.25
    assert Mesh.from_config(Mesh(temperature=0.25).to_config()).step == 0.25
    module = Mesh()
    cost, noise = torch.rand(2, 3, 60), 1e-3 * torch.randn(3, 60)
    given = {"lr": module.lr, "step": module.step, "n_steps": module.n_steps}
    given |= {"n_iters": module.n_iters, "potentials": module.potentials, "grad": module.grad}
    expected = mesh(cost, noise=noise)
    for x, y in zip(mesh(cost, noise=noise, **given), expected, strict=True):
        assert torch.equal(x, y)
    again = Mesh.from_config(module.to_config())
    assert again.to_config() == module.to_config()


@pytest.mark.parametrize("make", [lambda **k: mesh(torch.ones(2, 2), **k), Mesh])
def test_two_kinds_of_step_are_an_error(make) -> None:
    with pytest.raises(ValueError, match=r"got both step=1.0 and lr=5.0. Pass either step or lr"):
        make(step=1.0, lr=5.0)


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("grad", ["straight_through", "implicit"])
def test_the_longer_last_sinkhorn_is_one_of_as_many_iterations(backend: str, grad: str) -> None:
    """Its gradient goes through all of its iterations, from the potentials of the steps."""
    dtype = torch.float64 if backend == "torch" else torch.float32
    cost = torch.rand(5, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))
    noise = torch.zeros(5, 7, dtype=dtype)
    found = []
    for default in (True, False):
        leaf = cost.clone().requires_grad_()
        if default:
            t = mesh(leaf, noise=noise, grad=grad, backend=backend)
            assert t.n_iters == 100
        else:
            start = mesh(cost, noise=noise, n_iters=5, n_steps=3, backend=backend)
            changed = leaf + (mesh(cost, noise=noise, n_iters=5, backend=backend).cost - cost)
            kind = "implicit" if grad == "implicit" else "unroll"
            t = sinkhorn(changed, n_iters=100, init=_last_start(cost, start), grad=kind)
        weight = torch.arange(35, dtype=dtype).reshape(5, 7).cos()
        found.append((t.plan.detach(), *torch.autograd.grad((t.plan * weight).sum(), leaf)))
    for x, y in zip(*found, strict=True):
        assert torch.allclose(x, y, atol=1e-5 if dtype == torch.float32 else 1e-10)


def _last_start(cost: torch.Tensor, before: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The potentials that the fourth step reached, from which the last Sinkhorn starts."""
    t = sinkhorn(before.cost, n_iters=5, init=_chain(cost, 3))
    return t.u, t.v


def _chain(cost: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The potentials that each step handed on to the next."""
    init = None
    for k in range(steps):
        at = mesh(cost, noise=torch.zeros_like(cost), n_iters=5, n_steps=k).cost
        t = sinkhorn(at, n_iters=5, init=init)
        init = (t.u, t.v)
    return init


def test_the_papers_step_keeps_the_papers_iterations() -> None:
    assert mesh(torch.ones(4, 4), lr=5.0).n_iters == 5
    assert mesh(torch.ones(4, 4), n_iters=7).n_iters == 7
    assert mesh(torch.ones(2, 9)).n_iters == 5


@pytest.mark.parametrize("options", [{}, {"potentials": "fresh"}, {"potentials": "reuse"}])
def test_unroll_is_exact(options) -> None:
    cost = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = torch.arange(12, dtype=torch.float64).reshape(3, 4).cos() / 10

    def plan(x: torch.Tensor) -> torch.Tensor:
        return mesh(x, noise=noise, step=0.3, n_steps=2, grad="unroll", **options).plan

    assert torch.autograd.gradcheck(plan, cost.requires_grad_())


@pytest.mark.parametrize("make", [lambda **k: mesh(torch.ones(2, 2), **k), Mesh])
def test_gradients_that_are_not_what_they_say_are_errors(make) -> None:
    with pytest.raises(ValueError, match=r"'detach' with grad='unroll', .* not be the exact"):
        make(grad="unroll", potentials="detach")
    with pytest.raises(ValueError, match=r"potentials is 'reuse', expected 'detach' with grad='tr"):
        make(grad="truncated", potentials="reuse")
    assert Mesh(grad="unroll").potentials == "reuse"
    assert Mesh(grad="truncated").potentials == "detach"


def test_saved_models_of_the_inexact_kind_stay_readable() -> None:
    config = Mesh().to_config() | {"grad": "unroll", "potentials": "detach"}
    assert Mesh.from_config(config).grad == "truncated"


def test_truncated_is_what_it_was() -> None:
    """The derivative of the steps without that of the potentials between them."""
    cost = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = torch.arange(12, dtype=torch.float64).reshape(3, 4).cos() / 10
    grads = []
    for grad in ("unroll", "truncated", "straight_through"):
        leaf = cost.clone().requires_grad_()
        plan = mesh(leaf, noise=noise, step=0.3, n_steps=2, n_iters=5, grad=grad).plan
        grads.append(torch.autograd.grad(plan.sin().sum(), leaf)[0])
    exact, truncated, straight = grads
    assert 1e-5 < (truncated - exact).abs().max() < (straight - exact).abs().max()


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 3), (3, 0)])
@pytest.mark.parametrize("op", [mesh, sinkhorn])
def test_no_rows_or_columns(op, shape) -> None:
    with pytest.raises(ValueError, match=r"expected .* with at least one row and one column"):
        op(torch.zeros(shape))


@pytest.mark.parametrize("op", [mesh, sinkhorn])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_no_batch_elements(op, backend) -> None:
    cost = torch.zeros(0, 3, 4, requires_grad=True)
    t = op(cost, backend=backend)
    assert t.plan.shape == (0, 3, 4)
    t.plan.sum().backward()
    assert cost.grad.shape == (0, 3, 4)


@pytest.mark.parametrize("op", [mesh, sinkhorn])
def test_tensors_on_the_cpu_have_no_kernel(op, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"'triton'.* cost is on cpu, .* need a CUDA device"):
        op(torch.zeros(3, 4), backend="triton")


def test_padding_does_not_change_what_counts_as_square():
    """A problem that is padded to a wider batch is solved as by itself."""
    rng = torch.Generator().manual_seed(0)
    pad = torch.nn.functional.pad
    cost, noise = 3 * torch.rand(50, 4, 8, generator=rng), torch.randn(50, 4, 8, generator=rng)
    alone = mesh(cost.double(), noise=1e-3 * noise.double())
    assert (alone.n_iters == 100).all()
    among = mesh(
        pad(cost.double(), (0, 32)),
        noise=1e-3 * pad(noise.double(), (0, 32)),
        input_mask=torch.arange(40) < torch.tensor([[8]] * 50),
    )
    torch.testing.assert_close(among.plan[..., :8], alone.plan, rtol=1e-6, atol=1e-9)
    assert (among.n_iters == 100).all()
    # Of one batch, each element as it is by itself.
    real = torch.arange(40) < torch.tensor([[8], [40]])
    mixed = mesh(torch.rand(2, 4, 40, generator=rng), input_mask=real)
    assert mixed.n_iters.tolist() == [100, 5]
    assert mesh(torch.rand(4, 40, generator=rng), input_mask=real[0]).n_iters == 100


def test_a_program_of_any_size():
    """An exported mesh with its default step."""

    class Layer(torch.nn.Module):
        def forward(self, cost: torch.Tensor) -> torch.Tensor:
            return mesh(cost, noise=0.0, n_steps=1, n_iters=2).plan

    size = {0: torch.export.Dim("b"), 2: torch.export.Dim("n", min=17, max=100)}
    rng = torch.Generator().manual_seed(0)
    example = torch.rand(3, 4, 20, generator=rng)
    program = torch.export.export(Layer(), (example,), dynamic_shapes=(size,)).module()
    for shape in ((3, 4, 20), (2, 4, 50)):
        cost = torch.rand(*shape, generator=rng)
        torch.testing.assert_close(program(cost), Layer()(cost), rtol=1e-4, atol=1e-5)
