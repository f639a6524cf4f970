"""The command line of the paper: ``python -m paper NAME``."""

import sys

from paper import COMMANDS
from slotmesh.cli import choices, run_command


def main(words: list[str]) -> None:
    """Run one of the commands; a mistake of the caller's ends in one line and exit code 1."""
    about = "Measure the paper's tables, draw its figures and write RESULTS.md."
    runners = dict(COMMANDS.values())
    run_command(lambda: choices(COMMANDS), lambda s: runners[type(s)](s), words, "paper", about)


if __name__ == "__main__":
    main(sys.argv[1:])
