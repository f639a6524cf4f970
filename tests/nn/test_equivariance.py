"""The paper's propositions: who keeps equal slots equal, and who breaks ties."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.nn import EMD, Mesh, SharedSlot, Sinkhorn, Softmax, TransportContext
from slotmesh.ops import assign

# Enough steps that the plan of a square problem is hard, whatever the cost.
DECISIVE = {"marginals": "uniform", "step": 1.0, "n_steps": 40, "n_iters": 20}
permutations = st.tuples(st.permutations(range(4)), st.permutations(range(6)))
seeds = st.integers(0, 2**16)
few = settings(max_examples=8, deadline=None)


def fix_noise(module, noise):
    """Replace the noise that MESH would draw."""
    begin = type(module.transport).begin

    def noisy(*args, **kwargs):
        return begin(module.transport, *args, **kwargs)._replace(noise=noise)

    module.transport.begin = noisy


def as_multiset(actual, expected):
    """Reorder the slots of ``actual`` so that they are nearest to ``expected``."""
    order = assign(torch.cdist(expected, actual))
    return actual.gather(-2, order.unsqueeze(-1).expand_as(actual))


def spread(slots):
    """The least distance between two slots of a set, the least over the batch."""
    return min(torch.pdist(one).min().item() for one in slots)


@pytest.mark.parametrize("transport", [Softmax, Sinkhorn])
@given(orders=permutations, seed=seeds)
@few
def test_sa_and_sa_sh_are_set_equivariant(transport, orders, seed, build, draw, close):
    module = build(transport(), n_slots=4)
    inputs, slots = draw(2, n=6, m=4, seed=seed)
    rows, columns = (torch.tensor(order) for order in orders)
    out = module(inputs, slots)
    moved = module(inputs[:, columns], slots[:, rows])
    close(moved.slots, out.slots[:, rows])
    close(moved.attention, out.attention[:, rows][..., columns])


@pytest.mark.parametrize("transport", [Softmax, Sinkhorn])
def test_sa_and_sa_sh_keep_equal_slots_equal(transport, build, draw, close):
    module = build(transport())
    inputs, slots = draw(4)
    slots[:, 1] = slots[:, 0]
    out = module(inputs, slots).slots
    close(out[:, 0], out[:, 1])
    assert spread(out[:, 1:]) > 1e-2, "slots that started apart stay apart"


@pytest.mark.parametrize(
    "transport",
    [EMD(), EMD(combine="straight_through"), Mesh(lr=5.0), Mesh(**DECISIVE)],
    ids=["EMD sum", "EMD straight through", "Mesh lr", "Mesh decisive"],
)
def test_sa_emd_and_sa_mesh_tell_equal_slots_apart(transport, build, draw):
    module = build(type(transport)(**transport.settings()))
    inputs, slots = draw(4)
    equal = slots[:, :1].expand_as(slots)
    assert spread(module(inputs, equal).slots) > 1e-2


def test_default_mesh_tells_equal_slots_apart(build, draw):
    module = build(Mesh())
    inputs, slots = draw(4)
    assert spread(module(inputs, slots[:, :1].expand_as(slots)).slots) > 1e-5


@pytest.mark.parametrize("transport", [EMD(combine="straight_through"), Mesh(lr=5.0, n_iters=50)])
def test_the_2_by_2_example_of_equal_slots_and_inputs(transport, close):
    """Not set-equivariant: swapping equal slots changes nothing, so it cannot swap the plan."""
    transport = type(transport)(**transport.settings())
    transport.bind(input_dim=6, slot_dim=5, hidden_dim=8).double()
    inputs, slots = torch.ones(2, 6, dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64)
    scene = transport.begin(inputs, 2, generator=torch.Generator().manual_seed(0))
    plan, _ = transport(slots, inputs[:, :5], slots, scene)
    swapped, _ = transport(slots.flip(0), inputs[:, :5], slots.flip(0), scene)
    close(plan.round(), torch.eye(2, dtype=torch.float64)[plan.argmax(-1)])
    close(plan.sum(0).round(), torch.ones(2, dtype=torch.float64))
    close(plan, plan.round(), 0.05)
    close(swapped, plan)


@pytest.mark.parametrize("transport", [Softmax, Sinkhorn])
def test_the_2_by_2_example_stays_tied_without_tie_breaking(transport, close):
    transport = transport().bind(input_dim=6, slot_dim=5, hidden_dim=8).double()
    inputs, slots = torch.ones(2, 6, dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64)
    plan, _ = transport(slots, inputs[:, :5], slots, transport.begin(inputs, 2))
    close(plan, torch.full((2, 2), 0.5, dtype=torch.float64))


@given(orders=permutations, seed=seeds)
@few
def test_sa_emd_permutes_distinct_slots_as_its_input(orders, seed, build, draw, close):
    # Distinct slots have one exact plan, so the permutation is the same one.
    module = build(EMD(), n_slots=4)
    inputs, slots = draw(2, n=6, m=4, seed=seed)
    rows, columns = (torch.tensor(order) for order in orders)
    out = module(inputs, slots).slots
    close(module(inputs[:, columns], slots[:, rows]).slots, out[:, rows], 1e-9)


@given(orders=permutations, seed=seeds)
@few
def test_sa_mesh_permutes_slots_as_its_input_and_noise(orders, seed, build, draw, close):
    module = build(Mesh(lr=5.0), n_slots=4)
    inputs, slots = draw(2, n=6, m=4, seed=seed)
    slots[:, 1] = slots[:, 0]
    rows, columns = (torch.tensor(order) for order in orders)
    # Far above rounding, which is amplified like noise.
    rng = torch.Generator().manual_seed(seed)
    noise = 1e-2 * torch.randn(2, 4, 6, dtype=torch.float64, generator=rng)
    fix_noise(module, noise)
    out = module(inputs, slots).slots
    fix_noise(module, noise[:, rows][..., columns])
    close(module(inputs[:, columns], slots[:, rows]).slots, out[:, rows], 1e-9)


@given(orders=permutations, seed=seeds)
@few
def test_sa_mesh_with_little_noise_permutes_distinct_slots_as_its_input(
    orders, seed, build, draw, close
):
    module = build(Mesh(noise=1e-9), n_slots=4)
    inputs, slots = draw(2, n=6, m=4, seed=seed)
    rows, columns = (torch.tensor(order) for order in orders)
    out = module(inputs, slots).slots
    close(module(inputs[:, columns], slots[:, rows]).slots, out[:, rows], 1e-6)


@pytest.mark.parametrize(
    "transport",
    [
        EMD(marginals="uniform"),
        EMD(marginals="uniform", combine="straight_through"),
        Mesh(**DECISIVE),
    ],
    ids=["EMD sum", "EMD straight through", "Mesh"],
)
@pytest.mark.parametrize("order", [[1, 0, 2], [0, 2, 1], [2, 0, 1], [1, 2, 0], [2, 1, 0]])
def test_the_x_x_y_example_gives_the_same_multiset(transport, order, build, draw, close):
    """As many slots as inputs, each of mass 1: hard plans, so ties decide the order and no more."""
    module = build(type(transport)(**transport.settings()))
    inputs, slots = draw(4, n=3, m=3)
    slots[:, 1] = slots[:, 0]
    out, moved = module(inputs, slots).slots, module(inputs, slots[:, order]).slots
    assert spread(out) > 1e-2, "the tie is broken"
    close(as_multiset(moved, out), out, 1e-9)
    # The slot that is not tied goes exactly where it was moved to.
    close(moved[:, order.index(2)], out[:, 2], 1e-9)


def test_the_order_of_a_broken_tie_is_random_for_mesh(build, draw):
    module = build(Mesh(**DECISIVE))
    inputs, slots = draw(n=3, m=3)
    slots[1] = slots[0]
    batch = module(inputs.expand(64, -1, -1), slots.expand(64, -1, -1)).slots
    first = (batch[:, 0] - batch[0, 0]).abs().amax(-1) < 1e-6
    assert 8 < first.sum() < 56


def test_mesh_separates_a_shared_slot_that_softmax_leaves_collapsed(build, draw, close):
    inputs, _ = draw(4)
    slots = build(Mesh(lr=5.0), init=SharedSlot())(inputs).slots
    assert spread(slots) > 1e-2
    for transport in (Softmax(), Sinkhorn()):
        slots = build(transport, init=SharedSlot())(inputs).slots
        close(slots, slots[:, :1].expand_as(slots))


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_noise_is_what_breaks_ties(noise, draw, monkeypatch):
    """Of costs that are equal to the last bit, which a product of matrices does not promise."""
    transport = Mesh(lr=5.0, noise=noise, marginals="uniform")
    transport.bind(input_dim=6, slot_dim=5, hidden_dim=8)
    # Rows of whole vectors: functions of vectors may round the last few numbers differently.
    inputs, slots = draw(4, n=64)
    pose = transport.pose

    def equal(*args):
        cost, a = pose(*args)
        cost[:, 1] = cost[:, 0]
        return cost, a

    monkeypatch.setattr(transport, "pose", equal)
    plan, _ = transport(slots, inputs[..., :5], slots, transport.begin(inputs, 3))
    assert torch.equal(plan[:, 0], plan[:, 1]) == (noise == 0)
    assert (spread(plan) > 1e-2) == (noise > 0)


def test_scene_carries_one_noise_for_all_iterations():
    transport = Mesh(noise=0.5).bind(input_dim=6, slot_dim=5, hidden_dim=8)
    scene = transport.begin(torch.randn(40, 100, 6), 3)
    assert scene.noise is not None
    assert scene.noise.shape == (40, 3, 100)
    assert abs(scene.noise.std().item() - 0.5) < 0.02
    assert (
        Mesh(noise=0.0)
        .bind(input_dim=6, slot_dim=5, hidden_dim=8)
        .begin(torch.randn(2, 4, 6), 3)
        .noise
        is None
    )
    assert TransportContext().noise is None
