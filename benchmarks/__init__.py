"""Timing of operations and training steps; only results that pass a correctness check are timed.

Importable from a clone of the repository: ``python -m benchmarks ops --device cpu``.
"""

from benchmarks.command import Bench, run_bench

__all__ = ["Bench", "run_bench"]
