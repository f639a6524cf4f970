"""The paper: its tables, measured, its figures, and the page about both.

Importable from a clone of the repository; ``python -m paper --help`` lists the commands.
"""

from collections.abc import Callable
from typing import Any

from paper.choice import Table1Choice, run_choice
from paper.emd_study import Table1Emd, run_emd_study
from paper.figures import Figure, run_figure
from paper.page import Results, run_results
from paper.real import RealClevr, run_real
from paper.table1 import Table1, run_table1
from paper.trained import COMMANDS as TRAINED
from paper.trained import TrainTable, run_table

COMMANDS: dict[str, tuple[type, Callable[[Any], object]]] = {
    "table1": (Table1, run_table1),
    "table1-choice": (Table1Choice, run_choice),
    "table1-emd": (Table1Emd, run_emd_study),
    **TRAINED,
    "real-clevr": (RealClevr, run_real),
    "figure": (Figure, run_figure),
    "results": (Results, run_results),
}
"""Name, settings (a dataclass, whose docstrings are the help text), and what runs them."""

__all__ = [
    "COMMANDS",
    "Figure",
    "RealClevr",
    "Results",
    "Table1",
    "Table1Choice",
    "Table1Emd",
    "TrainTable",
    "run_choice",
    "run_emd_study",
    "run_figure",
    "run_real",
    "run_results",
    "run_table",
    "run_table1",
]
