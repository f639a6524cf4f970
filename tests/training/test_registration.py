"""A variant, a world and a task from outside the package, by the command line alone."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotmesh.cli import main
from slotmesh.training.tasks import TASKS, preset, register_task
from slotmesh.training.variants import VARIANTS, SinkhornSettings, Variant, register_variant
from slotmesh.worlds import WORLDS

from ..processes import Script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "extend.py"
SMALL = ["--steps", "4", "--val-every", "4", "--save-every", "4", "--log-every", "2"]
SMALL += ["--data.batch-size", "4", "--data.train-size", "8", "--data.val-size", "4"]
SMALL += ["--data.test-size", "4"]


def run(script: Path, *words: str, cwd: Path) -> str:
    """What a process of its own prints."""
    log = cwd / "log"
    process = Script(script, log, *words, cwd=cwd, env={"COLUMNS": "200"})
    assert process.wait() == 0, process.output
    return process.output


# All other commands in one process.
LATER = """
import contextlib, pathlib, sys
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))
import extend
from slotmesh.cli import main
folder = sys.argv[2]
main(["evaluate", folder])
main(["export", folder, "--out", "weights"])
main(["report", folder])
main(["data", "preview", "squares", "--out", "sheet.png"])
for words in (["clevrtex", "--variant", "SA-top2"], ["squares"]):
    with contextlib.suppress(SystemExit):
        main(["train", *words, "--help"])
"""


def test_a_script_adds_them_all(tmp_path: Path) -> None:
    """Trained, evaluated, exported and reported; nothing in the package knows of them."""
    folder = "runs/squares/SA-top2-quick-0"
    words = ["train", "squares", "--variant", "SA-top2", *SMALL, "--transport.k", "1"]
    assert folder in run(EXAMPLE, *words, cwd=tmp_path)
    settings = json.loads((tmp_path / folder / "settings.json").read_text())
    assert (settings["task"], settings["transport"]) == ("squares", {"k": 1})
    with (tmp_path / folder / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)][-1] == "4"
    (tmp_path / "later.py").write_text(LATER)
    said = run(tmp_path / "later.py", str(EXAMPLE), folder, cwd=tmp_path)
    assert "fg_ari" in said
    assert (tmp_path / "weights" / "model.safetensors").is_file()
    assert (tmp_path / "sheet.png").is_file()
    page = (tmp_path / "report.html").read_text()
    assert all(word in page for word in ("Squares", "SA-top2", "#1b9e77"))
    # The new task takes the paper's variants, and the paper's tasks the new variant.
    assert "--transport.k " in said
    assert "--transport.lr " in said


def test_an_installed_package_adds_them(tmp_path: Path) -> None:
    """By an entry point, and then the plain command has them."""
    (tmp_path / "their_package.py").write_text(EXAMPLE.read_text())
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slotmesh.plugins]\nsquares = their_package\n")
    script = tmp_path / "command.py"
    script.write_text(
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "from slotmesh.cli import main\nmain(['train', '--help'])\n"
    )
    assert "squares" in run(script, str(tmp_path), cwd=tmp_path)


@pytest.fixture
def fifth() -> Iterator[str]:
    variant = Variant("SA-SH-20", type("TwentySettings", (SinkhornSettings,), {}), "#123456")
    register_variant(variant)
    yield variant.name
    del VARIANTS[variant.name]


def test_every_task_offers_a_new_variant(fifth: str) -> None:
    for task in TASKS:
        for start in ("quick", "paper"):
            settings = preset(task, fifth, start)
            assert settings.variant == fifth
            assert type(settings.transport) is VARIANTS[fifth].transport


def test_names_are_taken_once(fifth: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="'SA-SH-20' already"):
        register_variant(VARIANTS[fifth])
    with pytest.raises(ValueError, match="'clevrtex' already"):
        register_task(TASKS["clevrtex"])
    with pytest.raises(SystemExit):
        main(["train", "squares"])
    assert "squares" not in WORLDS
