"""Every mistake is a ValueError that names the operation, the argument and the way out."""

import re

import numpy as np
import pytest
import torch

from slotmesh.ops import (
    assign,
    emd,
    entropy,
    mesh,
    pairwise_cost,
    set_value_checks,
    sinkhorn,
)

from ._reference import close, masses

C = torch.zeros(2, 3, 4)
A, B = torch.ones(3), torch.full((4,), 0.75)
NAN, INF = float("nan"), float("inf")
META = torch.device("meta")

OPS = {"sinkhorn": sinkhorn, "mesh": mesh, "emd": emd, "assign": assign}


def cost_with(value):
    cost = C.clone()
    cost[1, 2, 3] = value
    return cost


# (operation, its arguments, what the message must say)
COMMON = [
    ((C.tolist(),), {}, "cost is a list, expected a tensor .* torch.as_tensor"),
    ((C.numpy(),), {}, "cost is a ndarray, expected a tensor"),
    ((None,), {}, "cost is a NoneType, expected a tensor"),
    ((C.long(),), {}, r"cost has dtype torch.int64, expected a floating-point .* cost.float\(\)"),
    ((C.bool(),), {}, "cost has dtype torch.bool, expected a floating-point"),
    ((C.to(torch.complex64),), {}, "cost has dtype torch.complex64, expected a floating-point"),
    (
        (C.to_sparse(),),
        {},
        r"cost has layout torch.sparse_coo, expected a dense tensor. Call cost.to_dense\(\) first",
    ),
    ((C[0, 0],), {}, r"cost has shape \(4,\), expected at least two dimensions .* cost\[None\]"),
    ((torch.tensor(1.0),), {}, r"cost has shape \(\), expected at least two dimensions"),
    ((C[:, :0],), {}, r"cost has shape \(2, 0, 4\), expected .* one row and one column. Leave"),
    ((C[:, :, :0],), {}, r"cost has shape \(2, 3, 0\), expected .* one row and one column"),
    (
        (cost_with(NAN),),
        {},
        r"cost has 1 entries that are not finite \(the first is nan at \[1, 2, 3\]\), expected "
        "finite numbers. Look for a NaN or an overflow upstream; padding goes into slot_mask",
    ),
    ((cost_with(INF),), {}, r"cost has 1 entries .* first is inf at \[1, 2, 3\]"),
    ((cost_with(-INF),), {}, r"cost has 1 entries .* first is -inf at"),
    ((C,), {"slot_mask": [True] * 3}, r"slot_mask is a list, expected a boolean .*torch.as_tensor"),
    (
        (C,),
        {"slot_mask": A},
        r"slot_mask has dtype torch.float32, expected a boolean tensor. Use slot_mask.bool\(\), "
        "True where an element is real",
    ),
    ((C,), {"input_mask": torch.ones(4, dtype=torch.int8)}, "input_mask has dtype torch.int8"),
    (
        (C,),
        {"slot_mask": torch.ones(4, dtype=torch.bool)},
        r"slot_mask has shape \(4,\), expected \(\.\.\., 3\) to fit cost of shape \(2, 3, 4\). "
        "Rows of cost are slots",
    ),
    (
        (C,),
        {"input_mask": torch.ones(3, dtype=torch.bool)},
        r"input_mask has shape \(3,\), expected",
    ),
    ((C,), {"slot_mask": torch.tensor(True)}, r"slot_mask has shape \(\), expected"),
    (
        (C,),
        {"slot_mask": torch.ones(3, dtype=torch.bool, device=META)},
        r"slot_mask is on meta, expected cpu, where cost is. Move it with "
        r"slot_mask.to\(cost.device\)",
    ),
    (
        (C.to(META),),
        {"input_mask": torch.ones(4, dtype=torch.bool)},
        "input_mask is on cpu, expected meta",
    ),
    (
        (C,),
        {"slot_mask": torch.tensor([[True] * 3, [False] * 3])},
        "slot_mask masks every element of 1 of 2 batch elements, expected at least one True",
    ),
    (
        (C,),
        {"input_mask": torch.zeros(4, dtype=torch.bool)},
        "input_mask masks every element of 2 of 2 batch elements, expected at least one .* Leave",
    ),
    (
        (C,),
        {"slot_mask": torch.ones(5, 3, dtype=torch.bool)},
        r"the shapes \(2, 3, 4\), \(5, 3\) of cost, marginals .* do not broadcast, expected",
    ),
]
# As other libraries write a pair that is not allowed.
FORBIDDEN = [((cost_with(INF),), {}, "cost has 1 .*, pairs that are not allowed into pair_mask")]
MARGINALS = [
    ((C, [1.0] * 3), {}, r"a is a list, expected a floating-point tensor \(\.\.\., 3\). Convert"),
    ((C, A.long()), {}, r"a has dtype torch.int64, expected a floating-point tensor. Use a.float"),
    ((C, A.bool()), {}, "a has dtype torch.bool, expected a floating-point"),
    ((C, None, B.long()), {}, "b has dtype torch.int64, expected a floating-point"),
    (
        (C, B),
        {},
        r"a has shape \(4,\), expected \(\.\.\., 3\) to fit cost of shape \(2, 3, 4\). Rows",
    ),
    ((C, None, A), {}, r"b has shape \(3,\), expected \(\.\.\., 4\)"),
    ((C, torch.tensor(1.0)), {}, r"a has shape \(\), expected \(\.\.\., 3\)"),
    ((C, A.to(META)), {}, r"a is on meta, expected cpu, where cost is. Move it with a.to\(cost"),
    ((C, A.expand(7, 3)), {}, r"the shapes \(2, 3, 4\), \(7, 3\) .* do not broadcast"),
    ((C, A, B.expand(5, 4)), {}, r"the shapes \(2, 3, 4\), \(3,\), \(5, 4\) .* do not broadcast"),
    (
        (C, torch.tensor([1.0, -0.5, 1.0])),
        {},
        r"a has a negative entry \(-0.5\), expected masses of at least 0. Use softmax or softplus",
    ),
    ((C, None, -B), {}, r"b has a negative entry \(-0.75\), expected masses"),
    ((C, torch.tensor([1.0, NAN, 1.0])), {}, r"a has 2 entries that are not finite .*first is nan"),
    ((C, None, B * INF), {}, "b has 8 entries that are not finite .*first is inf"),
    (
        (C, 2e38 * A),
        {},
        r"a sums to inf, expected a total that torch.float32 can hold. Rescale the masses, or pass "
        r"cost.double\(\)",
    ),
    ((C, None, 2e38 * B), {}, "b sums to inf, expected a total that torch.float32 can hold"),
    (
        (C, A, 2 * B),
        {},
        r"the marginals have different totals \(a sums to 3, b to 6\), expected the same mass on "
        r"both sides. Rescale one of them: b = b \* a.sum",
    ),
    ((C, A, 1.001 * B), {}, r"the marginals have different totals \(a sums to 3, b to 3.003\)"),
    (
        (C.double(), A.double(), 1.001 * B),
        {},
        r"the marginals have different totals \(a sums to 3, b to 3.003\)",
    ),
    ((C, A, 0 * B), {}, r"the marginals have different totals \(a sums to 3, b to 0\)"),
    ((C, 0 * A, B), {}, r"the marginals have different totals \(a sums to 0, b to 3\)"),
]
ITERATED = [
    ((C,), {"n_iters": 0}, "n_iters is 0, expected a whole number of at least 1"),
    ((C,), {"n_iters": -1}, "n_iters is -1, expected a whole number"),
    ((C,), {"n_iters": 5.0}, "n_iters is 5.0, expected a whole number"),
    ((C,), {"n_iters": True}, "n_iters is True, expected a whole number"),
    ((C,), {"n_iters": "5"}, "n_iters is '5', expected a whole number"),
    ((C,), {"temperature": 0}, "temperature is 0, expected a finite number above 0"),
    ((C,), {"temperature": -1.0}, "temperature is -1.0, expected a finite number above 0"),
    ((C,), {"temperature": NAN}, "temperature is nan, expected a finite number above 0"),
    ((C,), {"temperature": INF}, "temperature is inf, expected a finite number above 0"),
    ((C,), {"temperature": "1"}, "temperature is '1', expected a finite number above 0"),
    ((C,), {"temperature": True}, "temperature is True, expected a finite number above 0"),
    ((C,), {"temperature": 10**400}, "temperature is 10.*, expected a finite number above 0"),
    (
        (C,),
        {"temperature": torch.tensor([1.0, 0.0])},
        "temperature has an entry of 0, expected all above 0. Use softplus or exp",
    ),
    ((C,), {"temperature": torch.tensor(-2.0)}, "temperature has an entry of -2, expected all"),
    ((C,), {"temperature": torch.tensor([1.0, NAN])}, "temperature has 1 entries .*not finite"),
    ((C,), {"temperature": torch.tensor(INF)}, "temperature has 1 entries .*not finite"),
    (
        (C,),
        {"temperature": torch.ones(3)},
        r"temperature has shape \(3,\), expected one that broadcasts to the batch dimensions "
        r"\(2,\) of cost. Pass a float",
    ),
    ((C,), {"temperature": torch.ones(2, 3, 4)}, r"temperature has shape \(2, 3, 4\), expected"),
    ((C[0],), {"temperature": torch.ones(2)}, r"temperature has shape \(2,\), expected"),
    (
        (C,),
        {"temperature": torch.ones(2, device=META)},
        r"temperature is on meta, expected cpu, where cost is. Move it with temperature.to\(cost",
    ),
    ((C,), {"backend": "cuda"}, "backend is 'cuda', expected one of 'auto', 'torch', 'triton'"),
    ((C,), {"backend": None}, "backend is None, expected one of"),
]
U, V = torch.zeros(2, 3), torch.zeros(2, 4)
SINKHORN = [
    ((C,), {"grad": "straight_through"}, "grad is 'straight_through', expected one of 'unroll'"),
    ((C,), {"tol": -1e-3}, "tol is -0.001, expected a finite number of at least 0"),
    ((C,), {"tol": NAN}, "tol is nan, expected a finite number"),
    ((C,), {"tol": torch.tensor(0.1)}, r"tol is tensor\(0.1000\), expected a finite number"),
    ((C,), {"init": U}, r"init is a Tensor, expected the pair \(u, v\) .* Pass init=\(t.u, t.v\)"),
    ((C,), {"init": 5}, "init is a int, expected the pair"),
    ((C,), {"init": (U,)}, "init has 1 entries, expected the pair"),
    ((C,), {"init": (U, V, V)}, "init has 3 entries, expected the pair"),
    ((C,), {"init": (V, U)}, r"init u has shape \(2, 4\), expected \(\.\.\., 3\)"),
    ((C,), {"init": (U, U)}, r"init v has shape \(2, 3\), expected \(\.\.\., 4\)"),
    ((C,), {"init": (U, None)}, "init v is a NoneType, expected a floating-point tensor"),
    ((C,), {"init": (U.long(), V)}, "init u has dtype torch.int64, expected a floating-point"),
    ((C,), {"init": (U.to(META), V)}, "init u is on meta, expected cpu, where cost is"),
    (
        (C,),
        {"init": (torch.zeros(5, 3), V)},
        r"init u has shape \(5, 3\), expected one that broadcasts to \(2, 3\). Pass init=",
    ),
    ((C[0],), {"init": (U, V)}, r"init u has shape \(2, 3\), expected one that broadcasts"),
    ((C,), {"init": (U, torch.zeros(3, 4))}, r"init v has shape \(3, 4\), expected one that"),
]
MESH = [
    (
        (C,),
        {"grad": "exact"},
        "grad is 'exact', expected one of 'straight_through', 'implicit', 'unroll'",
    ),
    (
        (C,),
        {"potentials": "keep"},
        "potentials is 'keep', expected one of 'detach', 'reuse', 'fresh'",
    ),
    (
        (C,),
        {"grad": "implicit", "potentials": "reuse"},
        "potentials is 'reuse', expected 'detach' or 'fresh' with grad='implicit'",
    ),
    ((C,), {"n_steps": -1}, "n_steps is -1, expected a whole number of at least 0"),
    ((C,), {"n_steps": 4.0}, "n_steps is 4.0, expected a whole number"),
    ((C,), {"lr": -1.0}, "lr is -1.0, expected a finite number of at least 0"),
    ((C,), {"lr": torch.tensor(5.0)}, r"lr is tensor\(5.\), expected a finite number"),
    ((C,), {"step": INF}, "step is inf, expected a finite number of at least 0"),
    ((C,), {"step": "0.05"}, "step is '0.05', expected a finite number"),
    ((C,), {"noise": -1e-3}, "noise is -0.001, expected a finite number of at least 0"),
    ((C,), {"noise": None}, "noise is None, expected a finite number"),
    (
        (C,),
        {"noise": torch.zeros(3, 5)},
        r"noise is a tensor of shape \(3, 5\) and dtype torch.float32, expected floating point "
        r"that broadcasts to the cost's shape \(2, 3, 4\). Draw it with torch.randn_like\(cost\)",
    ),
    ((C[0],), {"noise": C}, r"noise is a tensor of shape \(2, 3, 4\) .*cost's shape \(3, 4\)"),
    ((C,), {"noise": C.long()}, "noise is a tensor of shape .* and dtype torch.int64, expected"),
    (
        (C,),
        {"noise": C.to(META)},
        r"noise is on meta, expected cpu, where cost is. Move .*noise.to",
    ),
    ((C,), {"noise": cost_with(NAN)}, r"noise has 1 entries that are not finite .*at \[1, 2, 3\]"),
    (
        (C,),
        {"noise": C, "generator": torch.Generator()},
        "got both a noise tensor and a generator, expected one of them. Leave the generator out",
    ),
    ((C,), {"generator": 0}, r"generator is 0, expected torch.Generator\(\).manual_seed"),
    (
        (C,),
        {"objective": "entropy"},
        r"objective is 'entropy', expected an object with a method derivative\(plan\)",
    ),
    ((C,), {"objective": entropy}, r"objective is <function .*, expected an object with a method"),
]
ENTROPY = [
    (([[1.0]],), {}, "plan is a list, expected a tensor .* torch.as_tensor"),
    ((C.long(),), {}, r"plan has dtype torch.int64, expected .* Call plan.float\(\)"),
    ((A,), {}, r"plan has shape \(3,\), expected at least two dimensions"),
    ((C[:, :0],), {}, r"plan has shape \(2, 0, 4\), expected .* one row and one column"),
    (
        (cost_with(-0.5),),
        {},
        r"plan has a negative entry \(-0.5\), expected masses .* Pass the plan",
    ),
    ((cost_with(NAN),), {}, "plan has 1 entries that are not finite .*A plan holds the mass"),
]
Q, K = torch.zeros(2, 3, 5), torch.zeros(2, 4, 5)
PAIRWISE_COST = [
    ((Q, K, "l1"), {}, "kind is 'l1', expected one of 'l2', 'sqeuclidean', 'cosine', 'dot'"),
    ((Q.tolist(), K), {}, "queries is a list, expected a tensor .*queries m, features d"),
    ((Q, K.numpy()), {}, "keys is a ndarray, expected a tensor .*keys n, features d"),
    ((Q.long(), K), {}, "queries has dtype torch.int64, expected a floating-point"),
    ((Q, K[0, 0]), {}, r"keys has shape \(5,\), expected at least two dimensions"),
    ((Q, K[:, :0]), {}, r"keys has shape \(2, 0, 5\), expected"),
    (
        (Q, K[..., :3]),
        {},
        r"queries have 5 features and keys have 3 \(shapes \(2, 3, 5\) and \(2, 4, 3\)\), expected "
        "the same number. Project",
    ),
    (
        (Q, K.expand(2, 4, 5).to(META)),
        {},
        "queries are on cpu and keys on meta, expected one device",
    ),
    (
        (Q, torch.zeros(3, 4, 5)),
        {},
        r"queries of shape \(2, 3, 5\) and keys of shape \(3, 4, 5\) have leading dimensions that "
        "do not broadcast, expected the same batch. Add",
    ),
]

