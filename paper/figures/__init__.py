"""``python -m paper figure``: the figures of the paper that need no dataset."""

from paper.figures.command import NAMES, DrawFigure, run_figure
from paper.figures.objective import Derivatives, derivatives, draw_objective
from paper.figures.potentials import (
    PotentialGaps,
    draw_potentials,
    gaps_of,
    potential_gaps,
)
from paper.figures.slots import FoundObjects, draw_attention, draw_masks, found_objects
from paper.figures.temperature import (
    Scaling,
    draw_temperature,
    draw_unnormalised,
    scaling,
)

__all__ = [
    "NAMES",
    "Derivatives",
    "DrawFigure",
    "FoundObjects",
    "PotentialGaps",
    "Scaling",
    "derivatives",
    "draw_attention",
    "draw_masks",
    "draw_objective",
    "draw_potentials",
    "draw_temperature",
    "draw_unnormalised",
    "found_objects",
    "gaps_of",
    "potential_gaps",
    "run_figure",
    "scaling",
]
