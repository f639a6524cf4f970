"""``slotmesh reproduce``: the paper's tables, measured, and the page about them."""

from collections.abc import Callable
from typing import Any

from slotmesh.experiments.reproduce.choice import Table1Choice, run_choice
from slotmesh.experiments.reproduce.emd_study import Table1Emd, run_emd_study
from slotmesh.experiments.reproduce.page import Results, run_results
from slotmesh.experiments.reproduce.real import RealClevr, run_real
from slotmesh.experiments.reproduce.table1 import Table1, run_table1
from slotmesh.experiments.reproduce.trained import COMMANDS as TRAINED
from slotmesh.experiments.reproduce.trained import TrainTable, run_table

COMMANDS: dict[str, tuple[type, Callable[[Any], object]]] = {
    "table1": (Table1, run_table1),
    "table1-choice": (Table1Choice, run_choice),
    "table1-emd": (Table1Emd, run_emd_study),
    **TRAINED,
    "real-clevr": (RealClevr, run_real),
    "results": (Results, run_results),
}
"""Name, settings (a dataclass, whose docstrings are the help text), and what runs them."""

__all__ = [
    "COMMANDS",
    "RealClevr",
    "Results",
    "Table1",
    "Table1Choice",
    "Table1Emd",
    "TrainTable",
    "run_choice",
    "run_emd_study",
    "run_real",
    "run_results",
    "run_table",
    "run_table1",
]
