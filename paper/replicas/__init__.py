"""Runs of one experiment that differ in seed and data, trained together as one stacked model.

The networks of Table 1 are so small that a GPU trains fifteen of them in the time of one. Each
replica is the run that ``slotmesh train`` would do: the first weights, the order of the data and
the noise are the same.
"""

from paper.replicas.evaluate import evaluate_replicas
from paper.replicas.train import train_replicas
from paper.replicas.trainer import ReplicaTrainer

__all__ = ["ReplicaTrainer", "evaluate_replicas", "train_replicas"]
