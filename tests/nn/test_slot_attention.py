"""The four variants against loops written by hand with the module's own weights."""

import weakref

import pytest
import torch

from slotmesh import SlotAttention
from slotmesh.nn import (
    EMD,
    LearnedGaussian,
    MarginalHead,
    Mesh,
    Sinkhorn,
    SlotTransport,
    Softmax,
    TransportContext,
)
from slotmesh.ops import emd, mesh, pairwise_cost, sinkhorn


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + 1e-5).sqrt() * weight + bias


def gru(w, x, h):
    gates = x @ w["gru.weight_ih"].mT + w["gru.bias_ih"]
    state = h @ w["gru.weight_hh"].mT + w["gru.bias_hh"]
    (xr, xz, xn), (hr, hz, hn) = gates.chunk(3, -1), state.chunk(3, -1)
    reset, keep = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    return (1 - keep) * torch.tanh(xn + reset * hn) + keep * h


def update(w, slots, updates):
    """Recurrent update and residual MLP."""
    new = gru(w, updates, slots)
    hidden = layer_norm(new, w["mlp.0.weight"], w["mlp.0.bias"])
    hidden = torch.relu(hidden @ w["mlp.1.weight"].mT + w["mlp.1.bias"])
    return new + hidden @ w["mlp.3.weight"].mT + w["mlp.3.bias"]


def locatello(module, inputs, slots, n_iters, eps=1e-8):
    """The original slot attention, in the layout of its authors: attention is (..., n, m)."""
    w = dict(module.named_parameters())
    x = layer_norm(inputs, w["norm_inputs.weight"], w["norm_inputs.bias"])
    k, v = x @ w["to_key.weight"].mT, x @ w["to_value.weight"].mT
    for _ in range(n_iters):
        z = layer_norm(slots, w["norm_slots.weight"], w["norm_slots.bias"])
        q = z @ w["to_query.weight"].mT
        attention = torch.softmax(k @ q.mT / q.shape[-1] ** 0.5, -1) + eps
        attention = attention / attention.sum(-2, keepdim=True)
        slots = update(w, slots, attention.mT @ v)
    return slots, attention.mT


def marginal(w, side, x, total):
    prefix = f"transport.{side}_marginal.logit"
    hidden = torch.relu(x @ w[f"{prefix}.0.weight"].mT + w[f"{prefix}.0.bias"])
    return total * torch.softmax((hidden @ w[f"{prefix}.2.weight"].mT)[..., 0], -1)


def transported(module, inputs, slots, n_iters, attend, cost="l2", scale=1.0, total=None):
    """The loop of SA-SH, SA-EMD and SA-MESH; ``attend(cost, a, b)`` is one transport."""
    w = dict(module.named_parameters())
    total = float(slots.shape[-2]) if total is None else total
    learned = any("marginal" in name for name in w)
    x = layer_norm(inputs, w["norm_inputs.weight"], w["norm_inputs.bias"])
    k, v = x @ w["to_key.weight"].mT, x @ w["to_value.weight"].mT
    for _ in range(n_iters):
        z = layer_norm(slots, w["norm_slots.weight"], w["norm_slots.bias"])
        q = z @ w["to_query.weight"].mT
        if cost == "l2":
            costs = (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1).sqrt()
        else:
            costs = pairwise_cost(q, k, cost)
        m, n = costs.shape[-2:]
        if learned:
            a, b = marginal(w, "slot", z, total), marginal(w, "input", x, total)
        else:
            a, b = (costs.new_full((size,), total / size) for size in (m, n))
        attention = attend(scale * costs, a, b)
        slots = update(w, slots, attention @ v)
    return slots, attention


def assert_same(module, out, expected, tensors, gradients, close, tol=1e-12):
    slots, attention = expected
    close(out.slots, slots, tol)
    close(out.attention, attention, tol)
    mine, other = (gradients(module, s, *tensors) for s in (out.slots, slots))
    assert mine.keys() == other.keys()
    assert len(mine) > len(tensors) + 15
    for name in mine:
        close(mine[name], other[name], 10 * tol)


