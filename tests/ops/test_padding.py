"""Padding, partners in the batch and elements without mass change nothing."""

from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from slotmesh.ops import Transport, assign, emd, mesh, sinkhorn

from ._reference import close, generator, gradients, leaf, problem, randn

OPS = {
    "sinkhorn": partial(sinkhorn, n_iters=4, temperature=0.7),
    "sinkhorn tol": partial(sinkhorn, n_iters=30, tol=1e-4),
    "sinkhorn implicit": partial(sinkhorn, n_iters=30, grad="implicit"),
    "sinkhorn implicit tol": partial(sinkhorn, n_iters=30, tol=1e-4, grad="implicit"),
    "mesh lr": partial(mesh, lr=1.0, n_iters=3),
    "mesh step": partial(mesh, step=0.2, n_iters=3, potentials="reuse", temperature=0.7),
    "mesh fresh": partial(mesh, lr=1.0, n_iters=3, potentials="fresh"),
    "mesh implicit": partial(mesh, lr=1.0, n_iters=9, grad="implicit"),
    "mesh unroll": partial(mesh, lr=1.0, n_steps=2, n_iters=3, grad="unroll"),
    "mesh unroll step": partial(
        mesh, step=0.2, n_steps=2, n_iters=3, potentials="reuse", grad="unroll"
    ),
    "emd": emd,
}
GARBAGE = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 0.0], dtype=torch.float64)

seeds = st.integers(0, 10**6)
real_sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))


def garbage(*shape, seed):
    return GARBAGE[torch.randint(len(GARBAGE), shape, generator=generator(seed))]


def positions(real, size, seed):
    """Where the real elements lie: anywhere, in their order."""
    return torch.randperm(size, generator=generator(seed))[:real].sort().values


class Padded:
    """Problems of different sizes, scattered into one batch of garbage."""

    def __init__(self, sizes, extra, seed, empty=False):
        self.sizes, batch = sizes, len(sizes)
        m, n = (max(s[k] for s in sizes) + extra[k] for k in (0, 1))
        self.cost, self.noise = (garbage(batch, m, n, seed=seed + k) for k in (0, 1))
        self.a, self.b = garbage(batch, m, seed=seed + 2), garbage(batch, n, seed=seed + 3)
        self.slot_mask = torch.zeros(batch, m, dtype=torch.bool)
        self.input_mask = torch.zeros(batch, n, dtype=torch.bool)
        self.where, self.alone = [], []
        for i, size in enumerate(sizes):
            cost, a, b = problem(*size, seed=seed + i)
            if empty:  # real all the same: not to be confused with padding
                # Two elements keep mass: with one there is nothing to decide, and MESH follows
                # the rounding of a gradient that should be zero.
                a[2:], b[2:] = 0.0, 0.0
                b = b * (a.sum() / b.sum())
            noise = 1e-2 * randn(*size, seed=seed + i + 99)
            slots, inputs = (positions(size[k], (m, n)[k], seed + i + k) for k in (0, 1))
            block = (torch.tensor(i), slots[:, None], inputs)
            self.cost[block], self.noise[block] = cost, noise
            self.a[i, slots], self.b[i, inputs] = a, b
            self.slot_mask[i, slots] = self.input_mask[i, inputs] = True
            self.where.append((slots, inputs))
            self.alone.append((cost, a, b, noise))

    @property
    def masks(self):
        return {"slot_mask": self.slot_mask, "input_mask": self.input_mask}


def run(name, cost, a, b, noise, **masks):
    options = {"noise": noise} if name.startswith("mesh") else {}
    return OPS[name](cost, a, b, **options, **masks)


