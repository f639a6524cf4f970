"""The command line of the paper: ``python -m paper NAME``."""

import sys

from paper import COMMANDS
from slotmesh.cli import choices, run_command


def main(words: list[str]) -> None:
    """Run a command; a mistake in its arguments ends in one line and exit code 1."""
    about = "Measure the paper's tables, draw its figures and write RESULTS.md."
    run_command(lambda: choices(COMMANDS), list(COMMANDS.values()), words, "python -m paper", about)


if __name__ == "__main__":
    main(sys.argv[1:])
