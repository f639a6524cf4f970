"""``slotmesh report``: one page about runs, with published numbers where available."""

import shlex
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.markup import escape

import slotmesh
from slotmesh.files import make_room, write_whole
from slotmesh.progress import Count
from slotmesh.report.run_page import Section, render_runs
from slotmesh.training.places import place_of
from slotmesh.training.report.collect import Found, collect
from slotmesh.training.report.section import make_section
from slotmesh.training.settings import at_least
from slotmesh.training.tasks import TASKS


@dataclass(frozen=True)
class Report:
    """Write an HTML report on runs: results, curves, attention and masks."""

    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)"),
    ]
    """Folders of runs, or checkpoints. Runs that have not been evaluated are evaluated for the
    report; nothing else is written."""
    out: Path = Path("report.html")
    """The file to write; an existing one is replaced."""
    n_samples: int = 4
    """Number of test samples to show per run."""
    n_cases: int = 2
    """Number of best and of worst test samples to show per run."""
    device: str = "auto"
    """cpu, cuda, or auto."""


def run_report(settings: Report, console: Console | None = None) -> Path:
    """Write the page and return its path.

    Raises:
        ValueError: If there are no runs, or a path is not a run.
    """
    if not settings.runs:
        raise ValueError("Got no run, expected at least one folder: slotmesh report RUN.")
    at_least("n_samples", settings.n_samples, 0)
    at_least("n_cases", settings.n_cases, 0)
    console = Console() if console is None else console
    device = str(place_of(settings.device))
    _check_writable(settings.out)
    found, left_out = _collect(settings.runs, device, console)
    tasks = [task for task in TASKS if any(one.settings.task == task for one in found)]
    groups: dict[tuple[str, str, str], list[Found]] = {}
    for one in sorted(found, key=lambda one: tasks.index(one.settings.task)):
        groups.setdefault(_about(one), []).append(one)
    with Count(console, "drawing the page, part", len(groups)) as count:
        sections: list[Section] = []
        for i, (group, title) in enumerate(zip(groups.values(), _titles(groups), strict=True)):
            sections.append(
                make_section(
                    group,
                    title=title,
                    number=i,
                    n_samples=settings.n_samples,
                    n_cases=settings.n_cases,
                    device=device,
                )
            )
            count.advance()
    command = ["slotmesh", "report", *map(str, settings.runs), "--out", str(settings.out)]
    versions = f"slotmesh {slotmesh.__version__}, torch {torch.__version__}"
    html = render_runs(_lead(found, tasks, left_out), sections, shlex.join(command), versions)
    write_whole(settings.out, html)
    where = escape(str(settings.out))
    said = f"Written: [bold]{where}[/bold] (open it in a browser)"
    console.print(said, highlight=False, soft_wrap=True)
    return settings.out


def _about(found: Found) -> tuple[str, str, str]:
    """Task, title and data of a run: runs on different folders of images are not compared."""
    made = found.run.experiment
    root: Path | None = getattr(found.settings.data, "root", None)
    where = "" if made.has_world or root is None else str(root.resolve())
    return found.settings.task, made.title, where


def _titles(groups: Iterable[tuple[str, str, str]]) -> list[str]:
    """The title of each part of the page; with the task, then the folder, where two are equal."""
    parts = list(groups)
    titles = [title for _, title, _ in parts]
    for i, prefix in ((0, "task "), (2, "")):
        alike: dict[str, set[str]] = {}
        for title, part in zip(titles, parts, strict=True):
            alike.setdefault(title, set()).add(part[i])
        titles = [
            f"{title}, {prefix}{part[i]}" if len(alike[title]) > 1 else title
            for title, part in zip(titles, parts, strict=True)
        ]
    return titles


def _collect(
    paths: tuple[Path, ...], device: str, console: Console
) -> tuple[list[Found], list[Path]]:
    """The runs, and the paths that are not runs: a bad one must not prevent the page."""
    found: list[Found] = []
    problems: dict[Path, ValueError] = {}
    for path in paths:
        try:
            found.append(collect(path, device, console))
        except ValueError as error:
            problems[path] = error
    if not found:
        raise next(iter(problems.values()))
    for path, error in problems.items():
        said = f"{path} is left out: {error}"
        console.print(said, style="red", markup=False, highlight=False, soft_wrap=True)
    return found, list(problems)


def _check_writable(page: Path) -> None:
    """Fail before the evaluation, not after it, if the page cannot be written."""
    if page.is_dir():
        raise ValueError(f"--out is {page}, which is a folder; expected a file.")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=page.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"--out is {page}, which cannot be written: {error.strerror or error}. "
            f"{make_room(error)}, or choose another file."
        ) from error


def _lead(found: list[Found], tasks: list[str], left_out: list[Path]) -> str:
    parts: list[str] = []
    for task in tasks:
        variants = dict.fromkeys(f.settings.variant for f in found if f.settings.task == task)
        parts.append(f"{task}: {', '.join(variants)}")
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    rest = f" Left out, as it cannot be read: {', '.join(map(str, left_out))}." if left_out else ""
    return f"{runs}. {'; '.join(parts)}.{rest}"