TABLE = [
    *((op, *case) for op in OPS.values() for case in COMMON),
    *((op, *case) for op in (sinkhorn, mesh, assign) for case in FORBIDDEN),
    *((op, *case) for op in (sinkhorn, mesh, emd) for case in MARGINALS),
    *((op, *case) for op in (sinkhorn, mesh) for case in ITERATED),
    *((sinkhorn, *case) for case in SINKHORN),
    *((mesh, *case) for case in MESH),
    *((entropy, *case) for case in ENTROPY),
    *((pairwise_cost, *case) for case in PAIRWISE_COST),
    (emd, (C,), {"backend": "torch"}, "backend is 'torch', expected one of 'auto', 'cpu', 'pot'"),
    (assign, (C,), {"maximize": "yes"}, "maximize is 'yes', expected True or False"),
    (assign, (C,), {"maximize": 1}, "maximize is 1, expected True or False"),
    (set_value_checks, ("sometimes",), {}, "mode is 'sometimes', expected one of 'auto', 'always'"),
]


def name_of(case):
    op, _, _, says = case
    return f"{op.__name__}: {re.sub(r'[^ .,=_a-zA-Z0-9]', '', says)[:60]}"


@pytest.mark.parametrize(("op", "args", "options", "says"), TABLE, ids=map(name_of, TABLE))
def test_mistakes_are_explained(op, args, options, says):
    with pytest.raises(ValueError, match=rf"^{op.__name__}: {says}") as caught:
        op(*args, **options)
    assert "expected" in str(caught.value) or "do not broadcast" in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("op", OPS.values())
