"""Table 1: our results beside the paper's."""

from pathlib import Path

from paper.page.beyond import beyond_section
from paper.page.choice import choice_section
from paper.page.emd import emd_section
from paper.page.markdown import cells, code, grid, measured, sigmas
from paper.table1.jobs import VARIANTS
from paper.table1.record import SIGMAS, GroupRecord
from paper.table1.rows import TABLE1, paper_error, rows_in
from slotmesh.training.published import TABLES

_SMALLEST = SIGMAS[-1]


def table1_section(table: str, results: Path) -> list[str]:
    """Return the section with the table, how it was measured, and its studies."""
    folder = results / TABLE1.name
    records = rows_in(folder)
    return [
        f"## {table}",
        "",
        f"{TABLES[table].about} The paper: {TABLES[table].numbers}. Ours: median [min-max].",
        "",
        *code("python -m paper table1"),
        *_beside(records),
        *measured(list(records.values())),
        *_curves(records),
        *choice_section(folder, records),
        *emd_section(folder, records.get("SA-EMD")),
        *beyond_section(results),
    ]


def _beside(records: dict[str, GroupRecord]) -> list[str]:
    """Median and range over the seeds, beside the paper's medians."""
    rows: list[list[str]] = []
    for variant in VARIANTS:
        said = [f"*{paper_error(variant, sigma):.2f}*" for sigma in SIGMAS]
        rows.append([f"*{variant}, paper*", *said, f"*{TABLES['Table 1'].seeds}*"])
        record = records.get(variant)
        n = "" if record is None else str(len(record.seeds))
        rows.append([variant, *cells(record), n])
    return grid(["", *sigmas(), "seeds"], rows)


def _curves(records: dict[str, GroupRecord]) -> list[str]:
    """The error during training at the smallest sigma, where it changes most."""
    groups: dict[tuple[int, ...], list[GroupRecord]] = {}
    for record in records.values():
        groups.setdefault(tuple(record.steps), []).append(record)
    lines: list[str] = []
    for steps, found in groups.items():
        rows = [
            [record.name, *(record.at(_SMALLEST, i).text for i in range(len(steps)))]
            for record in found
        ]
        lines += [f"During training, sigma {_SMALLEST:g}, by step:", ""]
        lines += grid(["", *(f"{step:,}" for step in steps)], rows)
    return lines
