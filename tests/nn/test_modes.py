"""Compilation, export, half precision, and contexts without gradients."""

import copy

import pytest
import torch

from slotmesh import SlotAttention
from slotmesh.nn import EMD, LearnedObjective, LearnedSlots, Mesh, Sinkhorn, Softmax

# Few iterations, for every one of them is traced: transport, iterations of slots, implicit.
COMPILED = {
    "SA": (lambda: Softmax(), 2, False),
    "SA-SH": (lambda: Sinkhorn(n_iters=2), 2, True),
    "SA-SH implicit": (lambda: Sinkhorn(n_iters=2, grad="implicit"), 1, False),
    "SA-EMD": (lambda: EMD(n_iters=1), 1, False),
    "SA-MESH": (lambda: Mesh(n_iters=2, n_steps=1, noise=0.0), 1, False),
}


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
# The compiler itself instantiates autograd functions.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", list(COMPILED))
def test_compiled_without_graph_breaks_equals_eager(name, build, draw, gradients, close):
    make, n_iters, implicit = COMPILED[name]
    module = build(make(), n_iters=n_iters, implicit=implicit, init=LearnedSlots())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    inputs, _ = draw(2)
    inputs.requires_grad_()
    masks = {"input_mask": torch.arange(7) < 6} if implicit else {}
    out, expected = compiled(inputs, **masks), module(inputs, **masks)
    close(out.slots, expected.slots)
    close(tuple(out.transport), tuple(expected.transport))
    close(gradients(module, out.slots, inputs), gradients(module, expected.slots, inputs), 1e-11)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_noise_is_drawn_anew_in_compiled_code(build, draw):
    module = build(Mesh(n_iters=1, n_steps=1, noise=0.5), n_iters=1)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    inputs, slots = draw(2)
    with torch.no_grad():
        first, second = (compiled(inputs, slots).slots for _ in range(2))
    assert (first - second).abs().max() > 1e-4


