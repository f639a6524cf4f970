"""Numbers of NumPy count as numbers: settings come from arrays as often as from source."""

import numpy as np
import pytest
import torch

from slotmesh.nn import Mesh
from slotmesh.ops import mesh, sinkhorn

from ._reference import randn

REALS = [np.float16, np.float32, np.float64, np.int32, np.uint8, np.longdouble]


@pytest.mark.parametrize("kind", REALS)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_reals_and_counts(kind, backend):
    cost, one = randn(3, 4, seed=0, dtype=torch.float32), kind(1)
    zeros = torch.zeros(1)
    count = np.int64(2)
    for step in ({"lr": one}, {"step": one}):
        plain = dict.fromkeys(step, 1.0)
        t = mesh(
            cost,
            n_steps=count,
            n_iters=count,
            temperature=one,
            noise=zeros,
            backend=backend,
            **step,
        )
        same = mesh(cost, n_steps=2, n_iters=2, noise=zeros, backend=backend, **plain)
        assert torch.equal(t.plan, same.plan)
    t = sinkhorn(cost, n_iters=count, temperature=one, backend=backend)
    assert torch.equal(t.plan, sinkhorn(cost, n_iters=2, backend=backend).plan)
    assert torch.equal(mesh(cost, noise=kind(0)).plan, mesh(cost, noise=0.0).plan)
    assert sinkhorn(cost, tol=one).converged


def test_modules_keep_numbers_of_python():
    transport = Mesh(
        lr=np.float32(2), n_iters=np.int64(3), temperature=np.float32(1), mass=np.int32(2)
    )
    kept = (transport.lr, transport.n_iters, transport.temperature, transport.mass)
    assert [type(x) for x in kept] == [float, int, float, float]


@pytest.mark.parametrize("bad", [np.float32("nan"), np.float32(-1), np.bool_(True), np.zeros(2)])
def test_other_things_of_numpy_are_no_numbers(bad):
    cost = torch.zeros(2, 2)
    for options in ({"lr": bad}, {"step": bad}, {"noise": bad}, {"n_steps": bad}, {"n_iters": bad}):
        with pytest.raises(ValueError, match="expected a"):
            mesh(cost, **options)
    with pytest.raises(ValueError, match="expected a"):
        sinkhorn(cost, temperature=bad)
