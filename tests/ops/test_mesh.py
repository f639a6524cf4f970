"""MESH: against plain autograd, the paper's numbers and the paper's ties."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.ops import EntropyObjective, SimilarityObjective, emd, mesh, sinkhorn
from slotmesh.ops._naive import objective_gradient
from slotmesh.ops.problem import Given
from slotmesh.ops.problem import problem as checked_problem

from ._reference import (
    autograd_mesh,
    autograd_sinkhorn,
    close,
    generator,
    gradients,
    leaf,
    masses,
    plan_entropy,
    problem,
    randn,
)

POTENTIALS = ["detach", "reuse", "fresh"]
GRADS = ["straight_through", "unroll"]


class Squares:
    """A custom objective, sum of w P^2, and its value for autograd."""

    def __init__(self, weight):
        self.weight = weight

    def derivative(self, plan):
        return 2 * self.weight * plan

    def value(self, plan):
        return (self.weight * plan.square()).sum()


def similarity(m, n, seed):
    """The appendix's objective for one matrix, and its value for autograd."""
    s, reference = randn(m, m, seed=seed).softmax(0), randn(m, n, seed=seed + 1).softmax(1)

    def value(plan):
        return plan_entropy(plan) + 0.7 * (s.T @ plan - reference).square().sum()

    return SimilarityObjective(s, reference, alpha=0.7), value


def objectives(m, n, seed):
    custom = Squares(randn(m, n, seed=seed))
    return {
        "entropy": (None, plan_entropy),
        "similarity": similarity(m, n, seed),
        "custom": (custom, custom.value),
    }


@given(
    m=st.integers(2, 4),
    n=st.integers(2, 5),
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([1.0, 0.4, 2.5]),
    by_step=st.booleans(),
    objective=st.sampled_from(["entropy", "similarity", "custom"]),
)
@pytest.mark.parametrize("grad", GRADS)
@pytest.mark.parametrize("potentials", POTENTIALS)
def test_equals_plain_autograd(potentials, grad, m, n, seed, temperature, by_step, objective):
    """Values and gradients by cost, a, b and temperature, for every kind of MESH."""
    given_objective, value = objectives(m, n, seed)[objective]
    noise = 1e-1 * randn(m, n, seed=seed + 2)
    # Mild costs: of a nearly hard plan the inner gradient is small, and its direction rounded.
    cost, a, b = problem(m, n, seed=seed)
    cost = cost / 4
    found = []
    for reference in (False, True):
        leaves = [leaf(x) for x in (cost, a, b)]
        tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
        if reference:
            plan, changed = autograd_mesh(
                *leaves,
                noise,
                length=0.2 * math.sqrt(m * n) if by_step else 0.8,
                temperature=tau,
                potentials=potentials,
                unroll=grad == "unroll",
                objective=value,
            )
        else:
            t = mesh(
                *leaves,
                noise=noise,
                n_steps=3,
                n_iters=4,
                **({"step": 0.2} if by_step else {"lr": 0.8}),
                temperature=tau,
                potentials=potentials,
                grad="truncated" if (potentials, grad) == ("detach", "unroll") else grad,
                objective=given_objective,
            )
            plan, changed = t.plan, t.cost
        found.append((plan, changed, *gradients(plan, [*leaves, tau])))
    for ours, autograd in zip(*found, strict=True):
        close(ours, autograd, 1e-10)


def test_batch_elements_equal_plain_autograd():
    cost, a, b = problem(2, 3, 3, 4, seed=0)
    noise = 1e-2 * randn(2, 3, 3, 4, seed=1)
    t = mesh(cost, a, b, noise=noise, lr=2.0)
    for i, j in itertools.product(range(2), range(3)):
        plan, changed = autograd_mesh(
            leaf(cost[i, j]), a[i, j], b[i, j], noise[i, j], length=2.0, n_steps=4, n_iters=5
        )
        close(t.plan[i, j], plan, 1e-10)
        close(t.cost[i, j], changed, 1e-10)


@given(
    m=st.integers(1, 4),
    n=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    n_iters=st.integers(1, 4),
    objective=st.sampled_from(["entropy", "similarity", "custom"]),
)
def test_inner_gradient_equals_autograd(m, n, seed, n_iters, objective):
    given_objective, value = objectives(m, n, seed)[objective]
    cost, a, b = problem(m, n, seed=seed)
    u, kernel = randn(m, seed=seed + 1), leaf(-cost)
    actual, reached = objective_gradient(
        kernel.detach(),
        checked_problem(Given("mesh", cost, a, b)),
        u,
        n_iters,
        given_objective or EntropyObjective(),
    )
    plan, expected_u = autograd_sinkhorn(-kernel, a, b, u, n_iters, 1.0)
    close(actual, torch.autograd.grad(value(plan), kernel)[0], 1e-11)
    close(reached, expected_u, 1e-12)


