"""Result files: one per device and version of torch, with a section per kind of measurement."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import AnyCase, Measurement, named
from slotmesh.environment import device_name, environment
from slotmesh.files import slug, write_whole

SECTIONS = ("ops", "steps", "table1")
FOLDER = Path("benchmarks/results")


def result_path(folder: Path, device: torch.device) -> Path:
    """Return the path of the result of a device and the installed torch."""
    return folder / f"{slug(device_name(device))}-{torch.__version__.replace('+', '-')}.json"


def versions(device: torch.device) -> dict[str, Any]:
    """Return what a section depends on besides device and torch, which name the file."""
    found = environment(device)
    packages = ("cuda", "triton", "python", "slotmesh")
    return {"threads": torch.get_num_threads(), **{name: found.get(name) for name in packages}}


def commands_of(section: dict[str, Any]) -> list[str]:
    """Return the command that measured a section, and those that measured parts of it later."""
    return [section["command"], *section.get("later", ())] if "command" in section else []


def current_command(recorded: str) -> str:
    """Return a recorded command as it is typed today.

    Example:
        >>> from benchmarks.record import current_command
        >>> current_command("slotmesh bench ops --device cpu")
        'python -m benchmarks ops --device cpu'
    """
    former = "slotmesh bench "
    if not recorded.startswith(former):
        return recorded
    return f"python -m benchmarks {recorded.removeprefix(former)}"


def measured(path: Path, section: str, device: torch.device) -> dict[str, Any]:
    """Return a section to which measurements can be added; it has no rows if there is none yet.

    Raises:
        ValueError: If it was measured with other versions.
    """
    now = versions(device)
    sections = read(path)["sections"] if path.exists() else {}
    found = sections.get(section, now | {"rows": []})
    other = [
        f"{name} {found[name]} and not {now[name]}" for name in now if found[name] != now[name]
    ]
    if other:
        raise ValueError(
            f"{path} has been measured with {', '.join(other)}. "
            "Measure everything again, without --only, or pass another --out."
        )
    return found


def merged(
    cases: Sequence[AnyCase], new: Iterable[Measurement], old: Iterable[Measurement]
) -> list[Measurement]:
    """Return the rows of cases, in their order: new ones, else old ones, else none.

    Example:
        >>> from benchmarks.cases import OpCase
        >>> from benchmarks.record import merged
        >>> cases = [OpCase("mesh", 1, 9, n) for n in (2, 3)]
        >>> new, old = ([case.row() | {"ms": ms} for case in cases] for ms in (1.0, 2.0))
        >>> [row["ms"] for row in merged(cases, new[1:], old)]
        [2.0, 1.0]
    """
    rows = [*new, *old]
    found = (next((r for r in rows if case.row().items() <= r.items()), None) for case in cases)
    return [row for row in found if row is not None]


def write_section(
    path: Path,
    section: str,
    commands: Sequence[str],
    rows: list[Measurement],
    device: torch.device,
) -> None:
    """Write a section to the file of a device; its other sections are kept.

    Args:
        path: A path from :func:`result_path`.
        section: ``ops``, ``steps`` or ``table1``.
        commands: The command that measured all of it, and those that measured parts of it later.
        rows: The measurements.
        device: The device that was measured.
    """
    result: dict[str, Any] = {
        "device": device_name(device),
        "torch": torch.__version__,
    }
    sections = read(path)["sections"] if path.exists() else {}
    command, *later = dict.fromkeys(commands)
    head = {"command": command} | ({"later": later} if later else {})
    sections[section] = {**head, **versions(device), "rows": rows}
    result["sections"] = {name: sections[name] for name in SECTIONS if name in sections}
    write_whole(path, _as_json(result))


def read(path: Path) -> dict[str, Any]:
    """Read a result.

    Raises:
        ValueError: If the file does not hold one.
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
    """Return the results in a folder by the stems of their files; other files are skipped."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = read(path)
        except ValueError:
            continue
    return found


def wrong(rows: Iterable[Measurement]) -> list[str]:
    """Return what failed its check, in words."""
    found: list[str] = []
    for row in rows:
        if not row["passed"]:
            found.append(f"{named(row)} ({_why(row)})")
        for name, other in row.get("baselines", {}).items():
            if not other["passed"]:
                found.append(f"{name} of {named(row)} ({_why(other)})")
    return found


def _as_json(result: dict[str, Any]) -> str:
    """Return JSON with one line per measurement, so that versions can be compared by line."""
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


def _why(row: Measurement) -> str:
    if "failure" in row:
        return row["failure"]
    return ", ".join(f"{kind} {_off(error)}" for kind, error in row["error"].items())


def _off(error: float | None) -> str:
    return "not finite" if error is None else f"off by {error:.1e}"
