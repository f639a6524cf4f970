"""What MESH can make small instead of the entropy."""

import pytest
import torch

from slotmesh.nn import LearnedObjective, Mesh, MeshObjective, Sinkhorn, SlotSimilarity
from slotmesh.ops import EntropyObjective, SimilarityObjective, mesh, sinkhorn


def away_from_kinks(objective, *shape):
    """Plan entries in (0, 1.5) that are not where a hidden unit switches."""
    kinks = (-objective.bias / objective.in_weight).detach()
    p = 1.5 * torch.rand(*shape, dtype=torch.float64)
    near = (p.unsqueeze(-1) - kinks).abs().amin(-1) < 1e-3
    return torch.where(near, p + 2e-3, p)


def moved(objective):
    """Weights as after some learning: kinks are no longer sorted, two signs have changed."""
    with torch.no_grad():
        objective.in_weight.mul_(torch.empty_like(objective.in_weight).uniform_(0.3, 3.0))
        objective.in_weight[:2].neg_()
    return objective


@pytest.mark.parametrize("hidden_dim", [1, 5, 32])
@pytest.mark.parametrize("change", [lambda x: x, moved], ids=["fresh", "moved"])
def test_derivative_is_the_autograd_derivative_of_the_network(hidden_dim, change):
    objective = change(LearnedObjective(hidden_dim=hidden_dim).double())
    plan = away_from_kinks(objective, 20, 3, 7).requires_grad_()
    (expected,) = torch.autograd.grad(objective(plan).sum(), plan)
    torch.testing.assert_close(objective.derivative(plan), expected, rtol=0, atol=1e-13)
    assert hidden_dim == 1 or len(expected.unique()) > 3, "a step function of several steps"


def test_the_network_is_two_layers_of_relu():
    objective = moved(LearnedObjective(hidden_dim=5).double())
    p = torch.rand(4, dtype=torch.float64)
    network = torch.nn.Sequential(
        torch.nn.Linear(1, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1, bias=False)
    ).double()
    with torch.no_grad():
        network[0].weight.copy_(objective.in_weight[:, None])
        network[0].bias.copy_(objective.bias)
        network[2].weight.copy_(objective.out_weight[None])
    torch.testing.assert_close(objective(p), network(p[:, None])[:, 0], rtol=0, atol=1e-14)


def test_kinks_start_evenly_spread_over_the_unit_interval():
    objective = LearnedObjective(hidden_dim=4)
    kinks = -objective.bias / objective.in_weight.detach()
    torch.testing.assert_close(kinks, torch.tensor([0.125, 0.375, 0.625, 0.875]))
    assert objective.in_weight.detach().abs().min() >= 0.5


def test_gradients_by_the_weights_are_those_of_an_explicit_network():
    objective = moved(LearnedObjective(hidden_dim=6).double())
    plan = away_from_kinks(objective, 3, 4).requires_grad_()
    weight = torch.randn(3, 4, dtype=torch.float64)
    wrt = (objective.in_weight, objective.out_weight)
    (derivative,) = torch.autograd.grad(objective(plan).sum(), plan, create_graph=True)
    expected = torch.autograd.grad((derivative * weight).sum(), wrt)
    actual = torch.autograd.grad((objective.derivative(plan) * weight).sum(), wrt)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
    assert all(g.abs().max() > 1e-3 for g in actual)


def autograd_mesh(cost, objective, noise, lr, n_steps, n_iters):
    """MESH as the paper writes it, with autograd inside and a graph through the descent."""
    cost = cost + noise
    for _ in range(n_steps):
        plan = sinkhorn(cost, n_iters=n_iters).plan
        (grad,) = torch.autograd.grad(objective(plan).sum(), cost, create_graph=True)
        cost = cost - lr * grad / grad.square().sum((-2, -1), keepdim=True).sqrt()
    return sinkhorn(cost, n_iters=n_iters).plan


