"""The command: which figures there are, how they are made and where they are written."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure as Picture
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import slotmesh
from paper.figures.objective import Derivatives, derivatives, draw_objective
from paper.figures.potentials import PotentialGaps, draw_potentials, potential_gaps
from paper.figures.temperature import (
    Scaling,
    draw_temperature,
    draw_unnormalised,
    scaling,
)
from slotmesh._files import write_whole
from slotmesh.report.figures import save_figure

FigureName = Literal["temperature", "gradient-unnormalised", "potentials", "objective", "all"]
Format = Literal["svg", "png"]


@dataclass(frozen=True)
class Figure:
    """Draw a figure of the paper that needs no dataset, with its numbers as JSON beside it."""

    name: tyro.conf.Positional[FigureName]
    """Which figure. temperature: entropy and gradient norm of Sinkhorn and of MESH.
    gradient-unnormalised: the gradient norms on their own scale. potentials: what it is worth to
    reuse Sinkhorn's potentials. objective: the derivative of a learned objective (trains for up to
    a minute)."""
    out: Path = Path("figures")
    """Folder for the pictures and the numbers."""
    format: Format = "svg"
    """Of the pictures."""
    draws: int | None = None
    """Random draws that are averaged (all but objective); by default enough to be smooth."""
    steps: int | None = None
    """Training steps (objective alone); 500 by default."""
    seed: int = 0
    """Another seed, another run."""


@dataclass(frozen=True)
class Recipe:
    """How a figure is made."""

    compute: Callable[..., Any]
    """Makes a dataclass of arrays."""
    draw: Callable[[Any], Picture]
    headline: Callable[[Any], str]
    """What the numbers show, in one line."""
    amount: Literal["draws", "steps"]
    """The setting that says how much is computed; ``compute`` has it as ``n_...``."""
    default: int


RECIPES = {
    "temperature": Recipe(scaling, draw_temperature, Scaling.entropy_headline, "draws", 256),
    "gradient-unnormalised": Recipe(
        scaling, draw_unnormalised, Scaling.gradient_headline, "draws", 256
    ),
    "potentials": Recipe(potential_gaps, draw_potentials, PotentialGaps.headline, "draws", 64),
    "objective": Recipe(derivatives, draw_objective, Derivatives.headline, "steps", 500),
}
NAMES: tuple[str, ...] = tuple(RECIPES)
"""The figures there are; ``all`` is all of them."""


def run_figure(settings: Figure, console: Console | None = None) -> list[Path]:
    """Compute, draw and write; returns the paths of the pictures."""
    names = _check(settings)
    console = Console() if console is None else console
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
        # A folder that cannot be written to should be known before the work, not after it.
        probe = settings.out / ".figure.part"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"--out {settings.out} cannot be written to: {error.strerror or error}. Choose a "
            "folder that can."
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
        said = recipe.headline(numbers)
        console.print(f"[bold]{escape(str(picture))}[/bold]: {said}", soft_wrap=True)
        pictures.append(picture)
    return pictures


def _check(settings: Figure) -> tuple[str, ...]:
    """The figures that were asked for, if everything asked for makes sense."""
    if settings.name not in get_args(FigureName):
        known = ", ".join(get_args(FigureName))
        raise ValueError(f"there is no figure {settings.name!r}, expected one of {known}.")
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
                f"--{option} means nothing to the figure {settings.name}; it has --{other} instead."
            )
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"--seed is {settings.seed}, expected at least 0 and below 2^63.")
    return names


def _options(recipe: Recipe, settings: Figure) -> dict[str, int]:
    given = settings.draws if recipe.amount == "draws" else settings.steps
    amount = recipe.default if given is None else given
    return {f"n_{recipe.amount}": amount, "seed": settings.seed}


def _compute(name: str, recipe: Recipe, settings: Figure, console: Console) -> Any:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # Without a terminal all that a bar leaves is an empty line.
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        bar = progress.add_task(name, total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        return recipe.compute(**_options(recipe, settings), on_progress=on_progress)


def _as_json(name: str, recipe: Recipe, settings: Figure, numbers: Any) -> str:
    """The numbers with six digits, and what is needed to get them again."""
    head = {
        "figure": name,
        "settings": _options(recipe, settings),
        "versions": {"slotmesh": slotmesh.__version__, "torch": torch.__version__},
    }
    body = {field.name: _plain(getattr(numbers, field.name)) for field in fields(numbers)}
    entries = {**head, **body}
    # One line an entry: long lists of numbers would be a line a number otherwise.
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
