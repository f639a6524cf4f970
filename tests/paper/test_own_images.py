"""The study of folders of plain objects, and the table of it in the docs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from docs.make_own_images import FOLDERS, PAGE, RESULT, render, updated
from paper.own_images import KINDS, OwnImagesStudy, draw, run_own_images


@pytest.mark.parametrize("kind", KINDS)
def test_every_image_has_a_mask_of_its_objects(tmp_path: Path, kind: str) -> None:
    draw(kind, tmp_path / "one", 4)
    draw(kind, tmp_path / "other", 4)
    for path in sorted((tmp_path / "one").glob("*.png")):
        image, mask = (np.asarray(Image.open(p)) for p in (path, path.parent / "masks" / path.name))
        assert image.shape == (96, 96, 3)
        assert mask.shape == (96, 96)
        assert mask.max() >= 2
        again = np.asarray(Image.open(tmp_path / "other" / path.name))
        assert np.array_equal(image, again)


def test_the_study(tmp_path: Path) -> None:
    asked = OwnImagesStudy(
        kinds=("plain",),
        seeds=(0,),
        images=30,
        steps=1,
        device="cpu",
        runs=tmp_path / "runs",
        out=tmp_path / "found.json",
    )
    run_own_images(asked)
    found = json.loads(asked.out.read_text())
    ways = found["folders"]["plain"]
    assert (
        ways["command"]
        == "python -m paper own-images --kinds plain --seeds 0 --images 30 --steps 1"
    )
    assert [len(ways[way]) for way in ("as they are", "adapted", "from scratch")] == [1, 1, 1]
    # Trained weights beat a fixed grid, and random ones do not find anything in a step.
    known, blind = (ways["as they are"][0][of]["fg_miou"] for of in ("metrics", "blind"))
    assert known > 2 * blind
    assert ways["from scratch"][0]["metrics"]["fg_miou"] < known / 2
    assert render(found).count("\n") == 3
    # Another folder is added, in the order of the page.
    run_own_images(replace(asked, kinds=("colour",)))
    run_own_images(replace(asked, kinds=("grey",)))
    later = json.loads(asked.out.read_text())
    assert list(later["folders"]) == ["plain", "grey", "colour"]
    assert later["folders"]["plain"] == ways
    # There, other weights are tried as well.
    assert len(later["folders"]["colour"]["adapted from clevrtex"]) == 1
    assert "of ClevrTex instead" in render(later)


def test_wrong_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--kinds has 'cats', expected some of: plain, grey"):
        run_own_images(OwnImagesStudy(kinds=("cats",), runs=tmp_path, out=tmp_path / "x.json"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"folders": 3}'])
def test_a_file_of_something_else_stays(tmp_path: Path, text: str) -> None:
    out = tmp_path / "other.json"
    out.write_text(text)
    with pytest.raises(ValueError, match=r"--out is .*other\.json, which is no result"):
        run_own_images(OwnImagesStudy(runs=tmp_path / "runs", out=out))
    assert out.read_text() == text
    assert not (tmp_path / "runs").exists()


def test_the_committed_result() -> None:
    found = json.loads(RESULT.read_text())
    assert list(found["folders"]) == list(FOLDERS) == list(KINDS)
    for runs in found["folders"].values():
        assert runs["command"].startswith("python -m paper own-images")
        assert runs["images"] == 200
    page = PAGE.read_text()
    assert updated(page, render(found)) == page


def test_the_readme_says_the_same() -> None:
    folders = json.loads(RESULT.read_text())["folders"]
    shapes = [folders[kind]["adapted"] for kind in ("plain", "grey", "table")]
    values = [round(100 * run["metrics"]["fg_ari"]) for runs in shapes for run in runs]
    readme = (PAGE.parents[1] / "README.md").read_text()
    assert f"an FG-ARI of {min(values)} to {max(values)}%" in readme
