"""Write the measured part of own-images.md and its pictures: python -m docs.make_own_images.

The table is what `python -m paper own-images` wrote: results/own-images.json. For one picture, a
model is trained on a folder of plain shapes, as on the page, which takes a minute or two on a CPU;
the other shows scenes of Multi-dSprites, segmented with the weights that come with slotmesh.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from paper.own_images import draw as draw_folder
from slotmesh.cli import main
from slotmesh.worlds import make_world

DOCS = Path(__file__).parent
RESULT = DOCS.parent / "results" / "own-images.json"
PAGE = DOCS / "own-images.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
FOLDERS = {
    "plain": "2 to 4 shapes, cream background",
    "grey": "the same, grey background that varies",
    "table": "the same, shaded and noisy background",
    "colour": "the same, background of a colour that varies",
    "clevr": "CLEVR, 3 to 10 objects",
}
N = 200
SHOWN = 4


def render(found: dict[str, Any]) -> str:
    """The table in Markdown, and a sentence about the folder for which other weights were tried."""
    ways = ("blind", "as they are", "adapted", "from scratch")
    lines = ["| folder | " + " | ".join(ways) + " |", "|---" * (1 + len(ways)) + "|"]
    for kind, runs in found["folders"].items():
        blind = [{"metrics": runs["adapted"][0]["blind"]}]
        cells = [_cell(blind if way == "blind" else runs[way]) for way in ways]
        lines.append(f"| {FOLDERS[kind]} | " + " | ".join(cells) + " |")
    other = found["folders"].get("colour", {}).get("adapted from clevrtex")
    if other:
        said = "With backgrounds of a colour that varies, adapting the weights of ClevrTex instead"
        lines += ["", f"{said} reaches", f"{_cell(other)}."]
    return "\n".join([*lines, ""])


def _cell(runs: list[dict[str, Any]]) -> str:
    """FG-ARI and FG-mIoU: their mean, or their range over several runs."""
    shown: list[str] = []
    for name in ("fg_ari", "fg_miou"):
        values = sorted(round(100 * run["metrics"][name]) for run in runs)
        low, high = values[0], values[-1]
        shown.append(f"{low}" if low == high else f"{low}–{high}")  # noqa: RUF001
    return " / ".join(shown)


def updated(page: str, part: str) -> str:
    """The page with another measured part."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + part + END + rest.split(END)[1]


def fill_scenes(folder: Path, n: int = SHOWN) -> None:
    """Write scenes of Multi-dSprites that the shipped weights were not trained on."""
    folder.mkdir(parents=True)
    for i, image in enumerate(
        make_world("multi-dsprites", seed=7777, size=64).sample(range(n)).image
    ):
        Image.fromarray(image.movedim(0, -1).numpy()).save(folder / f"{i:04d}.png")


def draw(images: Path) -> None:
    """Make both pictures."""
    from slotmesh.training.runs import open_run

    with tempfile.TemporaryDirectory() as temporary:
        root, run, found = (Path(temporary) / name for name in ("shapes", "run", "found"))
        draw_folder("plain", root, N)
        main(["train", "images", "--data.root", str(root), "--out", str(run)])
        names = open_run(run).experiment.reader("test").names[:SHOWN]  # pyright: ignore
        main(["segment", str(run), *(str(root / name) for name in names), "--out", str(found)])
        shutil.copy(found / "sheet.png", images / "own-images.png")

        scenes = Path(temporary) / "scenes"
        fill_scenes(scenes)
        found = Path(temporary) / "shipped"
        main(["segment", "multi-dsprites-sa-mesh", str(scenes), "--out", str(found)])
        shutil.copy(found / "sheet.png", images / "shipped-weights.png")


if __name__ == "__main__":
    text = render(json.loads(RESULT.read_text(encoding="utf-8")))
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    draw(DOCS / "images")
