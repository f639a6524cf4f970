"""The descent of MESH on the CPU: see :mod:`slotmesh.ops._native`."""

from dataclasses import dataclass

from torch import Tensor

from slotmesh.ops._batch import Batch
from slotmesh.ops._problem import Problem
from slotmesh.ops.mesh.naive import descend
from slotmesh.ops.mesh.objectives import EntropyObjective


@dataclass(frozen=True)
class EntropyDescent:
    """Steps down the entropy, straight through; as :func:`slotmesh.ops.mesh.naive.descend`."""

    length: float | Tensor  # norm of each step; a tensor is (batch, 1, 1)
    n_steps: int
    n_iters: int  # of the Sinkhorn in each step
    fresh: bool  # start each Sinkhorn anew

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
