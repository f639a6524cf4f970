"""Pictures of a table: what the models make of test samples, and their learning curves."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from PIL import Image

from paper.tables.record import RunRecord
from slotmesh.files import write_whole
from slotmesh.palette import VARIANT_COLOURS
from slotmesh.report.figures import panels, svg_bytes
from slotmesh.training.report.collect import Found
from slotmesh.training.report.samples import SamplePainter
from slotmesh.training.runs import Run

CURVES = "curves.svg"
_DASHES = ("-", "--", ":", "-.")
SAMPLES = 5
"""Number of test samples shown: always the first ones, not selected."""


def write_samples(run: Run, evaluation: dict[str, Any], device: str, path: Path) -> None:
    """Draw the first test samples as they were evaluated, below one another."""
    found = Found(run.folder, run, whole=True, row=None, evaluation=evaluation)
    painter = SamplePainter(found, device)
    drawn = [painter.draw(i, trace=False) for i in range(min(SAMPLES, painter.n))]
    write_png(path, below(drawn))


def below(pictures: Sequence[Image.Image], gap: int = 0) -> Image.Image:
    """Put pictures below one another, on white."""
    width = max(one.width for one in pictures)
    sheet = Image.new("RGB", (width, sum(one.height + gap for one in pictures) - gap), "white")
    top = 0
    for one in pictures:
        sheet.paste(one, (0, top))
        top += one.height + gap
    return sheet


def write_png(path: Path, picture: Image.Image) -> None:
    """Write a picture; its folder need not exist."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue())


def write_curves(found: dict[str, list[RunRecord]], folder: Path) -> None:
    """Draw all measured runs in one figure."""
    if found:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / CURVES, svg_bytes(draw_curves(found)))


def draw_curves(found: dict[str, list[RunRecord]]) -> Figure:
    """Draw the training loss and up to three validation metrics, one colour per variant."""
    # Imports matplotlib, which is slow.
    from slotmesh.training.report.compare import NAMES, PERCENT, heading

    runs = [(row, one) for row, group in found.items() for one in group]
    seen = {name for _, one in runs for name in one.val}
    metrics = [name for name in NAMES if name in seen]
    # Of six distances, show a large, a medium and a small one.
    metrics = metrics if len(metrics) < 4 else metrics[::2]
    figure, [panel] = panels(11.0, 3.1, 1, 1 + len(metrics))
    for axes, name in zip(panel, ("loss", *metrics), strict=True):
        # The loss of single batches is noisy: draw it thin.
        room, width = ("train", 1.0) if name == "loss" else ("val", 2.0)
        styles: dict[str, list[str]] = {}
        for row, one in runs:
            steps, values = _points(getattr(one, room), name, 100.0 if name in PERCENT else 1.0)
            # The baselines with noise are variants of SA.
            variant = one.settings["variant"]
            colour = VARIANT_COLOURS.get(variant, VARIANT_COLOURS["SA"])
            known = styles.setdefault(colour, [])
            known += [row] if row not in known else []
            axes.plot(
                steps,
                values,
                _DASHES[known.index(row) % len(_DASHES)],
                color=colour,
                linewidth=width,
                label=row if one is found[row][0] else None,
            )
        axes.set_xlabel("training step")
        axes.set_ylabel("training loss" if name == "loss" else f"{heading(name)}, validation")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.grid(axis="y", color="#e6e8ec")
        axes.set_axisbelow(True)
        if name in PERCENT:
            axes.set_ylim(0, 100)
        if name != "loss":
            continue
        if any(one.train["step"] for _, one in runs):
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
