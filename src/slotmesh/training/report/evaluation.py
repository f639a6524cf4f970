"""Read evaluation.json, and check it before it is used."""

import math
from pathlib import Path
from typing import Any


def checked(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Check an evaluation, and replace null by NaN.

    Raises:
        ValueError: If ``slotmesh evaluate`` cannot have written it.
    """
    found = dict(values)
    found["metrics"] = _numbers(values.get("metrics"), "metrics", path)
    blind = _named(values.get("blind") or {}, "blind", path)
    found["blind"] = blind | {"metrics": _numbers(blind.get("metrics") or {}, "blind", path)}
    for part, name in ((found, "loss"), (found["blind"], "blind.loss")):
        if "loss" in part:
            part["loss"] = _number(part["loss"], name, path)
    found["undefined"] = _numbers(values.get("undefined") or {}, "undefined", path)
    found["slots"] = _numbers(values.get("slots") or {}, "slots", path)
    found["environment"] = _named(values.get("environment") or {}, "environment", path)
    for name in ("n", "batch_size"):
        size = values.get(name, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise _odd(path, name, size, "a number of samples")
    texts = {"root": values.get("root"), "environment": found["environment"].get("device")}
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise _odd(path, name, text, "a text")
    return found


def _numbers(values: Any, name: str, path: Path) -> dict[str, float]:
    return {k: _number(v, f"{name}.{k}", path) for k, v in _named(values, name, path).items()}


def _number(value: Any, name: str, path: Path) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _odd(path, name, value, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise _odd(path, name, value, "a number") from error


def _named(values: Any, name: str, path: Path) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise _odd(path, name, values, "values by name")
    return values


def _odd(path: Path, name: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{path} has {repr(value)[:60]} as {name!r}, expected {expected}.")
