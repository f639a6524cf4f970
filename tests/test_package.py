"""What the package promises to the outside."""

import runpy
import subprocess
import sys
from pathlib import Path

import slotmesh
from slotmesh import nn, ops

SOURCE = Path(slotmesh.__file__).parent


def test_public_names() -> None:
    """Changing these breaks users: it should be on purpose."""
    assert slotmesh.__all__ == [
        "SlotAttention",
        "__version__",
        "emd",
        "fit",
        "mesh",
        "nn",
        "ops",
        "sinkhorn",
    ]
    assert {"pairwise_cost", "entropy", "assign", "Transport"} < set(ops.__all__)
    assert {"Softmax", "Sinkhorn", "EMD", "Mesh"} < set(nn.__all__)
    for room in (slotmesh, ops, nn):
        for name in room.__all__:
            assert hasattr(room, name)


def test_the_readme_of_the_package_index() -> None:
    """Nothing there may lead to a file of the repository, which the index does not have."""
    root = Path(__file__).resolve().parents[1]
    text = (root / "README.md").read_text(encoding="utf-8")
    assert "](docs/" in text
    for_index = runpy.run_path(str(root / "hatch_build.py"))["for_index"]
    plain = for_index(text, None)
    assert "](docs/" not in plain
    assert "![" not in plain
    assert "(https://arxiv.org/abs/2301.13197)" in plain
    linked = for_index(text, "https://host/owner/name/")
    assert "](https://host/owner/name/raw/main/docs/images/ties.svg)" in linked
    assert "](https://host/owner/name/blob/main/docs/own-images.md)" in linked
    assert "](docs/" not in linked


def test_the_version_to_cite_is_this_one() -> None:
    root = Path(__file__).resolve().parents[1]
    assert f"version: {slotmesh.__version__}\n" in (root / "CITATION.cff").read_text()
    assert f"## {slotmesh.__version__}" in (root / "CHANGELOG.md").read_text()


def test_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def test_importing_needs_neither_pot_nor_scipy() -> None:
    """They are heavy, and only two operations need them."""
    heavy = {"ot", "scipy", "matplotlib", "lightning", "slotmesh.training"}
    code = f"import sys, slotmesh; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