def test_softmax_is_the_original_slot_attention(build, draw, gradients, close):
    module = build(Softmax(), n_iters=3)
    inputs, slots = (x.requires_grad_() for x in draw(2))
    out, expected = module(inputs, slots), locatello(module, inputs, slots, 3)
    assert_same(module, out, expected, (inputs, slots), gradients, close)


def test_softmax_adds_eps_before_it_normalises(build, draw, close):
    module = build(Softmax(eps=0.3), n_iters=2)
    inputs, slots = draw(2)
    close(module(inputs, slots).slots, locatello(module, inputs, slots, 2, eps=0.3)[0])


def test_softmax_without_eps_is_one_sinkhorn_iteration_on_the_scaled_dot_product(draw, close):
    inputs, slots = draw(4)
    keys, queries = 3 * inputs[..., :5], slots
    attention, transport = Softmax(eps=0.0)(queries, keys, slots, TransportContext())
    t = sinkhorn(pairwise_cost(queries, keys, "dot") / 5**0.5, n_iters=1)
    close(attention, t.plan, 1e-14)
    close(transport.marginal_error, t.marginal_error)
    assert transport.converged.tolist() == t.converged.tolist()
    assert transport.n_iters.tolist() == t.n_iters.tolist() == [1] * 4
    u, v = transport.u.unsqueeze(-1), transport.v.unsqueeze(-2)
    close((u + v - transport.cost).exp(), attention)


def test_a_slot_that_no_input_chooses_looks_at_all_of_them():
    queries = torch.tensor([[100.0, 0.0], [-100.0, 0.0]], dtype=torch.float64)
    keys = torch.tensor([[30.0, 0.0], [31.0, 0.0], [32.0, 0.0]], dtype=torch.float64)
    attention, _ = Softmax()(queries, keys, queries, TransportContext())
    torch.testing.assert_close(attention[1], torch.full((3,), 1 / 3, dtype=torch.float64))


SINKHORNS = [
    {},
    {"n_iters": 2, "temperature": 0.5},
    {"cost": "cosine", "cost_scale": 6.0, "mass": 18.0},
    {"cost": "sqeuclidean", "marginals": "uniform"},
    {"cost": "dot", "marginals": "uniform", "mass": 2.0},
    {"grad": "implicit", "n_iters": 2},
]


def cost_settings(settings):
    """What of a transport's settings the loop needs, and what the operation needs."""
    names = {"cost": "cost", "cost_scale": "scale", "mass": "total"}
    loop = {names[k]: v for k, v in settings.items() if k in names}
    return loop, {k: v for k, v in settings.items() if k not in (*names, "marginals", "combine")}


@pytest.mark.parametrize("settings", SINKHORNS, ids=str)
def test_sinkhorn_is_a_loop_over_the_operation(settings, build, draw, gradients, close):
    module = build(Sinkhorn(**settings), n_iters=3)
    inputs, slots = (x.requires_grad_() for x in draw(2))
    loop, options = cost_settings(settings)
    expected = transported(
        module, inputs, slots, 3, lambda c, a, b: sinkhorn(c, a, b, **options).plan, **loop
    )
    assert_same(module, module(inputs, slots), expected, (inputs, slots), gradients, close)


@pytest.mark.parametrize(
    "settings", [{}, {"n_iters": 3, "temperature": 0.5, "cost": "cosine", "mass": 4.0}], ids=str
)
def test_emd_is_the_sum_of_the_exact_plan_and_a_sinkhorn_plan(
    settings, build, draw, gradients, close
):
    module = build(EMD(**settings), n_iters=3)
    inputs, slots = (x.requires_grad_() for x in draw(2))
    loop, options = cost_settings(settings)

    def attend(cost, a, b):
        return emd(cost, a, b).plan + sinkhorn(cost, a, b, **options).plan

    out, expected = module(inputs, slots), transported(module, inputs, slots, 3, attend, **loop)
    assert_same(module, out, expected, (inputs, slots), gradients, close)
    mass = settings.get("mass", 3.0)
    close(out.attention.sum((-2, -1)), torch.full((2,), 2 * mass, dtype=torch.float64), 1e-9)


