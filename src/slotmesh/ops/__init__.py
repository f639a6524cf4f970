"""Transport operations: tensors in, tensors out."""

from slotmesh.ops import _operator as _operator  # makes the operators known to torch
from slotmesh.ops._backends import Backends, BackendStatus, backends
from slotmesh.ops.assignment import assign
from slotmesh.ops.checks import ValueChecks, set_value_checks
from slotmesh.ops.cost import CostKind, pairwise_cost
from slotmesh.ops.emd import emd
from slotmesh.ops.entropy import entropy
from slotmesh.ops.mesh import mesh
from slotmesh.ops.objectives import EntropyObjective, Objective, SimilarityObjective
from slotmesh.ops.sinkhorn import sinkhorn
from slotmesh.ops.transport import Transport

__all__ = [
    "BackendStatus",
    "Backends",
    "CostKind",
    "EntropyObjective",
    "Objective",
    "SimilarityObjective",
    "Transport",
    "ValueChecks",
    "assign",
    "backends",
    "emd",
    "entropy",
    "mesh",
    "pairwise_cost",
    "set_value_checks",
    "sinkhorn",
]
