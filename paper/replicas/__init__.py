"""Runs of one experiment that differ in seed and data, trained together as one stacked model.

The networks of Table 1 are so small that a GPU trains fifteen of them in the time of one. Each
replica is the run that ``slotmesh train`` would do: the first weights, the order of the data and
the noise are the same.

``torch.func.stack_module_state`` and ``vmap`` would not do: torch has no batching rule for
``gru_cell`` and would loop over the models, the fused marginals take parameters, which
``functional_call`` replaces by tensors, and every model draws from a generator of its own.
"""

from paper.replicas.evaluate import evaluate_replicas
from paper.replicas.train import train_replicas
from paper.replicas.trainer import ReplicaTrainer

__all__ = ["ReplicaTrainer", "evaluate_replicas", "train_replicas"]