def test_mistakes_do_not_chain_internal_errors(op):
    with pytest.raises(ValueError, match="do not broadcast") as caught:
        op(C, slot_mask=torch.ones(5, 3, dtype=torch.bool))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# What is no mistake


def test_rounding_of_totals_is_accepted():
    """Masses that were rounded before they were cast keep differing totals."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        a, b = masses(50, seed=0, total=7.0), masses(900, seed=1, total=7.0)
        a, b = a.to(dtype), b.to(dtype)
        assert a.double().sum() != b.double().sum()
        sinkhorn(torch.zeros(50, 900), a, b)
        emd(torch.zeros(50, 900), a, b)
        if dtype == torch.float32:
            sinkhorn(torch.zeros(50, 900, dtype=torch.float64), a.double(), b.double())


def test_whole_numbers_are_numbers():
    plan = mesh(C, lr=5, step=None, temperature=1, noise=0).plan
    close(plan, mesh(C, lr=5.0, temperature=1.0, noise=0.0).plan, 0.0)
    close(sinkhorn(C, tol=0, temperature=np.float64(2.0)).plan, torch.full((2, 3, 4), 0.25), 1e-6)


# When values are looked at


@pytest.fixture
def value_checks():
    """Set the mode; put back what was there."""
    before = set_value_checks("auto")
    yield set_value_checks
    set_value_checks(before)


def test_set_value_checks_returns_the_mode_before(value_checks):
    assert value_checks("never") == "auto"
    assert value_checks("always") == "never"
    assert value_checks("auto") == "always"
    with pytest.raises(ValueError, match="set_value_checks: mode"):
        value_checks("off")
    assert value_checks("auto") == "auto"


BAD_VALUES = [
    (sinkhorn, (cost_with(NAN),), {}),
    (sinkhorn, (C, -A), {}),
    (sinkhorn, (C, A, 2 * B), {}),
    (sinkhorn, (C,), {"temperature": torch.tensor(-1.0)}),
    (sinkhorn, (C,), {"input_mask": torch.zeros(4, dtype=torch.bool)}),
    (mesh, (cost_with(INF),), {}),
    (mesh, (C,), {"noise": cost_with(NAN)}),
    (emd, (C, A, 2 * B), {}),
    (entropy, (C - 1,), {}),
]


@pytest.mark.parametrize(("op", "args", "options"), BAD_VALUES)
def test_never_skips_values_but_not_shapes(value_checks, op, args, options):
    for mode in ("auto", "always"):
        value_checks(mode)
        with pytest.raises(ValueError, match=f"^{op.__name__}: "):
            op(*args, **options)
    value_checks("never")
    op(*args, **options)
    with pytest.raises(ValueError, match=rf"^{op.__name__}: .*at least two dimensions"):
        op(A)


@pytest.mark.parametrize("mode", ["auto", "always"])
@pytest.mark.parametrize(("op", "args", "options"), BAD_VALUES)
def test_values_that_do_not_exist_are_not_looked_at(value_checks, mode, op, args, options):
    """Neither the tensors' nor the options' on the meta device."""
    value_checks(mode)
    args = [x.to(META) for x in args]
    options = {key: x.to(META) for key, x in options.items()}
    op(*args, **options)


def test_values_are_not_looked_at_inside_vmap(value_checks):
    value_checks("always")
    plan = torch.vmap(lambda a: sinkhorn(C[0], a).plan)(torch.stack([A, -A]))
    close(plan[0], sinkhorn(C[0], A).plan, 0.0)


def test_a_parameter_is_checked_like_a_tensor():
    with pytest.raises(ValueError, match="sinkhorn: cost has 1 entries that are not finite"):
        sinkhorn(torch.nn.Parameter(cost_with(NAN)))


def test_messages_show_what_to_type():
    """A mend that is code works as it stands."""
    a, b = A, 2 * B
    with pytest.raises(ValueError, match="Rescale") as caught:
        sinkhorn(C, a, b)
    mend = re.search(r"b = (.*)\.$", str(caught.value))
    assert mend
    b = eval(mend[1], {"a": a, "b": b})  # noqa: S307
    sinkhorn(C, a, b)


@pytest.mark.parametrize("op", [sinkhorn, mesh])
@pytest.mark.parametrize(
    ("cost", "temperature", "says"),
    [
        (1.0, 1e-39, "cost / temperature exceeds"),
        (1e20, 1e-20, "cost / temperature exceeds"),
        (1e20, torch.tensor(1e-20), "cost / temperature exceeds"),
        (1.0, 1e300, "temperature is 1e.300, expected a number that torch.float32 can hold"),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_quotients_that_overflow(op, cost, temperature, says, backend):
    with pytest.raises(ValueError, match=f"{op.__name__}: {says}"):
        op(torch.full((3, 3), cost), temperature=temperature, backend=backend)
    wide = temperature.double() if isinstance(temperature, torch.Tensor) else temperature
    assert op(torch.full((3, 3), cost).double(), temperature=wide).plan.isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [tuple, list])
def test_potentials_that_are_none(value, kind):
    start = kind((torch.full((3,), value), torch.zeros(4)))
    with pytest.raises(ValueError, match="sinkhorn: init u has 3 invalid entries"):
        sinkhorn(torch.rand(3, 4), init=start)
    start[0][1:] = 0.0
    if value == -torch.inf:
        mass = torch.tensor([0.0, 1.0, 1.0])
        assert sinkhorn(torch.rand(3, 4), mass, init=start).plan.isfinite().all()
