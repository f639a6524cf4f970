"""Errors say what came, what was expected and how to mend it."""

import pytest
import torch

from slotmesh import SlotAttention
from slotmesh.nn import (
    EMD,
    FixedGaussian,
    LearnedGaussian,
    LearnedNoise,
    LearnedObjective,
    LearnedSlots,
    Mesh,
    SharedSlot,
    Sinkhorn,
    SlotSimilarity,
    Softmax,
)
from slotmesh.nn.transports import TransportContext


def ones(*shape):
    return torch.ones(*shape, dtype=torch.bool)


CONSTRUCTORS = [
    (lambda: SlotAttention(0, 5, 3), r"SlotAttention: input_dim is 0, expected a whole number of "),
    (lambda: SlotAttention(6, 5.0, 3), r"SlotAttention: slot_dim is 5.0, expected a whole number"),
    (lambda: SlotAttention(6, 5, 0), r"n_slots is 0, expected a whole number of at least 1"),
    (lambda: SlotAttention(6, 5, True), r"n_slots is True, expected a whole number"),
    (lambda: SlotAttention(6, 5, 3, n_iters=0), r"n_iters is 0, expected a whole number of at le"),
    (lambda: SlotAttention(6, 5, 3, mlp_dim=-1), r"mlp_dim is -1, expected a whole number of at"),
    (
        lambda: SlotAttention(6, 5, 3, transport="mesh"),
        r"transport is 'mesh', expected an object such as Softmax\(\), Sinkhorn\(\), EMD\(\) or Me",
    ),
    (lambda: SlotAttention(6, 5, 3, Mesh), r"transport is <class .*Mesh'>, expected an object su"),
    (lambda: SlotAttention(6, 5, 3, LearnedGaussian()), r"transport is LearnedGaussian\(\), expec"),
    (
        lambda: SlotAttention(6, 5, 3, init="learned"),
        r"init is 'learned', expected an object such as LearnedGaussian\(\)",
    ),
    (lambda: SlotAttention(6, 5, 3, init=SharedSlot), r"init is <class .*SharedSlot'>, expected"),
    (
        lambda: SlotAttention(6, 5, 3, extra_step=True),
        r"got extra_step without implicit, expected both or neither. Pass implicit=True, or raise",
    ),
    (lambda: Mesh(step=0.1, lr=5.0), r"Mesh: got both step=0.1 and lr=5.0. Pass either step or lr"),
    (lambda: Mesh(step=-0.1), r"Mesh: step is -0.1, expected a finite number of at least 0"),
    (lambda: Mesh(lr=-1), r"Mesh: lr is -1, expected a finite number of at least 0"),
    (lambda: Mesh(noise=float("inf")), r"Mesh: noise is inf, expected a finite number"),
    (lambda: Mesh(noise="small"), r"Mesh: noise is 'small', expected a finite number"),
    (lambda: Mesh(n_steps=-1), r"Mesh: n_steps is -1, expected a whole number of at least 0"),
    (lambda: Mesh(potentials="keep"), r"Mesh: potentials is 'keep', expected one of 'detach', 'r"),
    (lambda: Mesh(grad="exact"), r"Mesh: grad is 'exact', expected one of 'straight_through', 'im"),
    (
        lambda: Mesh(grad="implicit", potentials="reuse"),
        r"Mesh: potentials is 'reuse', expected 'detach' or 'fresh' with grad='implicit', which",
    ),
    (lambda: Mesh(objective="entropy"), r"Mesh: objective is 'entropy', expected LearnedObjective"),
    (lambda: Sinkhorn(cost="l1"), r"Sinkhorn: cost is 'l1', expected one of 'l2', 'sqeuclidean'"),
    (lambda: Sinkhorn(cost_scale=0), r"Sinkhorn: cost_scale is 0, expected a finite number above"),
    (lambda: Sinkhorn(n_iters=0), r"Sinkhorn: n_iters is 0, expected a whole number of at least 1"),
    (lambda: Sinkhorn(temperature=0.0), r"Sinkhorn: temperature is 0.0, expected .* above 0"),
    (lambda: Sinkhorn(marginals="given"), r"Sinkhorn: marginals is 'given', expected one of 'lea"),
    (lambda: Sinkhorn(mass=-1.0), r"Sinkhorn: mass is -1.0, expected a finite number above 0"),
    (lambda: Sinkhorn(grad="unrolled"), r"Sinkhorn: grad is 'unrolled', expected one of 'unroll'"),
    (lambda: EMD(combine="half"), r"EMD: combine is 'half', expected one of 'sum', 'mean', 'stra"),
    (lambda: EMD(approximate=0.0), r"EMD: approximate is 0.0, expected a finite number above 0"),
    (lambda: EMD(temperature=-1), r"EMD: temperature is -1, expected a finite number above 0"),
    (lambda: Softmax(eps=-1e-8), r"Softmax: eps is -1e-08, expected a finite number of at least"),
    (lambda: LearnedObjective(hidden_dim=0), r"LearnedObjective: hidden_dim is 0, expected a who"),
    (lambda: SlotSimilarity(alpha=-1.0), r"SlotSimilarity: alpha is -1.0, expected a finite numb"),
    (lambda: SlotSimilarity(hidden_dim=0), r"SlotSimilarity: hidden_dim is 0, expected a whole n"),
]


