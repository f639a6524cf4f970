"""The command line of the benchmarks: ``python -m benchmarks ops|steps|table1|all``."""

import sys

import tyro

from benchmarks import Bench, run_bench
from slotmesh.cli import one_line_errors

if __name__ == "__main__":
    with one_line_errors("benchmarks"):
        run_bench(tyro.cli(Bench, prog="benchmarks", args=sys.argv[1:]))