@given(
    sizes=st.tuples(real_sizes, real_sizes),
    extra=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    seed=seeds,
    with_marginals=st.booleans(),
    empty=st.booleans(),
)
@pytest.mark.parametrize("name", OPS)
def test_padding_changes_nothing(name, sizes, extra, seed, with_marginals, empty):
    """Values and gradients of each problem are those of the problem alone, without padding."""
    padded = Padded(sizes, extra, seed, empty)
    count = 3 if with_marginals else 1
    leaves = [leaf(x) for x in (padded.cost, padded.a, padded.b)[:count]]
    a, b = leaves[1:] if with_marginals else (None, None)
    t = run(name, leaves[0], a, b, padded.noise, **padded.masks)
    real = padded.slot_mask[..., None] & padded.input_mask[:, None]
    assert not t.plan[~real].any()

    weights = randn(*t.plan.shape, seed=seed)
    found = torch.autograd.grad((t.plan * weights).sum(), leaves) if t.plan.requires_grad else None
    for i, (slots, inputs) in enumerate(padded.where):
        alone = [leaf(x) for x in padded.alone[i][:count]]
        a, b = alone[1:] if with_marginals else (None, None)
        expected = run(name, alone[0], a, b, padded.alone[i][3])
        block = (slots[:, None], inputs)
        close(t.plan[i][block], expected.plan, 1e-11)
        close(t.u[i][slots], expected.u, 1e-9)
        close(t.v[i][inputs], expected.v, 1e-9)
        close(t.cost[i][block], expected.cost, 1e-11)
        close(t.marginal_error[i], expected.marginal_error, 1e-12)
        assert t.n_iters[i] == expected.n_iters
        assert t.converged[i] == expected.converged
        if found is None:
            continue
        wanted = torch.autograd.grad((expected.plan * weights[i][block]).sum(), alone)
        for whole, part, place in zip(found, wanted, (block, slots, inputs), strict=False):
            close(whole[i][place], part, 1e-8)
    if found is not None:
        for gradient, mask in zip(found, (real, padded.slot_mask, padded.input_mask), strict=False):
            assert not gradient[~mask].any()


@given(sizes=st.tuples(real_sizes, real_sizes), seed=seeds, maximize=st.booleans())
def test_padding_changes_no_assignment(sizes, seed, maximize):
    padded = Padded(sizes, (1, 1), seed)
    partner = assign(padded.cost, maximize=maximize, **padded.masks)
    for i, (slots, inputs) in enumerate(padded.where):
        small = assign(padded.alone[i][0], maximize=maximize)
        expected = torch.where(small >= 0, inputs[small], -1)
        assert partner[i][slots].tolist() == expected.tolist()
        assert (partner[i][~padded.slot_mask[i]] == -1).all()


@given(sizes=st.tuples(real_sizes, real_sizes), seed=seeds)
def test_padding_of_a_start_changes_nothing(sizes, seed):
    padded = Padded(sizes, (1, 1), seed)
    starts = [(randn(m, seed=seed + m), randn(n, seed=seed)) for m, n in sizes]
    u, v = garbage(*padded.a.shape, seed=seed), garbage(*padded.b.shape, seed=seed)
    for i, (slots, inputs) in enumerate(padded.where):
        u[i, slots], v[i, inputs] = starts[i]
    plan = sinkhorn(padded.cost, init=(u, v), n_iters=2, **padded.masks).plan
    for i, (slots, inputs) in enumerate(padded.where):
        alone = sinkhorn(padded.alone[i][0], init=starts[i], n_iters=2).plan
        close(plan[i][slots[:, None], inputs], alone, 1e-12)


def test_padding_does_not_bound_the_duals_of_elements_without_mass():
    cost, a, b = problem(3, 4, seed=0)
    # Expensive, so that their potentials are far above the zeros that padding is replaced by.
    cost[:, 3] += 100
    cost[2] += 100
    a[2], b[3] = 0.0, 0.0
    b = b * (a.sum() / b.sum())
    expected = emd(cost, a, b)
    assert expected.u[2] > 50 < expected.v[3]
    padded = [pad(cost, (0, 1, 0, 1)), pad(a, (0, 1)), pad(b, (0, 1))]
    masks = {"slot_mask": torch.arange(4) < 3, "input_mask": torch.arange(5) < 4}
    t = emd(*padded, **masks)
    close(t.u[:3], expected.u, 1e-12)
    close(t.v[:4], expected.v, 1e-12)
    assert t.u[3] == t.v[4] == 0