@pytest.mark.parametrize(("make", "message"), CONSTRUCTORS, ids=[m for _, m in CONSTRUCTORS])
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


X, S = torch.randn(2, 7, 6), torch.randn(2, 3, 5)
SPOILED = X.masked_fill(torch.arange(6) == 4, float("nan"))
CALLS = [
    (
        lambda f: f(X.mT),
        r"inputs have shape \(2, 6, 7\), expected \(..., n, 6\). Channels come last: flatten",
    ),
    (lambda f: f(X[0, 0]), r"inputs has shape \(6,\), expected at least two dimensions \(..., in"),
    (lambda f: f(X[:, :0]), r"inputs has shape \(2, 0, 6\), expected .* at least one row"),
    (lambda f: f(X.tolist()), r"inputs is a list, expected a tensor .*Convert it with torch.as_t"),
    (lambda f: f(X.int()), r"inputs has dtype torch.int32, expected a floating-point tensor. Cal"),
    (
        lambda f: f(X.double()),
        r"inputs are torch.float64, expected torch.float32 like the module.*\.to\(",
    ),
    (lambda f: f(X.bfloat16()), r"inputs are torch.bfloat16, expected torch.float32 .*autocast"),
    (lambda f: f(X.to("meta")), r"inputs are on meta, expected cpu, where the module is. Move on"),
    (lambda f: f(SPOILED), r"inputs has 14 entries that are not finite \(the first is nan at \[0"),
    (lambda f: f(X / 0), r"inputs has 84 entries that are not finite .* upstream"),
    (lambda f: f(X, S[:1]), r"slots have shape \(1, 3, 5\), expected \(2, m, 5\) to fit inputs o"),
    (lambda f: f(X, S[0]), r"slots have shape \(3, 5\), expected \(2, m, 5\) .* Expand them"),
    (lambda f: f(X[0], S), r"slots have shape \(2, 3, 5\), expected \(m, 5\) to fit inputs"),
    (lambda f: f(X, S.mT), r"slots have shape \(2, 5, 3\), expected \(2, m, 5\)"),
    (lambda f: f(X, S[:, :0]), r"slots has shape \(2, 0, 5\), expected .* at least one row"),
    (lambda f: f(X, S[0, 0]), r"slots has shape \(5,\), expected at least two dimensions"),
    (lambda f: f(X, S.long()), r"slots has dtype torch.int64, expected a floating-point tensor"),
    (lambda f: f(X, S.double()), r"slots are torch.float64, expected torch.float32 like the mod"),
    (lambda f: f(X, S.to("meta")), r"slots are on meta, expected cpu, where the module is"),
    (lambda f: f(X, S * float("nan")), r"SlotAttention: slots has 30 entries that are not finite"),
    (lambda f: f(X, 3), r"slots is a int, expected a tensor"),
    (lambda f: f(X, S, n_slots=4), r"n_slots is 4 but got 3 slots, expected the same number. Le"),
    (lambda f: f(X, n_slots=0), r"n_slots is 0, expected a whole number of at least 1"),
    (lambda f: f(X, n_slots=2.0), r"n_slots is 2.0, expected a whole number of at least 1"),
    (
        lambda f: f(X, input_mask=ones(2, 6)),
        r"input_mask has shape \(2, 6\), expected \(..., 7\) to fit inputs of shape \(2, 7, 6\)",
    ),
    (
        lambda f: f(X, input_mask=ones(3, 7)),
        r"input_mask has shape \(3, 7\), expected \(2, 7\) .* of shape \(2, 7, 6\)",
    ),
    (
        lambda f: f(X[0], input_mask=ones(2, 7)),
        r"input_mask has shape \(2, 7\), expected \(7,\) .* of shape \(7, 6\)",
    ),
    (
        lambda f: f(X, input_mask=torch.tensor(True)),
        r"input_mask has shape \(\), expected \(..., 7\)",
    ),
    (
        lambda f: f(X, input_mask=torch.ones(2, 7)),
        r"input_mask has dtype torch.float32, expected a boolean tensor. Use input_mask.bool\(\)",
    ),
    (lambda f: f(X, input_mask=[True] * 7), r"input_mask is a list, expected a boolean tensor"),
    (lambda f: f(X, input_mask=ones(2, 7).to("meta")), r"input_mask is on meta, expected cpu"),
    (
        lambda f: f(X, input_mask=torch.tensor([[True], [False]]).expand(2, 7)),
        r"SlotAttention: input_mask masks every element of 1 of 2 .*at least one True in each. Lea",
    ),
    (
        lambda f: f(X, slot_mask=ones(2, 4)),
        r"slot_mask has shape \(2, 4\), expected \(..., 3\) to fit slots of shape \(2, 3, 5\)",
    ),
    (
        lambda f: f(X, slot_mask=ones(3, 3)),
        r"slot_mask has shape \(3, 3\), expected \(2, 3\) .* of shape \(2, 3, 5\)",
    ),
    (
        lambda f: f(X[0], slot_mask=ones(2, 3)),
        r"slot_mask has shape \(2, 3\), expected \(3,\) .* of shape \(3, 5\)",
    ),
    (lambda f: f(X, slot_mask=ones(3).int()), r"slot_mask has dtype torch.int32, expected a bool"),
    (lambda f: f(X, slot_mask=ones(3).to("meta")), r"slot_mask is on meta, expected cpu"),
    (
        lambda f: f(X, S, slot_mask=~ones(3)),
        r"SlotAttention: slot_mask masks every element of 1 of 1 ",
    ),
    (lambda f: f(X, n_slots=2, slot_mask=ones(3)), r"slot_mask has shape \(3,\), expected \(...,"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[m for _, m in CALLS])
def test_bad_calls(variant, call, message):
    module = SlotAttention(6, 5, 3, variant())
    with pytest.raises(ValueError, match=message) as error:
        call(module)
    assert str(error.value).startswith("SlotAttention: ")


def test_good_calls_are_not_refused(variant):
    module = SlotAttention(6, 5, 3, variant())
    mask = torch.ones(1, 7, dtype=torch.bool)
    for inputs, slots in ((X, S), (X, None), (X[:1], S[:1]), (X[0], S[0])):
        masks = {"input_mask": mask[0], "slot_mask": torch.ones(3, dtype=torch.bool)}
        assert module(inputs, slots, **masks).slots.isfinite().all()
    assert module(X, S, input_mask=mask).slots.shape == (2, 3, 5)


def test_an_object_may_be_part_of_one_module_only():
    for part, use in (
        (Mesh(), lambda part: SlotAttention(6, 5, 3, part)),
        (SharedSlot(), lambda part: SlotAttention(6, 5, 3, init=part)),
        (
            SlotSimilarity(),
            lambda part: SlotAttention(6, 5, 3, Mesh(objective=part, grad="unroll")),
        ),
    ):
        use(part)
        name = type(part).__name__
        with pytest.raises(ValueError, match=rf"{name}: this object is already part .*deepcopy"):
            use(part)


@pytest.mark.parametrize(
    "use",
    [
        lambda: LearnedGaussian()((2,), 3),
        lambda: FixedGaussian()((2,), 3),
        lambda: LearnedSlots()((2,), 3),
        lambda: SharedSlot()((2,), 3),
        lambda: Mesh().begin(torch.zeros(2, 7, 6), 3),
        lambda: Sinkhorn()(*[torch.zeros(2, 3, 4)] * 3, TransportContext()),
        lambda: SlotSimilarity()(torch.zeros(2, 3, 4)),
        lambda: LearnedNoise()(torch.zeros(2, 3, 4)),
    ],
)
def test_a_part_without_a_module_is_named(use):
    with pytest.raises(ValueError, match=r"it has no weights yet, .* or call bind\(\.\.\.\) first"):
        use()
