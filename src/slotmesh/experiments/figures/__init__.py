"""``slotmesh figure``: the figures of the paper that need no dataset, computed and drawn."""

from slotmesh.experiments.figures.command import NAMES, Figure, run_figure
from slotmesh.experiments.figures.objective import Derivatives, derivatives, draw_objective
from slotmesh.experiments.figures.potentials import (
    PotentialGaps,
    draw_potentials,
    gaps_of,
    potential_gaps,
)
from slotmesh.experiments.figures.temperature import (
    Scaling,
    draw_temperature,
    draw_unnormalised,
    scaling,
)

__all__ = [
    "NAMES",
    "Derivatives",
    "Figure",
    "PotentialGaps",
    "Scaling",
    "derivatives",
    "draw_objective",
    "draw_potentials",
    "draw_temperature",
    "draw_unnormalised",
    "gaps_of",
    "potential_gaps",
    "run_figure",
    "scaling",
]
