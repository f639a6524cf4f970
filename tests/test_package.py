"""What the package promises to the outside."""

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


def test_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def test_importing_needs_neither_pot_nor_scipy() -> None:
    """They are heavy, and only two operations need them."""
    heavy = {"ot", "scipy", "matplotlib", "lightning", "slotmesh.training"}
    code = f"import sys, slotmesh; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
