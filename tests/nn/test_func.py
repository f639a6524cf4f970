"""Slot attention inside torch.func."""

import torch
from torch.func import functional_call, grad, vmap


def test_gradients_of_each_sample(quiet, build, draw, close):
    """They are those of the samples by themselves, without a warning that something is slow."""
    module = build(quiet(), n_iters=2)
    inputs, _ = draw(3)
    weights = {name: value.detach() for name, value in module.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(module, weights, (x,), {"noise": 0}).slots.sin().sum()

    of_all = vmap(grad(loss), (None, 0))(weights, inputs)
    for i in range(3):
        for name, expected in grad(loss)(weights, inputs[i]).items():
            close(of_all[name][i], expected, 1e-9)


def test_several_models_at_once(quiet, build, draw, close):
    """Weights with a leading dimension, as of an ensemble."""
    modules = [build(quiet(), n_iters=2) for _ in range(2)]
    with torch.no_grad():
        for value in modules[1].parameters():
            value.add_(0.1)
    weights, buffers = torch.func.stack_module_state(modules)
    inputs, _ = draw(2)

    def slots(weights: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(modules[0], (weights, buffers), (inputs,), {"noise": 0}).slots

    found = vmap(slots)(weights, buffers)
    for module, one in zip(modules, found, strict=True):
        close(one, module(inputs, noise=0).slots, 1e-9)
