"""``slotmesh reproduce table2``, ``table3``, ...: tables that are trained run by run."""

from slotmesh.experiments.reproduce.trained.command import (
    COMMANDS,
    KINDS,
    TrainTable,
    run_table,
    settings_of,
)

__all__ = ["COMMANDS", "KINDS", "TrainTable", "run_table", "settings_of"]