def test_unrolled_mesh_learns_the_objective_as_autograd_would():
    objective = moved(LearnedObjective(hidden_dim=6).double())
    cost = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    noise, weight = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(2))
    plan = mesh(
        cost,
        lr=0.7,
        n_steps=3,
        n_iters=4,
        noise=noise,
        objective=objective,
        grad="unroll",
        potentials="fresh",
    ).plan
    reference = autograd_mesh(cost, objective, noise, lr=0.7, n_steps=3, n_iters=4)
    torch.testing.assert_close(plan, reference, rtol=0, atol=1e-12)
    wrt = (objective.in_weight, objective.out_weight, cost)
    actual, expected = (torch.autograd.grad((p * weight).sum(), wrt) for p in (plan, reference))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)
    assert all(g.abs().max() > 1e-3 for g in actual)


def test_unrolled_mesh_learns_the_objective_by_finite_differences():
    objective = LearnedObjective(hidden_dim=6).double()
    cost = torch.rand(3, 4, dtype=torch.float64)

    start = objective.out_weight.detach().clone().requires_grad_()
    del objective.out_weight

    def plan(out_weight):
        objective.out_weight = out_weight
        settings = {"step": 0.3, "n_steps": 2, "noise": 0.0, "potentials": "fresh"}
        return mesh(cost, objective=objective, grad="unroll", **settings).plan

    assert torch.autograd.gradcheck(plan, start)


@pytest.mark.parametrize("make", [LearnedObjective, SlotSimilarity])
@pytest.mark.parametrize("implicit", [False, True])
def test_objectives_learn_with_unroll(make, implicit, build, draw):
    module = build(Mesh(objective=make(), grad="unroll"), implicit=implicit)
    module(draw(2)[0]).slots.square().sum().backward()
    names = [n for n, _ in module.named_parameters() if n.startswith("transport.objective")]
    assert len(names) >= 2
    for name, value in module.named_parameters():
        assert value.grad is not None, name
        assert value.grad.isfinite().all(), name
        assert value.grad.abs().max() > 0, name


@pytest.mark.parametrize("make", [LearnedObjective, SlotSimilarity])
def test_straight_through_and_trainable_do_not_go_together(make, build, draw):
    with pytest.raises(ValueError, match=rf"Mesh: a {make.__name__} gets no gradient.*'unroll'"):
        Mesh(objective=make())
    module = build(Mesh(objective=make(trainable=False)))
    module(draw(2)[0]).slots.square().sum().backward()
    objective = module.transport.objective
    assert objective.state_dict()
    assert all(not p.requires_grad and p.grad is None for p in objective.parameters())


def test_an_objective_that_is_not_trained_still_acts(build, draw):
    inputs, slots = draw(2)
    plain = build(Mesh(noise=0.0, step=0.5))(inputs, slots).slots
    for make in (LearnedObjective, SlotSimilarity):
        objective = make(trainable=False)
        changed = build(Mesh(noise=0.0, step=0.5, objective=objective))(inputs, slots).slots
        assert (changed - plain).abs().max() > 1e-3


def pairwise_network(similarity, slots):
    """g(z_i, z_j) on concatenated pairs, softmax over i, in loops."""
    first, second, score = (getattr(similarity, n) for n in ("first", "second", "score"))
    weight = torch.cat((first.weight, second.weight), 1)
    m = len(slots)
    s = torch.stack(
        [
            torch.stack(
                [
                    score.weight[0]
                    @ torch.relu(weight @ torch.cat((slots[i], slots[j])) + second.bias)
                    for j in range(m)
                ]
            )
            for i in range(m)
        ]
    )
    return s.exp() / s.exp().sum(0)


def test_similarities_are_a_network_over_pairs_whose_columns_sum_to_one():
    similarity = SlotSimilarity(hidden_dim=8).bind(slot_dim=5).double()
    slots = torch.randn(2, 4, 5, dtype=torch.float64)
    s = similarity(slots)
    assert s.shape == (2, 4, 4)
    torch.testing.assert_close(s.sum(-2), torch.ones(2, 4, dtype=torch.float64))
    expected = torch.stack([pairwise_network(similarity, one) for one in slots])
    torch.testing.assert_close(s, expected, rtol=0, atol=1e-14)
    assert (s - s.mT).abs().max() > 1e-3


