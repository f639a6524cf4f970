"""``slotmesh bench``: how fast operations and training steps are, where they are right."""

from slotmesh.experiments.bench.command import Bench, run_bench

__all__ = ["Bench", "run_bench"]
