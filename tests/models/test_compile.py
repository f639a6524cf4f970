"""Compilation without a graph break."""

import pytest
import torch

from slotmesh.nn import LearnedSlots, Mesh


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
# The compiler itself instantiates autograd functions.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_object_discovery_equals_eager(build, data):
    transport = Mesh(n_steps=1, n_iters=1, noise=0.0)
    model = build("discovery", transport, init=LearnedSlots(), n_iters=1).double()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    image = data("discovery", torch.uint8)
    results = []
    for run in (compiled, model):
        model.zero_grad()
        out = run(image)
        out.reconstruction.square().sum().backward()
        results.append((out.reconstruction, out.masks, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-9)
