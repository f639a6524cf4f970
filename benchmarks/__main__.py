"""The command line of the benchmarks: ``python -m benchmarks ops|steps|table1|all``."""

import sys

from benchmarks import Bench, run_bench
from slotmesh.cli import run_command

if __name__ == "__main__":
    about = "Time operations and training steps; only what passes a correctness check is timed."
    run_command(lambda: Bench, run_bench, sys.argv[1:], "benchmarks", about)