MESHES = [
    {},
    {"lr": 3.0, "n_steps": 2, "n_iters": 3, "potentials": "reuse"},
    {"step": 0.2, "temperature": 0.5, "potentials": "fresh", "mass": 5.0},
    {"grad": "unroll", "n_steps": 2, "cost": "cosine", "cost_scale": 6.0},
    {"marginals": "uniform", "noise": 0.1},
    {"noise": 0.0},
]


@pytest.mark.parametrize("settings", MESHES, ids=str)
def test_mesh_is_a_loop_over_the_operation_with_one_noise(settings, build, draw, gradients, close):
    # Small steps: large ones enlarge the rounding of two ways to compute the same costs.
    settings = settings if "lr" in settings else {"step": 0.05, **settings}
    module = build(Mesh(**settings), n_iters=3)
    inputs, slots = (x.requires_grad_() for x in draw(2))
    loop, options = cost_settings(settings)
    rng = torch.Generator().manual_seed(3)
    noise = torch.randn(2, 3, 7, dtype=torch.float64, generator=rng) * options.pop("noise", 1e-3)
    expected = transported(
        module, inputs, slots, 3, lambda c, a, b: mesh(c, a, b, noise=noise, **options).plan, **loop
    )
    out = module(inputs, slots, generator=torch.Generator().manual_seed(3))
    assert_same(module, out, expected, (inputs, slots), gradients, close, 1e-11)


def test_mesh_has_new_noise_in_every_forward_pass(build, draw):
    module = build(Mesh(noise=0.1))
    inputs, slots = draw(2)
    first, second = (module(inputs, slots).slots for _ in range(2))
    assert (first - second).abs().amax((-2, -1)).min() > 1e-6


def posed(transport, draw, like=None):
    """Bind a transport and pose it one problem: its queries, keys, slots and context."""
    transport.bind(input_dim=6, slot_dim=5, hidden_dim=8).double()
    if like is not None:
        transport.load_state_dict(like.state_dict())
    inputs, slots = draw(2)
    queries, keys = slots.flip(0).clone().requires_grad_(), inputs[..., :5].clone().requires_grad_()
    return queries, keys, slots, transport.begin(inputs, 3)


def test_emd_straight_through_is_the_exact_plan_with_the_gradient_of_sinkhorn(draw, close):
    soft, hard, both = Sinkhorn(), EMD(combine="straight_through"), EMD(combine="sum")
    problem = posed(soft, draw)
    posed(hard, draw, soft)
    posed(both, draw, soft)
    queries, keys, *_ = problem
    exact = emd(*(x.detach() for x in soft_problem(soft, problem)))
    (sink, _), (attention, transport), (total, whole) = (t(*problem) for t in (soft, hard, both))
    close(attention, exact.plan)
    close(transport.plan, exact.plan)
    close(whole.plan, exact.plan)
    close(total, exact.plan + sink)
    # m + n - 1 is the most entries that a vertex of the transport polytope can have.
    assert ((transport.plan > 0).sum((-2, -1)) <= 9).all()
    close(attention.sum((-2, -1)), torch.full((2,), 3.0, dtype=torch.float64))
    weight = torch.randn_like(sink)
    wrt = [queries, keys, soft.slot_marginal.logit[0].weight]
    expected = torch.autograd.grad((sink * weight).sum(), wrt)
    assert expected[0].abs().max() > 1e-4
    for plan, module in ((attention, hard), (total, both)):
        wrt = [queries, keys, module.slot_marginal.logit[0].weight]
        close(torch.autograd.grad((plan * weight).sum(), wrt, retain_graph=True), expected)


def soft_problem(transport, problem):
    queries, keys, slots, context = problem
    cost, a = transport.pose(queries, keys, slots, context)
    return cost, a, context.b