@pytest.mark.parametrize("potentials", ["reuse", "fresh"])
def test_gradcheck_of_the_unrolled_descent(potentials):
    """Exact for cost, marginals, temperature and what the objective holds."""
    noise = 1e-2 * randn(2, 3, seed=9)

    def plan(cost, log_a, log_b, log_temperature, weight):
        a, b = 2 * log_a.softmax(-1), 2 * log_b.softmax(-1)
        t = mesh(
            cost,
            a,
            b,
            noise=noise,
            lr=0.5,
            n_steps=2,
            n_iters=2,
            temperature=log_temperature.exp(),
            potentials=potentials,
            grad="unroll",
            objective=Squares(weight),
        )
        return t.plan, t.cost, t.u, t.v

    shapes = [(2, 3), (2,), (3,), (), (2, 3)]
    inputs = [leaf(randn(*shape, seed=i)) for i, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(plan, inputs)


@pytest.mark.parametrize("potentials", ["reuse", "fresh"])
def test_gradcheck_of_the_unrolled_descent_on_the_entropy(potentials):
    noise = 1e-2 * randn(3, 2, seed=9)

    def plan(cost):
        return mesh(
            cost, noise=noise, lr=0.5, n_steps=2, n_iters=3, potentials=potentials, grad="unroll"
        ).plan

    assert torch.autograd.gradcheck(plan, [leaf(randn(3, 2, seed=0))])


def test_objective_learns_only_when_unrolled():
    cost, a, b = problem(3, 4, seed=0)
    weight = leaf(randn(3, 4, seed=1))
    plan = mesh(cost, a, b, objective=Squares(weight), grad="straight_through", noise=0.0).plan
    assert not plan.requires_grad
    plan = mesh(cost, a, b, objective=Squares(weight), grad="unroll", noise=0.0).plan
    assert gradients(plan, [weight])[0].abs().max() > 1e-6


def test_straight_through_memory_grows_only_with_reused_potentials():
    def kept(n_steps, potentials):
        entries = []

        def keep(x):
            entries.append(x.numel())
            return x

        cost = leaf(randn(3, 40, seed=0))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            mesh(cost, noise=0.0, n_steps=n_steps, potentials=potentials)
        return sum(entries)

    assert kept(2, "detach") == kept(8, "detach")
    assert kept(2, "fresh") == kept(8, "fresh")
    assert kept(2, "reuse") < kept(8, "reuse")


# What the descent does


def test_steps_have_the_asked_length():
    cost, a, b = problem(5, 3, 4, seed=0)
    by_lr = mesh(cost, a, b, lr=0.7, n_steps=1, noise=0.0).cost - cost
    close(by_lr.norm(dim=(-2, -1)), torch.full((5,), 0.7, dtype=torch.float64), 1e-12)
    by_step = mesh(cost, a, b, step=0.3, n_steps=1, noise=0.0).cost - cost
    close(by_step.square().mean((-2, -1)).sqrt(), torch.full((5,), 0.3, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("sides", ["slots", "inputs", "both"])
def test_step_counts_real_entries_only(sides):
    cost = randn(2, 4, 5, seed=0)
    slot_mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    input_mask = torch.tensor([[True, True, True, True, False], [True, False, True, True, False]])
    masks = {}
    real = torch.ones(2, 4, 5, dtype=torch.bool)
    if sides != "inputs":
        masks["slot_mask"] = slot_mask
        real = real & slot_mask[..., None]
    if sides != "slots":
        masks["input_mask"] = input_mask
        real = real & input_mask[:, None]
    change = mesh(cost, step=0.3, n_steps=1, noise=0.0, **masks).cost - cost * real
    assert not change[~real].any()
    for i in range(2):
        close(change[i][real[i]].square().mean().sqrt(), 0.3, 1e-12)


def test_a_small_step_lowers_the_objective():
    """The sign of the step: a plain Sinkhorn of the changed cost has less entropy."""
    cost, a, b = problem(8, 3, 5, seed=2)
    before = sinkhorn(cost, a, b).entropy()
    after = mesh(cost, a, b, lr=0.05, n_steps=1, noise=0.0, potentials="fresh").entropy()
    assert (after < before).all()


def test_without_steps_it_is_sinkhorn():
    cost, a, b = problem(2, 3, 4, seed=0)
    expected = sinkhorn(cost, a, b, n_iters=6, temperature=0.5)
    actual = mesh(cost, a, b, n_steps=0, n_iters=6, temperature=0.5, noise=0.0)
    for x, y in zip(actual, expected, strict=True):
        assert torch.equal(x, y)


def test_nothing_to_descend_on_changes_nothing():
    cost = torch.zeros(3, 3, dtype=torch.float64)
    t = mesh(cost, noise=0.0)
    close(t.plan, torch.full((3, 3), 1 / 3, dtype=torch.float64), 1e-15)
    one = mesh(torch.rand(1, 4), noise=0.0)
    close(one.plan, torch.full((1, 4), 0.25), 1e-7)


def test_the_result_describes_the_last_sinkhorn():
    cost, a, b = problem(2, 3, 4, seed=0)
    t = mesh(cost, a, b, n_iters=7, temperature=0.5, generator=generator(0))
    rebuilt = (t.u[..., None] + t.v[..., None, :] - t.cost / 0.5).exp()
    close(rebuilt, t.plan, 1e-12)
    close(t.plan.sum(-1), a, 1e-12)
    close(t.marginal_error, (t.plan.sum(-2) - b).abs().sum(-1) / b.sum(-1), 1e-13)
    assert t.n_iters.tolist() == [7, 7]
    assert torch.equal(t.converged, t.marginal_error <= 1e-3)


def test_warm_potentials_help_the_last_sinkhorn():
    cost, a, b = problem(20, 6, 9, seed=3)
    error = {
        p: mesh(cost, a, b, lr=5.0, n_iters=2, noise=0.0, potentials=p).marginal_error.mean()
        for p in ("detach", "fresh")
    }
    assert error["detach"] < 0.7 * error["fresh"]


# Noise


@pytest.mark.parametrize("potentials", POTENTIALS)
@pytest.mark.parametrize("objective", ["entropy", "custom"])
@pytest.mark.parametrize("m", [3, 4, 8])
def test_without_noise_equal_rows_stay_equal(m, potentials, objective):
    """Exactly, for MESH would make two decisions of a single rounding."""
    # Rows of whole vectors: functions of vectors may round the last few numbers differently.
    cost, weight = randn(2, m, 64, seed=m), randn(1, 64, seed=m + 1)
    cost[:, 1:] = cost[:, 1:2]
    t = mesh(
        cost,
        lr=5.0,
        noise=0.0,
        potentials=potentials,
        objective=None if objective == "entropy" else Squares(weight),
        backend="torch",
    )
    for x in (t.plan, t.u.unsqueeze(-1), t.cost):
        assert torch.equal(x[:, 1:], x[:, 1:2].expand_as(x[:, 1:]))
    assert (t.cost - cost).abs().max() > 0.1, "there is something else to decide"


def test_a_generator_repeats_the_result():
    cost = torch.zeros(4, 4)
    first, again, other = (mesh(cost, generator=generator(s)).plan for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_global_seed_repeats_the_result():
    cost = torch.zeros(4, 4)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first = mesh(cost).plan
        torch.manual_seed(3)
        assert torch.equal(mesh(cost).plan, first)
        assert not torch.equal(mesh(cost).plan, first)


def test_given_noise_is_the_drawn_noise():
    cost = randn(3, 4, seed=0)
    noise = 0.25 * torch.randn((3, 4), dtype=torch.float64, generator=generator(5))
    t = mesh(cost, noise=0.25, generator=generator(5))
    assert torch.equal(t.plan, mesh(cost, noise=noise).plan)
    close(mesh(cost, noise=noise, n_steps=0).cost, cost + noise, 0.0)


def test_given_noise_broadcasts():
    cost, noise = randn(2, 3, 4, seed=0), 1e-3 * randn(3, 4, seed=1)
    assert torch.equal(mesh(cost, noise=noise).plan, mesh(cost, noise=noise.expand(2, 3, 4)).plan)


def test_batch_elements_get_noise_of_their_own():
    plans = mesh(torch.zeros(2, 4, 4), generator=generator(0)).plan
    assert not torch.allclose(plans[0], plans[1], atol=1e-3)


# The paper's numbers


def drawn_entropies(lr):
    """The paper's H / (m log m) of a 10 x 10 zero cost, over many draws of the noise."""
    t = mesh(torch.zeros(200, 10, 10), lr=lr, generator=generator(0))
    return t.entropy() / (10 * math.log(10))


def test_entropy_of_a_zero_cost_at_the_learning_rates_of_the_paper():
    found = drawn_entropies(1.0)
    assert abs(found.mean() - 0.96) < 0.01
    assert found.min() < 0.966 < found.max()

    found = drawn_entropies(5.0)
    assert 0.25 < found.mean() < 0.33
    assert found.min() < 0.399 < found.max()
    assert ((found > 0.13) & (found < 0.43)).float().mean() > 0.95

    found = drawn_entropies(8.0)
    assert 0.045 < found.mean() < 0.08
    assert found.min() < 0.065 < found.max()


def test_entropy_falls_as_the_learning_rate_grows():
    means = [drawn_entropies(lr).mean() for lr in (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0)]
    assert all(later < earlier - 0.005 for earlier, later in itertools.pairwise(means))


# Ties


def test_two_equal_slots_and_inputs_are_told_apart():
    tie = torch.ones(50, 2, 2)
    assert (sinkhorn(tie).entropy(normalized=True) > 0.999).all()
    t = mesh(tie, generator=generator(0))
    assert (t.entropy(normalized=True) < 0.01).all()
    # The noise alone decides: both outcomes occur.
    assert 10 < t.plan[:, 0, 0].round().sum() < 40


def test_two_equal_slots_beside_a_different_one():
    """Inputs [x, x, y]: the slots of x share its copies, the slot of y keeps y."""
    cost = torch.tensor([[0.0, 0.0, 4.0], [0.0, 0.0, 4.0], [4.0, 4.0, 0.0]])
    for temperature in (1.0, 0.1, 0.01):
        plan = sinkhorn(cost, n_iters=100, temperature=temperature).plan
        close(plan[0], plan[1], 1e-6)
    close(plan[:2, :2], torch.full((2, 2), 0.5), 1e-6)

    t = mesh(cost.expand(50, 3, 3), lr=5.0, generator=generator(0))
    assert (t.entropy(normalized=True) < 0.01).all()
    assert (t.plan[:, 2, 2] > 0.99).all()
    assert 10 < t.plan[:, 0, 0].round().sum() < 40

    plan = emd(cost).plan
    assert sorted(plan.argmax(-1).tolist()) == [0, 1, 2]
    close(plan.sort(-1).values, torch.tensor([[0.0, 0.0, 1.0]]).expand(3, 3), 1e-12)


def test_what_is_not_tied_does_not_feel_the_noise():
    cost = 20 * (1 - torch.eye(3))
    plans = mesh(cost.expand(20, 3, 3), generator=generator(0)).plan
    close(plans, torch.eye(3).expand(20, 3, 3), 1e-4)


def test_similarity_keeps_slots_apart_that_differ():
    """With S = I the penalty pins the plan to the reference; with S uniform it does nothing."""
    cost = torch.zeros(2, 2, dtype=torch.float64)
    noise = 1e-3 * randn(2, 2, seed=0)
    half = torch.full((2, 2), 0.5, dtype=torch.float64)

    def run(similar):
        objective = SimilarityObjective(similar, half, alpha=10.0)
        return mesh(cost, noise=noise, lr=0.2, objective=objective).entropy(normalized=True)

    free = mesh(cost, noise=noise, lr=0.2).entropy(normalized=True)
    close(run(half), free, 1e-9)
    assert run(torch.eye(2, dtype=torch.float64)) > 0.97 > 0.9 > free


def test_unrolled_gradient_is_finite_where_the_plan_is_hard():
    """The inner gradient is all rounding there; its direction must not amplify gradients."""
    cost = leaf(torch.tensor([[4416.0, 4724.0], [1539.0, 2616.0]]))
    noise = 1e-3 * randn(2, 2, seed=0, dtype=torch.float32)
    for potentials in POTENTIALS:
        grad = "truncated" if potentials == "detach" else "unroll"
        plan = mesh(cost, lr=5.0, noise=noise, grad=grad, potentials=potentials).plan
        assert gradients(plan, [cost])[0].abs().max() < 1e-3


def test_marginals_may_be_uneven():
    a, b = masses(3, seed=0, total=2.0), masses(6, seed=1, total=2.0)
    t = mesh(torch.zeros(3, 6, dtype=torch.float64), a, b, lr=20.0, generator=generator(0))
    close(t.plan.sum(-1), a, 1e-12)
    assert t.entropy(normalized=True) < 0.2
