"""``python -m paper figure``: compute the figures, draw them and write them to files."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape

from paper.figures.objective import Derivatives, derivatives, draw_objective
from paper.figures.potentials import PotentialGaps, draw_potentials, potential_gaps
from paper.figures.slots import (
    FoundObjects,
    draw_attention,
    draw_masks,
    found_objects,
    found_on_clevrtex,
)
from paper.figures.temperature import Scaling, draw_temperature, draw_unnormalised, scaling
from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.progress import Count
from slotmesh.report.figures import save_figure

FigureName = Literal[
    "temperature",
    "potentials",
    "gradient-unnormalised",
    "objective",
    "attention",
    "masks",
    "masks-clevrtex",
    "all",
]
Format = Literal["svg", "png"]
_FIGURES = (
    "temperature (Figure 1): entropy and gradient norm of Sinkhorn and MESH. potentials (Figure "
    "3): the benefit of reusing potentials. gradient-unnormalised (Figure 4): the gradient "
    "norms on their own scale. objective (Figure 5): the derivative of a learned objective (trains "
    "for up to a minute). attention (Figure 7) and masks (Figure 8): what slots attend to in every "
    "iteration, and hold at the end, by the weights that come with slotmesh; masks-clevrtex "
    "(Figure 9): the same for the masks on ClevrTex."
)


@dataclass(frozen=True)
class DrawFigure:
    """Draw a figure of the paper that needs no dataset, and write its numbers as JSON."""

    name: Annotated[tyro.conf.Positional[FigureName], tyro.conf.arg(help=_FIGURES)]
    out: Path = Path("figures")
    """Folder for the pictures and the numbers."""
    format: Format = "svg"
    """File format of the pictures."""
    draws: int | None = None
    """Random draws to average, or scenes to show (not for objective); by default enough for smooth
    curves, and 5 scenes."""
    steps: int | None = None
    """Training steps (for objective only); 500 by default."""
    seed: int = 0
    """Seed of the draws and of the training."""


@dataclass(frozen=True)
class FigureRecipe:
    """How a figure is computed and drawn."""

    number: int
    """Number of the figure in the paper."""
    compute: Callable[..., Any]
    """Returns a dataclass of arrays."""
    draw: Callable[[Any], Figure]
    headline: Callable[[Any], str]
    """Says in one line what the numbers show."""
    amount: Literal["draws", "steps"]
    """Setting that controls the amount of computation; an argument ``n_...`` of ``compute``."""
    default: int


RECIPES = {
    "temperature": FigureRecipe(
        1, scaling, draw_temperature, Scaling.entropy_headline, "draws", 256
    ),
    "potentials": FigureRecipe(
        3, potential_gaps, draw_potentials, PotentialGaps.headline, "draws", 64
    ),
    "gradient-unnormalised": FigureRecipe(
        4, scaling, draw_unnormalised, Scaling.gradient_headline, "draws", 256
    ),
    "objective": FigureRecipe(5, derivatives, draw_objective, Derivatives.headline, "steps", 500),
    "attention": FigureRecipe(7, found_objects, draw_attention, FoundObjects.headline, "draws", 5),
    "masks": FigureRecipe(8, found_objects, draw_masks, FoundObjects.headline, "draws", 5),
    "masks-clevrtex": FigureRecipe(
        9, found_on_clevrtex, draw_masks, FoundObjects.headline, "draws", 5
    ),
}
NAMES: tuple[str, ...] = tuple(RECIPES)
"""Names of the figures; ``all`` stands for all of them."""


def run_figure(settings: DrawFigure, console: Console | None = None) -> list[Path]:
    """Compute, draw and write figures; return the paths of the pictures."""
    names = _check(settings)
    console = Console() if console is None else console
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
        # Report a folder that cannot be written to before the work, not after it.
        probe = settings.out / ".figure.part"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"--out is {settings.out}, which cannot be written to: {error.strerror or error}. "
            "Choose another folder."
        ) from error
    computed: dict[Callable[..., Any], Any] = {}
    pictures: list[Path] = []
    for name in names:
        recipe = RECIPES[name]
        if recipe.compute not in computed:
            computed[recipe.compute] = _compute(name, recipe, settings, console)
        numbers = computed[recipe.compute]
        picture = settings.out / f"{name}.{settings.format}"
        save_figure(recipe.draw(numbers), picture)
        write_whole(picture.with_suffix(".json"), _as_json(name, recipe, settings, numbers))
        said = f"Figure {recipe.number}; {recipe.headline(numbers)}"
        console.print(f"[bold]{escape(str(picture))}[/bold]: {said}", soft_wrap=True)
        pictures.append(picture)
    return pictures


def _check(settings: DrawFigure) -> tuple[str, ...]:
    """Return the names of the figures to draw, if the settings are valid."""
    if settings.name not in get_args(FigureName):
        known = ", ".join(get_args(FigureName))
        raise ValueError(f"got the figure {settings.name!r}, expected one of {known}.")
    if settings.format not in get_args(Format):
        raise ValueError(f"--format is {settings.format!r}, expected svg or png.")
    names = NAMES if settings.name == "all" else (settings.name,)
    for option, value in (("draws", settings.draws), ("steps", settings.steps)):
        if value is None:
            continue
        if value < 1:
            raise ValueError(f"--{option} is {value}, expected at least 1.")
        if all(RECIPES[name].amount != option for name in names):
            other = RECIPES[settings.name].amount
            raise ValueError(
                f"--{option} does not apply to the figure {settings.name}. Use --{other} instead."
            )
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"--seed is {settings.seed}, expected at least 0 and below 2^63.")
    return names


def _options(recipe: FigureRecipe, settings: DrawFigure) -> dict[str, int]:
    given = settings.draws if recipe.amount == "draws" else settings.steps
    amount = recipe.default if given is None else given
    return {f"n_{recipe.amount}": amount, "seed": settings.seed}


def _compute(name: str, recipe: FigureRecipe, settings: DrawFigure, console: Console) -> Any:
    with Count(console, name) as count:

        def on_progress(done: int, total: int) -> None:
            count.update(done, total=total)

        return recipe.compute(**_options(recipe, settings), on_progress=on_progress)


def _as_json(name: str, recipe: FigureRecipe, settings: DrawFigure, numbers: Any) -> str:
    """Return the numbers with six digits, and what is needed to compute them again."""
    versions = environment()
    head = {
        "figure": name,
        "settings": _options(recipe, settings),
        "versions": {package: versions[package] for package in ("slotmesh", "torch")},
    }
    shown = [field for field in fields(numbers) if not field.metadata.get("picture")]
    body = {field.name: _plain(getattr(numbers, field.name)) for field in shown}
    entries = {**head, **body}
    # One line per entry: indented JSON would put every number on its own line.
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
