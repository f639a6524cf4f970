"""``python -m paper table2``, ``table3``, ...: tables that are trained run by run."""

from paper.trained.command import (
    COMMANDS,
    KINDS,
    TrainTable,
    run_table,
    settings_of,
)

__all__ = ["COMMANDS", "KINDS", "TrainTable", "run_table", "settings_of"]
