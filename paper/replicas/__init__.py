"""Runs of one experiment that differ by seed and data, trained together as one stacked model.

The networks of Table 1 are so small that a GPU trains fifteen in the time of one. Each of them is
the run that ``slotmesh train`` would do: first weights, order of the data and noise are the same.

Not by ``torch.func.stack_module_state`` and ``vmap``: torch has no batching rule for ``gru_cell``
and would loop over the models, the fused marginals take parameters, which ``functional_call``
replaces by tensors, and every model draws from a generator of its own.
"""

from paper.replicas.judge import judge_together
from paper.replicas.together import Together
from paper.replicas.train import train_together

__all__ = ["Together", "judge_together", "train_together"]
