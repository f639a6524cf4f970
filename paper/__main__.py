"""The command line of the paper: ``python -m paper NAME``."""

import sys

from paper import COMMANDS
from slotmesh.cli import one_line_errors, run_one_of


def main(words: list[str]) -> None:
    """Run one of the commands; a mistake in its arguments ends in one line and exit code 1."""
    about = "Measure the paper's tables, draw its figures and write RESULTS.md."
    with one_line_errors("python -m paper"):
        run_one_of(COMMANDS, words, "python -m paper", about)


if __name__ == "__main__":
    main(sys.argv[1:])
