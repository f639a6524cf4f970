"""Half precision, autocast, and costs of any size."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.ops import assign, emd, mesh, sinkhorn

from ._reference import close, generator, gradients, leaf, masses, numpy_sinkhorn, randn

OPS = {
    "sinkhorn": sinkhorn,
    "sinkhorn tol": partial(sinkhorn, n_iters=10, tol=1e-3),
    "sinkhorn implicit": partial(sinkhorn, n_iters=10, grad="implicit"),
    "mesh": mesh,
    "mesh reuse": partial(mesh, potentials="reuse", step=0.05),
    "mesh fresh": partial(mesh, potentials="fresh"),
    "mesh unroll": partial(mesh, grad="unroll"),
    "mesh reuse unroll": partial(mesh, potentials="reuse", grad="unroll", step=0.05),
    "emd": emd,
}
HALVES = [torch.float16, torch.bfloat16]
sizes = st.integers(1, 5)
seeds = st.integers(0, 10**6)


def run(name, cost, *marginals, seed=0, **options):
    if name.startswith("mesh"):
        options["noise"] = 1e-3 * randn(*cost.shape[-2:], seed=seed + 1, dtype=torch.float32)
    return OPS[name](cost, *marginals, **options)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", HALVES)
@given(m=sizes, n=sizes, seed=seeds, with_marginals=st.booleans())
def test_half_precision_is_computed_in_float32(name, dtype, m, n, seed, with_marginals):
    cost = leaf(3 * randn(2, m, n, seed=seed, dtype=dtype))
    wide = leaf(cost.float())
    marginals = []
    if with_marginals:
        marginals = [masses(2, k, seed=seed, total=m, dtype=torch.float32) for k in (m, n)]
    t, expected = run(name, cost, *marginals), run(name, wide, *marginals)
    assert t.plan.dtype == dtype
    assert torch.equal(t.plan, expected.plan.to(dtype))
    assert t.u.dtype == t.v.dtype == t.marginal_error.dtype == torch.float32
    for x, y in zip(t[1:], expected[1:], strict=True):
        assert torch.equal(x.float(), y.float())
    if t.plan.requires_grad:
        weights = randn(2, m, n, seed=seed + 2, dtype=dtype)
        (gradient,) = torch.autograd.grad((t.plan * weights).sum(), cost)
        (wanted,) = torch.autograd.grad((expected.plan * weights.float()).sum(), wide)
        assert gradient.dtype == dtype
        assert torch.equal(gradient, wanted.to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_marginals_and_temperature(dtype):
    cost = randn(3, 4, seed=0, dtype=torch.float32)
    a, b = (masses(k, seed=k, total=3, dtype=dtype) for k in (3, 4))
    temperature = torch.tensor(0.5, dtype=dtype)
    plan = sinkhorn(cost, a, b, temperature=temperature).plan
    assert plan.dtype == torch.float32
    # Rounded to half precision, their totals differ by a percent: that is no mistake of a caller.
    close(plan, numpy_sinkhorn(cost, a.float(), b.float(), 5, 0.5)[0], 1e-5)


def test_float64_stays_float64():
    cost = randn(3, 4, seed=0)
    a = masses(3, seed=0, total=3.0, dtype=torch.float32)
    for name in OPS:
        t = run(name, cost, a)
        assert t.plan.dtype == t.u.dtype == t.v.dtype == t.marginal_error.dtype == torch.float64


@pytest.mark.parametrize("name", OPS)
def test_autocast_changes_nothing(name):
    """Neither forward nor backward, where a matrix product would be rounded to bfloat16."""
    cost, a = randn(2, 3, 4, seed=0, dtype=torch.float32), masses(2, 3, seed=0, total=3.0)
    found = []
    for enabled in (False, True):
        leaves = [leaf(cost), leaf(a.float())]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            t = run(name, *leaves)
            found.append((*t, *(gradients(t.plan, leaves) if t.plan.requires_grad else ())))
    for x, y in zip(*found, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


def test_autocast_does_not_round_the_objective():
    class Products:
        """Needs a matrix product, as the similarity objective does."""

        def derivative(self, plan):
            return plan @ (plan.mT @ plan)

    cost, noise = (randn(3, 4, seed=s, dtype=torch.float32) for s in (0, 1))
    expected = mesh(cost, noise=noise, objective=Products()).plan
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mesh(cost, noise=noise, objective=Products()).plan, expected)


# Any size of costs, any shape


def costs(m, n, seed, scale):
    """From 1e-20 to 1e20; "mixed" has all of these in one matrix, with both signs."""
    cost = randn(2, m, n, seed=seed)
    if scale == "mixed":
        exponent = torch.empty(2, m, n).uniform_(-20, 20, generator=generator(seed + 1))
        return cost.sign() * 10.0**exponent
    if scale == "equal":
        return torch.full((2, m, n), float(cost[0, 0, 0]))
    return scale * cost


@pytest.mark.parametrize("name", OPS)
@given(
    m=sizes,
    n=sizes,
    seed=seeds,
    scale=st.sampled_from([1e-20, 1e-6, 1.0, 1e3, 1e8, 1e20, "mixed", "equal"]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    with_marginals=st.booleans(),
)
def test_values_and_gradients_are_finite(name, m, n, seed, scale, dtype, with_marginals):
    if dtype == torch.float16 and scale in (1e8, 1e20, "mixed"):
        dtype = torch.float32  # these costs do not exist in float16
    leaves = [leaf(costs(m, n, seed, scale).to(dtype))]
    if with_marginals:
        # Softmaxes of large logits: masses from about 1 down to 1e-20.
        leaves += [leaf(m * (15 * randn(2, k, seed=seed + k)).softmax(-1)) for k in (m, n)]
    t = run(name, *leaves, seed=seed)
    assert t.plan.dtype == dtype
    for x in (t.plan, t.marginal_error, t.entropy(normalized=True)):
        assert x.isfinite().all()
    assert (t.plan >= 0).all()
    total = torch.ones(2, m) if len(leaves) == 1 else leaves[1]
    close(t.plan.float().sum(-1), total.float(), 0.05 if dtype in HALVES else 1e-4)
    if t.plan.requires_grad:
        for x, gradient in zip(leaves, gradients(t.plan, leaves, seed), strict=True):
            assert gradient.shape == x.shape
            assert gradient.isfinite().all()


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_extreme_costs_are_still_solved(scale):
    """Tiny costs are all equal to Sinkhorn; huge ones are a hard assignment."""
    cost = scale * (1 - torch.eye(3, dtype=torch.float64))
    plan = torch.eye(3) if scale > 1 else torch.full((3, 3), 1 / 3)
    close(sinkhorn(cost, n_iters=20).plan, plan, 1e-7)
    close(emd(cost).plan, torch.eye(3), 1e-12)
    assert assign(cost).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", [name for name in OPS if name != "emd"])
@pytest.mark.parametrize("m", [1, 3])
def test_an_image_of_inputs(name, m):
    n = 65_536
    cost = leaf(randn(m, n, seed=0, dtype=torch.float32))
    t = run(name, cost)
    close(t.plan.sum(-1), torch.ones(m), 1e-4)
    (gradient,) = gradients(t.plan, [cost])
    assert gradient.isfinite().all()
    assert m == 1 or gradient.any()
