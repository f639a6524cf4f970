"""Time operations and training steps; only results that pass a correctness check are timed.

Run it from the root of a clone: ``python -m benchmarks ops --device cpu``. The code is here, the
measurements are in ``results/``, and ``docs/speed.md`` shows them.
"""

from benchmarks.command import Benchmark, run_benchmark

__all__ = ["Benchmark", "run_benchmark"]
