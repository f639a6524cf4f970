"""The rooms: what is private to one is not used by another, and a name means one thing."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import slotmesh

SOURCE = Path(slotmesh.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
# What a room may use stands before it.
ORDER = ["files", "environment", "ops", "nn", "worlds", "readers", "models", "metrics", "report"]
ORDER += ["training", "data", "app", "demo", "cli"]


def parsed(*folders: Path) -> dict[Path, ast.Module]:
    """All Python files, as trees."""
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def imports(tree: ast.Module) -> list[str]:
    """Names of all modules and objects of slotmesh that a file imports, dotted."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith("slotmesh.")]


def test_private_names_are_used_in_their_own_room_only() -> None:
    strangers: set[str] = set()
    for file, tree in parsed(SOURCE, ROOT / "paper", ROOT / "benchmarks").items():
        mine = file.relative_to(SOURCE).parts[0] if SOURCE in file.parents else ""
        for name in imports(tree):
            _, room, *rest = name.split(".")
            private = any(part.startswith("_") and not part.startswith("__") for part in rest)
            if private and room != mine.removesuffix(".py"):
                strangers.add(f"{file.name} imports {name}")
    assert not strangers


def test_a_public_class_has_a_name_of_its_own() -> None:
    """Functions may share a name across backends."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for file, tree in parsed(SOURCE, ROOT / "paper", ROOT / "benchmarks").items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(file.name)
    assert not {name: files for name, files in homes.items() if len(files) > 1}


def test_dependencies_point_one_way() -> None:
    """report draws samples of worlds; readers return the record of worlds."""
    wrong: set[str] = set()
    for file, tree in parsed(SOURCE).items():
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room not in ORDER:
            continue
        above = ORDER[ORDER.index(room) + 1 :]
        wrong |= {f"{file.name} imports {n}" for n in imports(tree) if n.split(".")[1] in above}
    assert not wrong


@pytest.mark.parametrize("folder", ["src/slotmesh", "paper", "benchmarks", "examples"])
def test_files_are_small(folder: str) -> None:
    """Median under 150 lines, few over 400."""
    lengths = sorted(len(f.read_text().splitlines()) for f in (ROOT / folder).rglob("*.py"))
    assert lengths[len(lengths) // 2] <= 150
    assert sum(length > 400 for length in lengths) <= len(lengths) // 20 + 1