def test_masked_slots_are_similar_to_nobody():
    similarity = SlotSimilarity(hidden_dim=8).bind(slot_dim=5).double()
    slots = torch.randn(2, 4, 5, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [False, True, False, True]])
    s = similarity(slots, mask)
    for i in range(2):
        real = s[i][mask[i]][:, mask[i]]
        torch.testing.assert_close(real, similarity(slots[i, mask[i]]), rtol=0, atol=1e-14)
        assert (s[i, ~mask[i]] == 0).all()
        assert (s[i, :, ~mask[i]] == 0).all()


def test_mesh_with_slot_similarity_is_the_operation_with_its_matrix(draw, close):
    transport = Mesh(objective=SlotSimilarity(alpha=0.7), grad="unroll", step=0.3)
    transport.bind(input_dim=6, slot_dim=5, hidden_dim=8).double()
    inputs, slots = draw(2)
    queries, keys = slots.flip(0), inputs[..., :5]
    scene = transport.begin(inputs, 3)
    attention, t = transport(queries, keys, slots, scene)
    cost, a = transport.pose(queries, keys, slots, scene)
    reference = sinkhorn(cost, a, scene.b).plan
    objective = SimilarityObjective(transport.objective(slots), reference, 0.7)
    expected = mesh(
        cost, a, scene.b, step=0.3, noise=scene.noise, objective=objective, grad="unroll"
    )
    close(attention, expected.plan)
    close(t.cost, expected.cost)


def test_similarity_keeps_the_dissimilar_slot_where_it_belongs():
    """The paper's [x, x, y] example, under noise so large that plain entropy loses the cost."""
    similarity = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    cost = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]).expand(400, 3, 3)
    objective = SimilarityObjective(similarity, sinkhorn(cost, n_iters=50).plan, 5.0)
    options = {"lr": 1.0, "n_steps": 20, "n_iters": 20, "noise": torch.randn(400, 3, 3)}
    kept, broken = {}, {}
    for name, choice in (("similarity", objective), ("entropy", None)):
        plan = mesh(cost, objective=choice, **options).plan
        kept[name] = (plan[:, 2].argmax(-1) == 2).double().mean().item()
        broken[name] = (plan[:, 0].argmax(-1) != plan[:, 1].argmax(-1)).double().mean().item()
    assert kept["similarity"] > 0.99
    assert 0.6 < kept["entropy"] < 0.9
    assert min(broken.values()) > 0.95, "ties among the similar slots are still broken"


def test_objectives_of_ones_own(build, draw, close):
    class Plain(MeshObjective):
        trainable = False

        def objective(self, slots, reference, slot_mask):
            self.seen = slots.shape, reference().shape, slot_mask
            return EntropyObjective()

    module, plain = build(Mesh(noise=0.0, objective=Plain())), build(Mesh(noise=0.0))
    inputs, slots = draw(2)
    close(module(inputs, slots).slots, plain(inputs, slots).slots, 0.0)
    assert module.transport.objective.seen == ((2, 3, 5), (2, 3, 7), None)


def test_the_reference_is_the_sinkhorn_plan_of_the_unchanged_cost(build, draw, close):
    class Recorder(MeshObjective):
        trainable = False

        def objective(self, slots, reference, slot_mask):
            self.plan = reference()
            return EntropyObjective()

    settings = {"n_iters": 4, "temperature": 0.7}
    module = build(Mesh(objective=Recorder(), noise=0.5, step=0.5, **settings), n_iters=1)
    soft = build(Sinkhorn(**settings), n_iters=1)
    soft.load_state_dict(module.state_dict())
    inputs, slots = draw(2)
    module(inputs, slots)
    close(module.transport.objective.plan, soft(inputs, slots).attention)


def test_an_objective_without_objective_says_what_to_define(build, draw):
    class Unfinished(MeshObjective):
        pass

    module = build(Mesh(objective=Unfinished(), grad="unroll"))
    with pytest.raises(TypeError, match=r"Unfinished has no objective\(slots, reference"):
        module(*draw(2))