EXPORTED = {
    "SA": lambda: Softmax(),
    "SA-SH": lambda: Sinkhorn(n_iters=2),
    "SA-EMD": lambda: EMD(n_iters=1),
    "SA-MESH": lambda: Mesh(n_iters=2, n_steps=1, noise=0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(EXPORTED))
def test_exported_for_any_batch_equals_eager(name, build, draw, close):
    module = build(EXPORTED[name](), n_iters=1)
    inputs, slots = draw(2)
    batch = torch.export.Dim("batch", min=1, max=64)
    sizes = {0: batch}
    program = torch.export.export(
        module, (inputs, slots), dynamic_shapes={"inputs": sizes, "slots": sizes}
    ).module()
    for size in (1, 2, 5):
        inputs, slots = draw(size)
        out, expected = program(inputs, slots), module(inputs, slots)
        close(out.slots, expected.slots)
        close(out.attention, expected.attention)


@pytest.mark.slow
def test_exported_with_masks_equals_eager(build, draw, close):
    module = build(Sinkhorn(n_iters=1), n_iters=1)
    inputs, slots = draw(2)
    sizes = {0: torch.export.Dim("batch", min=1, max=64)}
    options = {"input_mask": torch.arange(7).expand(2, 7) < 5}
    program = torch.export.export(
        module,
        (inputs, slots),
        options,
        dynamic_shapes={"inputs": sizes, "slots": sizes, "input_mask": sizes},
    ).module()
    inputs, slots = draw(3)
    mask = torch.arange(7).expand(3, 7) < torch.tensor([[2], [5], [7]])
    out = program(inputs, slots, input_mask=mask)
    close(out.slots, module(inputs, slots, input_mask=mask).slots)


def single(build, transport, **settings):
    """A float32 module and float32 data, all of them exactly representable in bfloat16.

    Sizes are kept small: large bfloat16 products go to a library whose instructions some virtual
    machines announce but do not have.
    """
    module = build(transport, **settings).bfloat16().float()
    return module, torch.randn(2, 7, 6).bfloat16().float(), torch.randn(2, 3, 5).bfloat16().float()


def assert_nearly(actual, expected, variant):
    """Equal up to the rounding of bfloat16."""
    error = (actual - expected).abs()
    # Exact plans jump where two of them cost nearly the same; all others follow smoothly.
    assert (error.median() if variant is EMD else error.max()) < 0.03


def test_autocast_is_finite_and_close_to_float32(variant, build):
    module, inputs, slots = single(build, variant())
    expected = module(inputs, slots)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(inputs, slots)
    assert out.slots.dtype == torch.float32, "only what is inside an iteration is rounded"
    out.slots.square().sum().backward()
    assert out.slots.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
    assert module.to_key.weight.grad.abs().max() > 0
    assert_nearly(out.slots, expected.slots, variant)
    assert out.transport.u.dtype == torch.float32


@pytest.mark.parametrize("half", [torch.float32, torch.bfloat16])
def test_autocast_takes_inputs_and_slots_of_either_dtype(half, variant, build):
    module, inputs, slots = single(build, variant())
    mask = torch.tensor([True, True, False])
    with torch.autocast("cpu", torch.bfloat16):
        out = module(inputs.to(half), slots.to(half), slot_mask=mask)
    assert out.slots.dtype == half
    assert out.slots.isfinite().all()
    assert torch.equal(out.slots[:, 2].float(), slots[:, 2])


def test_a_bfloat16_module_is_close_to_float32(variant, build):
    module, inputs, slots = single(build, variant())
    expected = module(inputs, slots)
    small = copy.deepcopy(module).bfloat16()
    out = small(inputs.bfloat16(), slots.bfloat16())
    assert out.slots.dtype == out.attention.dtype == torch.bfloat16
    assert out.transport.u.dtype == torch.float32, "transport is computed in float32 inside"
    out.slots.float().square().sum().backward()
    assert small.to_query.weight.grad.isfinite().all()
    assert_nearly(out.slots.float(), expected.slots, variant)


def test_learned_objectives_in_bfloat16(build):
    module, inputs, slots = single(
        build, Mesh(objective=LearnedObjective(hidden_dim=8), grad="unroll", n_iters=5)
    )
    out = module.bfloat16()(inputs.bfloat16(), slots.bfloat16())
    out.slots.float().sum().backward()
    assert module.transport.objective.out_weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_dtype_of_the_module(dtype, variant, build, draw):
    module = build(variant()).to(dtype)
    inputs, slots = (x.to(dtype) for x in draw(2))
    for out in (module(inputs, slots), module(inputs)):
        kinds = {x.dtype for x in (out.slots, out.attention, *out.transport[:5])}
        assert kinds == {dtype}


def test_float32_is_close_to_float64(quiet, build, draw):
    module = build(quiet())
    inputs, slots = draw(2)
    expected = module(inputs, slots).slots
    actual = module.float()(inputs.float(), slots.float()).slots
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("implicit", [False, True])
def test_without_gradients_the_result_is_the_same_and_has_no_graph(
    context, implicit, quiet, build, draw, close
):
    module = build(quiet(), implicit=implicit)
    inputs, slots = draw(2)
    expected = module(inputs, slots)
    with context():
        out = module(inputs, slots, trace=True)
        drawn = module(inputs)
    close(out.slots.clone(), expected.slots.detach(), 0.0)
    for x in (out.slots, out.attention, out.trace, *out.transport, drawn.slots):
        assert not x.requires_grad
        assert x.grad_fn is None


def test_slots_of_one_frame_start_the_next(variant, build, draw):
    module = build(variant())
    frames = draw(2, 3)[0].unbind(1)
    slots = None
    for frame in frames:
        slots = module(frame, slots).slots
    slots.square().sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_a_module_on_the_meta_device_gives_shapes(variant):
    module = SlotAttention(6, 5, 3, variant()).to("meta")
    out = module(torch.empty(2, 7, 6, device="meta"))
    assert out.slots.shape == (2, 3, 5)
    assert out.attention.is_meta


@pytest.mark.usefixtures("fresh_compiler")
def test_a_traced_update_has_no_kernel_of_its_own(build, draw):
    """CUDA's fused cell cannot be traced with a batch size that varies."""
    module = build(Softmax(), n_iters=1)
    seen: list[str] = []

    def watch(graph, inputs):
        calls = (n for n in graph.graph.nodes if n.op.startswith("call"))
        seen.extend(str(node.target) for node in calls)
        return graph.forward

    compiled = torch.compile(module, fullgraph=True, backend=watch, dynamic=True)
    inputs, slots = draw(2)
    torch.testing.assert_close(compiled(inputs, slots).slots, module(inputs, slots).slots)
    assert seen
    assert not [name for name in seen if "gru" in name.lower()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_traced_update_is_the_cell(monkeypatch, dtype):
    from slotmesh.nn.slot_attention import _gru

    cell = torch.nn.GRUCell(6, 6, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    x, h = (torch.randn(5, 6, dtype=cell.weight_ih.dtype) for _ in range(2))
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        expected = cell(x, h)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        traced = _gru(cell, x, h)
    tolerance = 1e-12 if dtype == torch.float64 else 0.05
    torch.testing.assert_close(traced.double(), expected.double(), rtol=0, atol=tolerance)


def test_attention_stays_in_float32_under_autocast(variant, build):
    module = build(variant()).float()
    inputs = torch.randn(2, 7, module.to_key.in_features)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(inputs)
    assert out.attention.dtype == out.transport.plan.dtype == torch.float32


def test_values_are_multiplied_in_half_precision_under_autocast(build, monkeypatch):
    module = build(Softmax()).float()
    seen = []
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: seen.append(a.dtype) or product(a, b)
    )
    with torch.autocast("cpu", torch.bfloat16):
        module(torch.randn(2, 7, module.to_key.in_features))
    # Scores, then values, in every iteration.
    assert seen == [torch.float32, torch.bfloat16] * module.n_iters
