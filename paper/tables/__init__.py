"""Tables 2 to 5 and the appendix, trained one run at a time: ``python -m paper table2``, ...

``definitions`` lists the tables and their rows, ``command`` runs one table, ``everything`` all of
them, ``training`` trains a run and resumes it, ``record`` is the result file, ``pictures`` and
``card`` draw and describe the models.
"""

from paper.tables.command import (
    COMMANDS,
    KINDS,
    TrainTable,
    run_table,
    settings_of,
)
from paper.tables.everything import TrainTables, run_tables

__all__ = [
    "COMMANDS",
    "KINDS",
    "TrainTable",
    "TrainTables",
    "run_table",
    "run_tables",
    "settings_of",
]
