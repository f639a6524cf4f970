"""Everything that exists for one paper: its tables measured, its figures, and RESULTS.md.

Run it from the root of a clone; ``python -m paper --help`` lists the commands.
"""

from collections.abc import Callable
from typing import Any

from paper.features import FeaturesStudy, run_features
from paper.figures import DrawFigure, run_figure
from paper.own_images import OwnImagesStudy, run_own_images
from paper.page import ResultsPage, run_results
from paper.real_clevr import RealClevr, run_real
from paper.real_clevrer import RealClevrer, run_real_videos
from paper.surplus import SurplusSlots, run_surplus
from paper.table1 import (
    Table1,
    Table1Choice,
    Table1Emd,
    run_choice,
    run_emd_study,
    run_table1,
)
from paper.tables import COMMANDS as TRAINED
from paper.tables import TrainTable, TrainTables, run_table, run_tables

COMMANDS: dict[str, tuple[type, Callable[[Any], object]]] = {
    "table1": (Table1, run_table1),
    "table1-choice": (Table1Choice, run_choice),
    "table1-emd": (Table1Emd, run_emd_study),
    **TRAINED,
    "tables": (TrainTables, run_tables),
    "real-clevr": (RealClevr, run_real),
    "real-clevrer": (RealClevrer, run_real_videos),
    "features": (FeaturesStudy, run_features),
    "own-images": (OwnImagesStudy, run_own_images),
    "surplus-slots": (SurplusSlots, run_surplus),
    "figure": (DrawFigure, run_figure),
    "results": (ResultsPage, run_results),
}
"""By name: the settings, a dataclass whose docstrings are the help text, and what runs them."""

__all__ = [
    "COMMANDS",
    "DrawFigure",
    "FeaturesStudy",
    "OwnImagesStudy",
    "RealClevr",
    "RealClevrer",
    "ResultsPage",
    "SurplusSlots",
    "Table1",
    "Table1Choice",
    "Table1Emd",
    "TrainTable",
    "TrainTables",
    "run_choice",
    "run_emd_study",
    "run_features",
    "run_figure",
    "run_own_images",
    "run_real",
    "run_real_videos",
    "run_results",
    "run_surplus",
    "run_table",
    "run_table1",
    "run_tables",
]
