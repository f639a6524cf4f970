"""A public class of paper or benchmarks has a name that nothing else has."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_class_shares_its_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for room in ("src", "paper", "benchmarks"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(path.relative_to(ROOT).as_posix())
    ours = {name: paths for name, paths in found.items() if not paths[-1].startswith("src/")}
    assert len(ours) > 30
    assert not {name: paths for name, paths in ours.items() if len(paths) > 1}
