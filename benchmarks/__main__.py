"""The command line of the benchmarks: ``python -m benchmarks ops|steps|table1|all``."""

import sys

import tyro

from benchmarks import Benchmark, run_benchmark
from slotmesh.cli import one_line_errors


def main(words: list[str]) -> None:
    """Run the benchmark; a mistake in its arguments ends in one line and exit code 1."""
    about = "Check and time operations and training steps, and write the times to a file."
    with one_line_errors("python -m benchmarks"):
        prog = "python -m benchmarks"
        run_benchmark(tyro.cli(Benchmark, prog=prog, description=about, args=words))


if __name__ == "__main__":
    main(sys.argv[1:])
