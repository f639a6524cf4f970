"""What the trained models make of scenes, and how they got there."""

import io
import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from PIL import Image

from slotmesh.experiments.report.collect import Found
from slotmesh.experiments.report.samples import Shower
from slotmesh.experiments.reproduce.multi_dsprites.record import GRADIENTS, Measured
from slotmesh.experiments.runs import Run
from slotmesh.report.figures import COLOURS, panels, svg_bytes

CURVES = "curves.svg"
_DASHES = dict(zip(GRADIENTS, ("--", ":"), strict=True))
SCENES = 5
"""The first test scenes: none is chosen."""


def write_scenes(run: Run, evaluation: dict[str, Any], device: str, path: Path) -> None:
    """The first test scenes as they were judged, below one another."""
    found = Found(run.folder, run, whole=True, row=None, evaluation=evaluation)
    shower = Shower(found, device)
    drawn = [shower.draw(i, trace=False) for i in range(min(SCENES, shower.n))]
    sheet = Image.new("RGB", (drawn[0].width, sum(one.height for one in drawn)), "white")
    top = 0
    for one in drawn:
        sheet.paste(one, (0, top))
        top += one.height
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    _replace(path, buffer.getvalue())


def write_curves(found: dict[str, Measured], folder: Path) -> None:
    """All variants that are measured in one figure."""
    _replace(folder / CURVES, svg_bytes(draw_curves(found)))


def draw_curves(found: dict[str, Measured]) -> Figure:
    """The training loss, and both metrics of the validation scenes."""
    figure, [row] = panels(11.0, 3.1, 1, 3)
    shown = (
        ("train", "loss", "training loss", 1.0),
        ("val", "fg_ari", "FG-ARI, %, validation", 100.0),
        ("val", "fg_miou", "FG-mIoU, %, validation", 100.0),
    )
    for axes, (room, name, label, factor) in zip(row, shown, strict=True):
        for variant, one in found.items():
            steps, values = _points(getattr(one, room), name, factor)
            # The loss of single batches is noisy.
            width = 1.0 if room == "train" else 2.0
            colour, dashes = COLOURS.get(variant, COLOURS["SA-MESH"]), _DASHES.get(variant, "-")
            axes.plot(steps, values, dashes, color=colour, linewidth=width, label=variant)
        axes.set_xlabel("training step")
        axes.set_ylabel(label)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.grid(axis="y", color="#e6e8ec")
        axes.set_axisbelow(True)
        if room == "val":
            axes.set_ylim(0, 100)
            continue
        if any(one.train["step"] for one in found.values()):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        for line in axes.legend(frameon=False).get_lines():
            line.set_linewidth(2.0)
    return figure


def _points(
    columns: dict[str, list[Any]], name: str, factor: float
) -> tuple[list[int], list[float]]:
    pairs = zip(columns["step"], columns.get(name, []), strict=False)
    known = [(step, factor * value) for step, value in pairs if value is not None]
    return [step for step, _ in known], [value for _, value in known]


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole; two processes that draw the same do not disturb each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)
