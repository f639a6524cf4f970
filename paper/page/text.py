"""Markdown, and what several sections say alike."""

from collections.abc import Sequence
from typing import Any

from paper.record import SIGMAS, Record

MISSING = "not measured yet"
SHARED = "Some may have been measured at once on one GPU, where each is slower than alone."


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table, with an empty line behind it."""
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


def code(*lines: str) -> list[str]:
    """Commands to type."""
    return ["```sh", *lines, "```", ""]


def cells(record: Record | None) -> list[str]:
    """Median and range for each sigma."""
    if record is None:
        return [MISSING] * len(SIGMAS)
    return [record.at(sigma).text for sigma in SIGMAS]


def sigmas() -> list[str]:
    """Headings of the columns that :func:`cells` fills."""
    return [f"sigma {sigma:g}" for sigma in SIGMAS]


def minutes(seconds: float) -> str:
    """A time to read.

    Example:
        >>> from paper.page.text import minutes
        >>> minutes(48.2), minutes(150)
        ('48 s', '2.5 min')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def numbers(values: Sequence[int]) -> str:
    """Numbers as a list or, where they follow one another, as a range.

    Example:
        >>> from paper.page.text import numbers
        >>> numbers([0, 1, 2, 3]), numbers([0, 2])
        ('0 to 3', '0, 2')
    """
    first, last = values[0], values[-1]
    if len(values) > 2 and list(values) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, values))


def in_words(settings: dict[str, Any]) -> str:
    """What the paper leaves open, as it was.

    Example:
        >>> from paper.jobs import shared
        >>> from paper.page.text import in_words
        >>> from paper.rows import beyond
        >>> in_words(shared(beyond("SA-MESH")))
        'Adam at 0.003, cosine; width 256; 3 iterations; lambda 3, potentials detach'
    """
    rate = "cosine" if settings["optim.cosine"] else "constant"
    said = [
        f"Adam at {settings['optim.lr']:g}, {rate}",
        f"width {settings['model.mlp_dim']}",
        f"{settings['model.n_iters']} iterations",
    ]
    if "transport.potentials" in settings:
        how = f"potentials {settings['transport.potentials']}"
        if settings.get("transport.grad") == "implicit":
            how = "implicit gradient"
        said.append(f"lambda {settings['transport.lr']:g}, {how}")
    return "; ".join(said)


def measured(records: Sequence[Record], *, shared: bool = False) -> list[str]:
    """What it was measured with: a row for each record; those may have shared a GPU."""
    if not records:
        return []
    rows = [
        [
            record.name,
            in_words(record.settings),
            numbers(record.seeds),
            f"{record.steps[-1]:,}",
            f"{record.n:,} {record.split} sets",
            f"{record.environment['device']}, torch {record.environment['torch']}",
            minutes(record.seconds),
            f"`{record.command}`",
        ]
        for record in records
    ]
    head = ["", "settings", "seeds", "steps", "error on", "device", "time", "command"]
    total = minutes(sum(record.seconds for record in records))
    said = f"Time is that of all runs of a row together; {total} in all."
    return [*grid(head, rows), said, *([SHARED] if shared else []), ""]