def test_one_mask_alone_is_enough():
    cost = randn(3, 4, seed=0)
    slot_mask, input_mask = torch.tensor([True, False, True]), torch.tensor([True] * 3 + [False])
    for name, op in OPS.items():
        if name.startswith("mesh"):
            op = partial(op, noise=0.0)
        close(op(cost, slot_mask=slot_mask).plan[slot_mask], op(cost[slot_mask]).plan, 1e-11)
        actual = op(cost, input_mask=input_mask).plan[:, input_mask]
        close(actual, op(cost[:, input_mask]).plan, 1e-11)


# Partners


@pytest.mark.parametrize("name", OPS)
def test_partners_change_nothing(name):
    cost, a, b = problem(3, 4, 5, seed=0)
    noise = 1e-2 * randn(3, 4, 5, seed=1)
    found = []
    for factor, power in ((1.0, 1.0), (1e6, 3.0)):
        other = [x.clone() for x in (cost, a, b)]
        other[0][1:] *= factor
        for x in other[1:]:
            x[1:] = 7 * x[1:] ** power / (x[1:] ** power).sum(-1, keepdim=True)
        leaves = [leaf(x) for x in other]
        t = run(name, *leaves, noise)
        first = Transport(*(x[0] for x in t))
        found.append(
            (*first, *(g[0] for g in gradients(first.plan, leaves)))
            if t.plan.requires_grad
            else first
        )
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


# Elements without mass


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    ("dtype", "tiny"),
    [
        (torch.float64, 0.0),
        (torch.float64, 1e-310),
        (torch.float64, 1e-40),
        (torch.float32, 0.0),
        (torch.float32, 1e-42),
        (torch.float32, 2e-38),
    ],
)
@settings(max_examples=settings().max_examples // 3)
@example(seed=329, side="a", scale=1e20)
@given(seed=seeds, side=st.sampled_from(["a", "b", "both"]), scale=st.sampled_from([1.0, 1e20]))
def test_no_mass(name, dtype, tiny, seed, side, scale):
    """Nothing for who has nothing, and finite gradients for all, however hard the costs."""
    cost, a, b = problem(4, 5, seed=seed, dtype=dtype)
    cost = scale * cost
    if side != "b":
        a[[0, 2]] = tiny
    if side != "a":
        b[[1, 4]] = tiny
    b = b * (a.sum() / b.sum())
    leaves = [leaf(x) for x in (cost, a, b)]
    t = run(name, *leaves, 1e-2 * randn(4, 5, seed=seed, dtype=dtype))
    assert t.plan.isfinite().all()
    # Exactly nothing for zero; tiny masses may have been scaled with the rest of b.
    if side != "b":
        assert t.plan[[0, 2]].sum() <= 100 * tiny
    if side != "a":
        assert t.plan[:, [1, 4]].sum() <= 100 * tiny
    if t.plan.requires_grad:
        for gradient in gradients(t.plan, leaves):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("name", OPS)
def test_no_mass_at_all(name):
    """One element without any mass beside an ordinary one."""
    cost, a, b = problem(2, 3, 4, seed=0)
    a[0], b[0] = 0.0, 0.0
    leaves = [leaf(x) for x in (cost, a, b)]
    noise = 1e-2 * randn(2, 3, 4, seed=1)
    t = run(name, *leaves, noise)
    assert not t.plan[0].any()
    close(t.plan[1], run(name, cost[1], a[1], b[1], noise[1]).plan, 1e-12)
    if t.plan.requires_grad:
        for gradient in gradients(t.plan, leaves):
            assert gradient.isfinite().all()


def test_gradient_by_the_mass_of_an_empty_slot():
    """A slot without mass still says what it would take, were it given some."""
    cost, a, b = problem(3, 4, seed=0)
    a[0] = 0.0
    b = b * (a.sum() / b.sum())
    mass = leaf(a)
    actual = gradients(sinkhorn(cost, mass, b, n_iters=3).plan, [mass])[0]
    step = 1e-7
    more = a.clone()
    more[0] += step
    weights = randn(3, 4, seed=104729)
    difference = sinkhorn(cost, more, b, n_iters=3).plan - sinkhorn(cost, a, b, n_iters=3).plan
    # Its own row only: the other rows feel it through a logarithm, which has no slope at zero.
    close(actual[0], (weights[0] * difference[0]).sum() / step, 1e-6)
