"""The models that the page offers: those that come with slotmesh, and one of the user's."""

import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from slotmesh.app import explorer as room
from slotmesh.app.explorer import Explorer
from slotmesh.app.links import ObjectsState, PropertiesState
from slotmesh.app.pictures import ShownImage
from slotmesh.training.export import ExportModel, run_export_model

from ..training._jobs import fake_run, tiny


def put(folder: Path, task: str) -> str:
    """A tiny model, exported."""
    settings = tiny(task, "SA-MESH", folder / "run")
    fake_run(settings, trained=True)
    run_export_model(ExportModel(settings.folder, folder / "mine"), Console(quiet=True))
    return str(folder / "mine")


def test_a_model_of_objects(tmp_path: Path) -> None:
    mine = put(tmp_path, "multi-dsprites")
    explorer = Explorer(mine)
    state = explorer.settle_objects(ObjectsState())
    assert (state.left, state.right) == ("multi-dsprites-sa-mesh", mine)
    html = explorer.objects(ObjectsState(left=mine, slots=3, off_left=(2,)))
    assert html.count('class="slotmesh-panel"') == 2
    assert html.count("; 1 off.") == 1
    assert len(re.findall(r'class="slotmesh-off"', html)) == 1
    # Computed once.
    shown = ShownImage("mine", torch.zeros(3, 8, 8, dtype=torch.uint8))
    assert explorer.bind(mine, shown, 3, 0) is explorer.bind(mine, shown, 3, 0)
    assert explorer.bind(mine, shown, 3, 1) is not explorer.bind(mine, shown, 3, 0)


def test_models_of_images_that_come_with_slotmesh() -> None:
    explorer = Explorer()
    worlds = ("clevrtex", "multi-dsprites")
    assert explorer.discovery == [f"{x}-{kind}" for x in worlds for kind in ("sa", "sa-mesh")]
    state = explorer.settle_objects(ObjectsState(world="clevrtex", right="clevrtex-sa-mesh"))
    assert (state.left, state.slots) == ("multi-dsprites-sa", 11)
    assert "clevrtex-sa-mesh" in explorer.objects(state)


def test_a_model_of_properties(tmp_path: Path) -> None:
    mine = put(tmp_path, "clevr-properties")
    explorer = Explorer(mine)
    assert explorer.settle_properties(PropertiesState()).model == mine
    assert "named by" in explorer.properties(PropertiesState())


def test_a_model_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a SetCopier, expected a model that finds objects"):
        Explorer(put(tmp_path, "random-objects"))


def test_names_are_escaped() -> None:
    shown = ShownImage("<img src=x>.png", torch.zeros(3, 8, 8, dtype=torch.uint8))
    html = Explorer().properties(PropertiesState(), shown)
    assert "<img src=x>" not in html
    assert "&lt;img src=x&gt;.png" in html


def test_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "names", list)
    explorer = Explorer()
    for view, state in (
        (explorer.objects, ObjectsState()),
        (explorer.properties, PropertiesState()),
    ):
        with pytest.raises(ValueError, match=r"no weights .*pass a model, slotmesh explore MODEL"):
            view(state)
