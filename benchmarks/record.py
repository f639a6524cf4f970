"""Results as files: one for each machine and torch, with a section for each kind of measurement."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Row, named
from slotmesh.environment import device_name, environment
from slotmesh.files import slug, write_whole

SECTIONS = ("ops", "steps", "table1")
FOLDER = Path("benchmarks/results")


def result_path(folder: Path, device: torch.device) -> Path:
    """The file of a device and this torch."""
    return folder / f"{slug(device_name(device))}-{torch.__version__.replace('+', '-')}.json"


def versions(device: torch.device) -> dict[str, Any]:
    """What a measurement depends on beside the device and torch, which the file is named by."""
    found = environment(device)
    names = ("cuda", "triton", "python", "slotmesh")
    return {"threads": torch.get_num_threads()} | {name: found.get(name) for name in names}


def write_section(
    path: Path, section: str, command: str, rows: list[Row], device: torch.device
) -> None:
    """Put a section into the file of a device; its other sections stay.

    Args:
        path: From :func:`result_path`.
        section: ``ops``, ``steps`` or ``table1``.
        command: What to type to measure it again.
        rows: What was measured.
        device: Where.
    """
    result: dict[str, Any] = {
        "device": device_name(device),
        "torch": torch.__version__,
    }
    sections = read(path)["sections"] if path.exists() else {}
    sections[section] = {"command": command, **versions(device), "rows": rows}
    result["sections"] = {name: sections[name] for name in SECTIONS if name in sections}
    write_whole(path, _as_json(result))


def read(path: Path) -> dict[str, Any]:
    """A result.

    Raises:
        ValueError: If the file holds something else.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(result["sections"], dict)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise ValueError(
            f"{path} holds no result of `python -m benchmarks`. Move it away or pass another --out."
        ) from error
    return result


def read_all(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of a folder by the stems of their names; other files are left out."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = read(path)
        except ValueError:
            continue
    return found


def wrong(rows: Iterable[Row]) -> list[str]:
    """What has failed its check, in words."""
    found: list[str] = []
    for row in rows:
        if not row["passed"]:
            found.append(f"{named(row)} ({_why(row)})")
        for name, other in row.get("baselines", {}).items():
            if not other["passed"]:
                found.append(f"{name} of {named(row)} ({_why(other)})")
    return found


def _as_json(result: dict[str, Any]) -> str:
    """One line a row: long, but to be compared line by line."""
    head = [f"  {json.dumps(key)}: {json.dumps(result[key])}" for key in ("device", "torch")]
    sections = [_section(name, one) for name, one in result["sections"].items()]
    body = ",\n".join(sections)
    return "{\n" + ",\n".join(head) + ',\n  "sections": {\n' + body + "\n  }\n}\n"


def _section(name: str, section: dict[str, Any]) -> str:
    entries = [
        f"      {json.dumps(key)}: {json.dumps(value)}"
        for key, value in section.items()
        if key != "rows"
    ]
    rows = ",\n".join(f"        {json.dumps(row, allow_nan=False)}" for row in section["rows"])
    entries.append(f'      "rows": [\n{rows}\n      ]')
    return f"    {json.dumps(name)}: {{\n" + ",\n".join(entries) + "\n    }"


def _why(row: Row) -> str:
    if "failure" in row:
        return row["failure"]
    return ", ".join(f"{kind} {_off(error)}" for kind, error in row["error"].items())


def _off(error: float | None) -> str:
    return "not finite" if error is None else f"off by {error:.1e}"
