"""Read the files of a run, or refuse damaged ones with an error of one line."""

import csv
import json
import math
from pathlib import Path
from typing import Any

Columns = dict[str, list[float]]
"""Numbers of a CSV file by column, NaN where it has none."""

# A run of a million steps logs some 100 MB if it logs every step.
_MOST_CSV = 256 << 20
_MOST_JSON = 16 << 20


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        ValueError: If it cannot be read, or does not contain an object.
    """
    return parse_json(_text(path, _MOST_JSON), path)


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of such a file."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {type(found).__name__}, expected values by name.")
    return found


def read_csv(path: Path) -> Columns:
    """Read columns of numbers; an empty cell is NaN, and a row that was cut short is left out.

    Raises:
        ValueError: If it exists, but is not a CSV file in UTF-8.
    """
    if not path.exists():
        return {}
    lines = _text(path, _MOST_CSV).splitlines(keepends=True)
    try:
        head, *rest = csv.reader(lines) if lines else [[]]
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}.") from error
    rows = [row for row in rest if len(row) == len(head)]
    # By column: reports read many rows of many runs.
    return {
        name: [_number(value) for value in column]
        for name, column in zip(head if rows else [], zip(*rows, strict=True), strict=True)
    }


def _text(path: Path, most: int) -> str:
    try:
        if path.stat().st_size > most:
            raise ValueError(f"{path} has more than {most >> 20} MiB, which no run writes.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason}.") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
