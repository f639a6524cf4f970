"""Train on a folder of images and draw what was found into docs/images, for ``own-images.md``.

The images are coloured squares on black, and scenes of Multi-dSprites for the weights that come
with slotmesh. It takes minutes on a CPU.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from slotmesh.cli import main
from slotmesh.worlds import make_world

N = 600
SHOWN = 4
COLOURS = np.array([[0, 0, 0], [230, 60, 60], [60, 200, 90]], np.uint8)


def fill_squares(folder: Path, n: int = N, side: int = 64) -> None:
    """Write images of two squares on black, and masks to compare with."""
    (folder / "masks").mkdir(parents=True)
    rng = np.random.default_rng(0)
    edge = side // 4
    for i in range(n):
        mask = np.zeros((side, side), np.uint8)
        for k, (y, x) in enumerate(rng.integers(0, side - edge, (2, 2))):
            mask[y : y + edge, x : x + edge] = k + 1
        Image.fromarray(COLOURS[mask]).save(folder / f"{i:04d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{i:04d}.png")


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
        root, run, found = (Path(temporary) / name for name in ("squares", "run", "found"))
        fill_squares(root)
        words = ["--data.root", str(root), "--data.size", "16", "--steps", "800"]
        main(["train", "images", *words, "--out", str(run)])
        main(["evaluate", str(run)])
        names = open_run(run).experiment.reader("test").names[:SHOWN]  # pyright: ignore
        main(["segment", str(run), *(str(root / name) for name in names), "--out", str(found)])
        shutil.copy(found / "sheet.png", images / "own-images.png")

        scenes = Path(temporary) / "scenes"
        fill_scenes(scenes)
        found = Path(temporary) / "shipped"
        main(["segment", "multi-dsprites-sa-mesh", str(scenes), "--out", str(found)])
        shutil.copy(found / "sheet.png", images / "shipped-weights.png")


if __name__ == "__main__":
    draw(Path(__file__).parent / "images")
