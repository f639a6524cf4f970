"""What docs/own-images.md says can be typed, and its notebook runs from top to bottom."""

import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from slotmesh.cli import main

from .readers._folders import fill
from .readers.test_video_folder import frames

DOCS = Path(__file__).resolve().parents[1] / "docs"
SMALL = ["--steps", "2", "--data.batch-size", "2", "--hardware.accelerator", "cpu"]
SMALL += ["--model.channels", "8", "--model.slot-dim", "8", "--model.mlp-dim", "8"]
SMALL += ["--model.start", "None"]


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photos = fill(Path("photos"), 8, masks=True)
    # The page calls them by longer names.
    for path in [*photos.glob("*.png"), *photos.glob("masks/*.png")]:
        path.rename(path.with_name(f"0{path.name}"))
    for i in range(5):
        frames(Path("clips") / str(i), 6)
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / "own-images.md").read_text(), re.S)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert [words[1] for words in commands] == [
        "train",
        "report",
        "segment",
        "train",
        "segment",
        "score",
    ]
    for program, *words in commands:
        assert program == "slotmesh"
        main(words + (SMALL if words[0] == "train" else []))
    assert set(json.loads(Path("scores.json").read_text())["metrics"]) >= {"fg_ari", "mbo"}
    assert Path("runs/video/clips-SA-MESH-quick-0/settings.json").is_file()


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(Path("photos"), 8)
    Path("photos/003.png").rename("photos/0003.png")
    page = (DOCS / "own-images.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.S)[0]
    assert len([line for line in code.splitlines() if line.strip()]) == 5
    exec(code.replace("n_slots=7", "n_slots=7, steps=1, progress=False"), {})  # noqa: S102


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((DOCS / "own-images.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert any("STEPS = 200" in cell for cell in code)
    names: dict[str, object] = {}
    for cell in code:
        cell = cell.replace("STEPS = 200", "STEPS = 2").replace("range(300)", "range(12)")
        exec(cell.replace("steps=STEPS", "steps=STEPS, progress=False"), names)  # noqa: S102
    assert names["found"]._repr_png_().startswith(b"\x89PNG")  # pyright: ignore
    assert all(not cell.get("outputs") for cell in cells)


@pytest.mark.parametrize(("name", "n_slots"), [("own-images", 5), ("shipped-weights", 6)])
def test_the_pictures_are_sheets(name: str, n_slots: int) -> None:
    with Image.open(DOCS / "images" / f"{name}.png") as image:
        # The image, its segments and every slot; four of them below each other.
        across = 192 * (n_slots + 2) + 4 * (n_slots + 1) + 16
        assert image.size == (across, 4 * (192 + 28) + 8)
