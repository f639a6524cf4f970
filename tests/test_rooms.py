"""The rooms of src: what is private to one is not used by another."""

import ast
from collections import Counter
from pathlib import Path

import slotmesh

SOURCE = Path(slotmesh.__file__).parent

# To be emptied: what rooms still import of each other's private names.
STILL = {
    ("experiments/data/convert.py", "slotmesh.readers._hdf5_layout.Skipped"),
    ("experiments/data/convert.py", "slotmesh.readers._hdf5_writer.Written"),
    ("experiments/data/convert.py", "slotmesh.readers._hdf5_writer.write"),
    ("experiments/data/export.py", "slotmesh.readers._hdf5_writer.Written"),
    ("experiments/data/export.py", "slotmesh.readers._hdf5_writer.write"),
    ("experiments/training/cache.py", "slotmesh.worlds._record.Record"),
}


def imports(file: Path) -> list[str]:
    """Names of all modules and objects that a file imports, dotted."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith("slotmesh.")]


def test_private_modules_are_used_in_their_own_room_only() -> None:
    """``slotmesh._files`` is private to slotmesh, so every room may use it."""
    strangers: set[tuple[str, str]] = set()
    for file in SOURCE.rglob("*.py"):
        here = file.relative_to(SOURCE)
        for name in imports(file):
            _, room, *rest = name.split(".")
            private = any(part.startswith("_") and not part.startswith("__") for part in rest)
            if private and room != here.parts[0].removesuffix(".py"):
                strangers.add((str(here), name))
    assert strangers == STILL


def test_no_two_public_classes_of_one_name_in_ops_and_nn() -> None:
    found: Counter[str] = Counter()
    for room in ("ops", "nn"):
        for file in (SOURCE / room).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found.update(n.name for n in tree.body if isinstance(n, ast.ClassDef))
    twice = {name for name, count in found.items() if count > 1 and not name.startswith("_")}
    assert not twice
