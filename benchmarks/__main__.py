"""The command line of the benchmarks: ``python -m benchmarks ops|steps|table1|all``."""

import sys

import tyro

from benchmarks import Benchmark, run_benchmark
from slotmesh.cli import one_line_errors


def main(words: list[str]) -> None:
    """Run the benchmark; a mistake in its arguments ends in one line and exit code 1."""
    with one_line_errors("benchmarks"):
        run_benchmark(tyro.cli(Benchmark, prog="python -m benchmarks", args=words))


if __name__ == "__main__":
    main(sys.argv[1:])
