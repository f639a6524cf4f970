"""``python -m slotmesh.experiments.reproduce NAME``: for machines without what pictures need."""

import sys

import tyro

from slotmesh.experiments.reproduce import COMMANDS


def main(words: list[str]) -> None:
    """Run one of the commands, as ``slotmesh reproduce`` does."""
    if not words or words[0] not in COMMANDS:
        raise SystemExit(f"Expected one of {', '.join(COMMANDS)} first.")
    kind, run = COMMANDS[words[0]]
    run(tyro.cli(kind, prog=f"reproduce {words[0]}", args=words[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
