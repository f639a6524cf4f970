"""Notebooks run from top to bottom in a kernel of their own, as a reader would run them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
nbformat = pytest.importorskip("nbformat", reason="the tools of notebooks are not installed")
nbclient = pytest.importorskip("nbclient", reason="the tools of notebooks are not installed")
pytest.importorskip("ipykernel", reason="the tools of notebooks are not installed")
# Of jupyter_client and its event loop, not of what the notebooks do: that is another process.
pytestmark = pytest.mark.filterwarnings("ignore")


def run(notebook: Any, folder: Path) -> list[Any]:
    """Execute the notebook in a folder, and return the outputs of its cells."""
    # This interpreter, whichever kernels are registered on the machine.
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Here(AsyncKernelManager):
        @property
        def kernel_spec(self) -> KernelSpec:
            words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=words, display_name="Python", language="python")

    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        startup_timeout=300,
        kernel_manager_class=Here,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


def pictures(outputs: list[Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_your_own_images(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "docs" / "own-images.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("STEPS = 500", "STEPS = 2").replace("(300)", "(12)")
    outputs = run(notebook, tmp_path)
    assert pictures(outputs) == 1
    assert (tmp_path / "my-model" / "model.safetensors").is_file()


def test_a_page_of_the_gallery(tmp_path: Path) -> None:
    """As the documentation offers it to download."""
    pytest.importorskip("sphinx_gallery", reason="the documentation's tools are not installed")
    from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF
    from sphinx_gallery.notebook import jupyter_notebook
    from sphinx_gallery.py_source_parser import split_code_and_text_blocks

    _, blocks = split_code_and_text_blocks(str(ROOT / "examples" / "slots.py"))
    made = jupyter_notebook(blocks, dict(DEFAULT_GALLERY_CONF), str(tmp_path))
    outputs = run(nbformat.reads(json.dumps(made), as_version=4), tmp_path)
    assert pictures(outputs) == 1
    said = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert "Softmax: 0.000" in said