def test_straight_through_emd_is_a_loop_of_exact_plans(build, draw, close):
    module = build(EMD(combine="straight_through"), n_iters=2)
    inputs, slots = draw(2)
    with torch.no_grad():
        expected = transported(module, inputs, slots, 2, lambda c, a, b: emd(c, a, b).plan)
        close(module(inputs, slots).slots, expected[0])


def test_attention_and_transport_of_every_variant(variant, build, draw, close):
    module = build(variant())
    inputs, slots = draw(2)
    out = module(inputs, slots)
    assert out.slots.shape == (2, 3, 5)
    assert out.attention.shape == out.transport.plan.shape == out.transport.cost.shape == (2, 3, 7)
    assert (out.attention >= 0).all()
    assert out.trace is None
    sums = out.transport.plan.sum(-1)
    close(sums.sum(-1), torch.full((2,), 3.0, dtype=torch.float64), 1e-9)
    if variant is Softmax:
        close(sums, torch.ones(2, 3, dtype=torch.float64))
    else:
        assert (sums - 1).abs().max() > 1e-3, "learned marginals"
    if variant is not EMD:
        close(out.attention, out.transport.plan)


def test_the_default_is_mesh_from_a_learned_gaussian():
    module = SlotAttention(6, 5, 3)
    assert isinstance(module.transport, Mesh)
    assert isinstance(module.init, LearnedGaussian)
    assert module.transport.settings() == Mesh().settings()
    assert (module.n_slots, module.n_iters, module.mlp[1].out_features) == (3, 3, 10)
    assert module.transport.slot_marginal.logit[0].out_features == 10


def test_mlp_dim_is_the_width_of_every_hidden_layer():
    module = SlotAttention(6, 5, 3, Sinkhorn(), mlp_dim=11)
    heads = (module.transport.slot_marginal, module.transport.input_marginal)
    assert [module.mlp[1].out_features, *(h.logit[0].out_features for h in heads)] == [11] * 3


def test_marginal_head_shares_out_the_total_among_real_elements(close):
    head = MarginalHead(4, 8).double()
    x = torch.randn(2, 6, 4, dtype=torch.float64)
    mass = head(x, 3.0)
    close(mass.sum(-1), torch.full((2,), 3.0, dtype=torch.float64))
    close(mass.log().diff(dim=-1), head.logit(x)[..., 0].diff(dim=-1))
    mask = torch.tensor([[True] * 4 + [False] * 2, [False] + [True] * 5])
    total = torch.tensor([[3.0], [2.0]], dtype=torch.float64)
    masked = head(x, total, mask)
    close(masked[0, :4], head(x[0, :4], 3.0))
    close(masked[1, 1:], head(x[1, 1:], 2.0))
    assert (masked[~mask] == 0).all()


def test_marginal_head_computes_half_precision_in_float32():
    mass = MarginalHead(4, 8).bfloat16()(torch.randn(100, 4).bfloat16(), 1.0)
    assert mass.dtype == torch.float32
    torch.testing.assert_close(mass.sum(), torch.tensor(1.0))


def test_attention_is_not_kept_over_iterations_unless_it_is_traced(build, draw):
    class Watched(Softmax):
        def begin(self, *args, **kwargs):
            self.seen, self.alive = [], []
            return super().begin(*args, **kwargs)

        def forward(self, *args):
            self.alive.append(sum(ref() is not None for ref in self.seen))
            attention, transport = super().forward(*args)
            attention = attention.clone()
            self.seen.append(weakref.ref(attention))
            return attention, transport

    module = build(Watched(), n_iters=5)
    with torch.no_grad():
        module(*draw(2))
        assert max(module.transport.alive) == 1
        module(*draw(2), trace=True)
        assert max(module.transport.alive) == 4


def test_a_transport_without_forward_says_what_to_define(build, draw):
    class Unfinished(SlotTransport):
        pass

    with pytest.raises(
        TypeError, match=r"Unfinished has no forward\(queries, keys, slots, context"
    ):
        build(Unfinished())(*draw(2))
