"""Train on a folder of images and draw what was found into docs/images: ``own-images.md``.

The folder is filled by the world of Multi-dSprites, as if it were anybody's. It takes minutes.
"""

import shutil
import tempfile
from pathlib import Path

from PIL import Image

from slotmesh.cli import main
from slotmesh.worlds import make_world

N = 600
SHOWN = 4


def fill(folder: Path, n: int = N, *, size: int = 64) -> None:
    """Write images, and masks to compare with."""
    (folder / "masks").mkdir(parents=True)
    sample = make_world("multi-dsprites", seed=7, size=size).sample(range(n))
    for i, (image, mask) in enumerate(zip(sample.image, sample.mask, strict=True)):
        Image.fromarray(image.movedim(0, -1).numpy()).save(folder / f"{i:04d}.png")
        Image.fromarray(mask.numpy()).save(folder / "masks" / f"{i:04d}.png")


def draw(out: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "photos"
        fill(root)
        run = Path(temporary) / "run"
        main(["train", "images", "--data.root", str(root), "--out", str(run)])
        main(["evaluate", str(run)])
        from slotmesh.training.runs import open_run

        names = open_run(run).experiment.reader("test").names[:SHOWN]
        found = Path(temporary) / "segments"
        images = [str(root / name) for name in names]
        main(["segment", str(run), *images, "--out", str(found)])
        shutil.copy(found / "sheet.png", out)


if __name__ == "__main__":
    draw(Path(__file__).parent / "images" / "own-images.png")
