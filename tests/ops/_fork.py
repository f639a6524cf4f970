"""A script: compute with threads, fork, and compute the same in the child.

It is a process of its own, for other tests may have used what torch cannot use after a fork.
"""

import os
import signal
import sys
import traceback
import warnings

import torch

from slotmesh.ops import _native, mesh


def results(cost: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A plan, what comes with it, and a gradient."""
    cost = cost.clone().requires_grad_()
    t = mesh(cost, noise=0.0, n_steps=3, backend="cpu")
    (grad,) = torch.autograd.grad(t.plan.square().sum(), cost)
    return t.plan, t.u, t.v, t.cost, grad


if __name__ == "__main__":
    _native.GRAIN = 1
    if sys.argv[1] == "own":
        _native.torch_threads = lambda process: None
    torch.set_num_threads(2)
    cost = torch.randn(8, 5, 50, generator=torch.Generator().manual_seed(0))
    expected = results(cost)
    with warnings.catch_warnings():
        # From Python 3.12 on: this process has threads. That is what it is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        # One that waits for threads which are not there would stay for ever.
        signal.alarm(300)
        try:
            for found, one in zip(results(cost), expected, strict=True):
                torch.testing.assert_close(found, one, rtol=0, atol=0)
            code = 0
        except Exception:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(code)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
