"""The command line of the benchmarks: ``python -m benchmarks ops|steps|table1|all``."""

import sys

from benchmarks import Benchmark, run_benchmark
from slotmesh.cli import run_command


def main(words: list[str]) -> None:
    """Run the benchmark; a mistake in its arguments ends in one line and exit code 1."""
    about = "Check and time operations and training steps, and write the times to a file."
    commands = [(Benchmark, run_benchmark)]
    run_command(lambda: Benchmark, commands, words, "python -m benchmarks", about)


if __name__ == "__main__":
    main(sys.argv[1:])
