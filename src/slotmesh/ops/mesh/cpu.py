r"""The descent of MESH by scalings: see :mod:`slotmesh.ops._scaling`.

The entropy's derivative is :math:`-\log P - 1`. Slot sums of the plan are constant, so what is the
same in a row changes nothing: the 1 is left out, and a row has any unit inside the logarithm. The
descent follows the derivative of :math:`\sum P \log P` backwards.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._blocked import Batch, Part, part_of
from slotmesh.ops._problem import Problem
from slotmesh.ops._scaling import Scaling
from slotmesh.ops.mesh.naive import SHORTEST, descend
from slotmesh.ops.mesh.objectives import EntropyObjective

_linalg: Any = torch.linalg


@dataclass(frozen=True)
class EntropyDescent:
    """Steps down the entropy, straight through; as :func:`slotmesh.ops.mesh.naive.descend`."""

    length: float | Tensor  # norm of each step; a tensor is (batch, 1, 1)
    n_steps: int
    n_iters: int  # of the Sinkhorn in each step
    fresh: bool  # start each Sinkhorn anew
    has_zeros: bool  # whether there may be slots or inputs without mass

    def by_scaling(
        self, block: Scaling, cost: Tensor, tau: float | Tensor, u: Tensor, part: Part
    ) -> Tensor:
        """Change costs (size, m, n) in place, from potentials u (size, m, 1); returns the next."""
        length, grad = part_of(self.length, part), block.grad
        for _ in range(self.n_steps):
            block.absorb(cost, tau, u)
            block.iterate()
            if block.lost:
                break
            if not self.fresh:
                u = u + block.last_p.log()
            _derive(block, grad, self.has_zeros)
            scale = _norm(grad).clamp_(min=SHORTEST).reciprocal_()
            if isinstance(length, Tensor):
                cost.addcmul_(grad, scale.mul_(length), value=-1)
            else:
                cost.addcmul_(grad, scale, value=-length)
        return u

    def by_logarithms(self, batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The changed costs of the elements with these indices, and the next u or None."""
        some = batch.at(rows)
        return descend(
            some.cost,
            some.task(),
            length=self.length[rows] if isinstance(self.length, Tensor) else self.length,
            n_steps=self.n_steps,
            n_iters=self.n_iters,
            temperature=some.tau,
            potentials="fresh" if self.fresh else "detach",
            objective=EntropyObjective(),
            unroll=False,
        )


def decidable_length(task: Problem, length: float | Tensor, *, given: bool) -> float | Tensor:
    """The length of steps (*batch, 1, 1), 0 where one slot or one input leaves nothing to decide.

    The derivative is zero there, and all that could be followed is its rounding. A slot without
    mass counts: it takes part in the first half-step.
    """
    if 1 in task.cost.shape[-2:]:
        return 0.0
    if not given and task.slots is None and task.inputs is None:
        return length
    undecided = (task.b > 0).sum(-1) > 1
    if task.slots is not None:
        undecided = undecided & (task.slots.sum(-1) > 1)
    return length * undecided.to(task.b.dtype)[..., None, None]


def _norm(x: Tensor) -> Tensor:
    """Frobenius norms (size, 1, 1)."""
    # Rows first: that order of sums does not depend on threads.
    rows = _linalg.vector_norm(x, dim=-1, keepdim=True)
    return _linalg.vector_norm(rows, dim=-2, keepdim=True)


def _derive(block: Scaling, grad: Tensor, has_zeros: bool) -> None:
    """Write the derivative (size, m, n) of sum P log P by K.

    Logarithms are relative to the largest of their row. Of a plan that is nearly even or nearly
    hard they are small, and so exact, where there is mass.
    """
    shares = torch.mul(block.kernel, block.last.q, out=block.spare)
    torch.mul(shares, block.last_p, out=grad)
    if has_zeros:
        shares.clamp_(min=torch.finfo(shares.dtype).tiny)
    largest = shares.amax(-1, keepdim=True)
    grad.mul_(shares.log_().sub_(largest.log_()))
    block.reverse(grad)
