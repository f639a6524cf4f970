"""Copying random objects."""

import itertools

import pytest
import torch

from slotmesh.experiments.copying import Copying, evaluate, matched_error, train, world
from slotmesh.nn import Mesh, Softmax

SMALL = Copying(steps=4, batch_size=8, n_background=10, dim=8, eval_sets=64, eval_every=2)


def test_error_is_that_of_the_best_permutation() -> None:
    torch.manual_seed(0)
    slots, objects = torch.randn(6, 4, 3), torch.randn(6, 4, 3)
    best = torch.stack(
        [
            (slots - objects[:, list(order)]).square().mean((-2, -1))
            for order in itertools.permutations(range(4))
        ]
    ).amin(0)
    assert torch.allclose(matched_error(slots, objects), best)
    assert matched_error(objects[:, [2, 0, 3, 1]], objects).max() == 0


def test_zeros_have_error_one() -> None:
    objects = world(Copying(sigma=0.01), seed=0).sample(range(500)).targets
    error = matched_error(torch.zeros_like(objects), objects).mean().sqrt() / 0.01
    assert error.item() == pytest.approx(1, abs=0.01)


def test_runs_are_repeatable_and_leave_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second = train(Mesh(), SMALL), train(Mesh(), SMALL)
    assert torch.equal(before, torch.get_rng_state())
    assert first.curve == second.curve
    assert first.error == second.error
    assert [step for step, _ in first.curve] == [0, 2, 4]


def test_every_step_is_reported() -> None:
    heard: list[int] = []
    train(Softmax(), SMALL, lambda step, error: heard.append(step))
    assert heard == [1, 2, 3, 4]


def test_mesh_learns_faster_than_softmax() -> None:
    """The demo's claim, on a smaller problem."""
    settings = Copying(steps=150, batch_size=32, n_background=20, lr=1e-2, eval_sets=256)
    errors = {type(t).__name__: train(t, settings).error for t in (Softmax(), Mesh())}
    assert errors["Mesh"] < 0.8 * errors["Softmax"]
    assert errors["Mesh"] < 0.6


def test_evaluation_has_no_training_data_in_it() -> None:
    run = train(Softmax(), SMALL)
    assert evaluate(run.model, SMALL, 64, 1) != evaluate(run.model, SMALL, 64, 2)
