"""The page docs/speed.md: tables and pictures generated from the committed results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Measurement
from benchmarks.plots import NAMES, draw_speed, fixed
from benchmarks.record import commands_of, current_command
from benchmarks.tables import (
    NOTHING,
    milliseconds,
    over_sa,
    spread,
    three,
    whole_run,
)

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
IMAGES = "images/speed"

Result = dict[str, Any]

# Operations whose calls without a graph are shown.
_CALLED = ("softmax", "sinkhorn", "mesh")
# Rows with more slots have a table of their own.
_FEW_SLOTS = 64
# Kinds of kernels, abbreviated.
_HEADS = {
    "transport": "transport",
    "distance": "distance",
    "marginal": "marginal",
    "convolution": "conv.",
    "matrix product": "matmul",
    "compiled": "compiled",
    "other": "other",
}


def filled(page: str, results: dict[str, Result]) -> str:
    """Return the page with the part between its marks generated again.

    Args:
        page: Markdown with the lines :data:`BEGIN` and :data:`END`.
        results: Results by the stems of their files; see :func:`benchmarks.record.read_all`.
    """
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(
            f"the page has no lines {BEGIN} and {END}. Add them where the results belong."
        )
    return f"{before}{BEGIN}\n\n{render(results)}\n{END}{after}"


def render(results: dict[str, Result]) -> str:
    """Return all results as Markdown, GPUs first."""
    if not results:
        return "No result is committed yet.\n"
    order = sorted(results, key=lambda stem: (not _on_gpu(results[stem]), stem))
    first = _headline(results[order[0]])
    return first + "\n".join(_machine(stem, results[stem]) for stem in order)


def _headline(result: Result) -> str:
    """One paragraph about the first machine, or nothing if too little was measured there."""
    sections = result["sections"]
    ops, steps = (sections.get(name, {}).get("rows", []) for name in ("ops", "steps"))
    timed = [row for row in ops if row["name"] == "mesh" and "ms" in row and row["n"] == 4096]
    timed = [row for row in timed if "ms" in row.get("baselines", {}).get("eager", {})]
    ours = [row for row in steps if row["variant"] == "SA-MESH" and "ms" in row]
    if not timed or not ours:
        return ""
    call, step = min(timed, key=lambda row: row["m"]), ours[0]
    same = ("name", "precision", "preset")
    [plain] = [r for r in steps if r["variant"] == "SA" and all(r[k] == step[k] for k in same)]
    faster = three(call["baselines"]["eager"]["ms"] / call["ms"])
    batch, n, m = _size(call)
    return (
        f"On an {result['device']}, MESH over {batch} costs of {m} x {n} takes "
        f"{milliseconds(call)} ms forward and backward, {faster} times as fast as a plain PyTorch "
        f"implementation (*eager* below). A training step of {step['name']} (preset "
        f"{step['preset']}, {step['precision']}) takes {milliseconds(step)} ms with SA-MESH and "
        f"{milliseconds(plain)} ms with plain slot attention.\n\n"
    )


def save_pictures(results: dict[str, Result], docs: Path) -> list[Path]:
    """Draw the pictures of the page and return their paths."""
    from slotmesh.report.figures import save_figure

    paths: list[Path] = []
    for stem, result in results.items():
        figure = draw_speed(result)
        if figure is not None:
            path = docs / IMAGES / f"{stem}.svg"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_figure(figure, path)
            paths.append(path)
    return paths


def _on_gpu(result: Result) -> bool:
    return any(section["cuda"] for section in result["sections"].values())


def _machine(stem: str, result: Result) -> str:
    lines = [f"## {result['device']}, torch {result['torch']}", ""]
    parts = {"ops": _ops, "steps": _steps, "table1": _table1}
    for name, part in parts.items():
        if name in result["sections"]:
            section = result["sections"][name]
            lines += [*part(stem, result, section["rows"]), f"{_source(section)}", ""]
    return "\n".join(lines)


def _source(section: dict[str, Any]) -> str:
    words = ", then ".join(f"`{current_command(command)}`" for command in commands_of(section))
    parts = [words, f"slotmesh {section['slotmesh']}"]
    parts += [f"Python {section['python']}"]
    if section["cuda"]:
        parts += [f"CUDA {section['cuda']}", f"triton {section['triton']}"]
    else:
        parts += [f"{section['threads']} threads" if section["threads"] > 1 else "1 thread"]
    return ", ".join(parts) + "."


def _ops(stem: str, result: Result, rows: list[Measurement]) -> list[str]:
    lines = ["### Operations", ""]
    if draw_speed(result) is not None:
        alt = f"Time of softmax, Sinkhorn, exact transport and MESH by n and m, {result['device']}"
        lines += [f"```{{image}} {IMAGES}/{stem}.svg", f":alt: {alt}", "```", ""]
    lines += _against(rows)
    lines += _sizes(rows)
    lines += _eager(rows)
    lines += _small(rows)
    lines += _large(rows)
    pairs = [row for row in rows if row["name"] == "assign"]
    if pairs:
        body = [[*_size(row), milliseconds(row), *_baselines(row, ["scipy"])] for row in pairs]
        table = _table(["batch", "n", "m", "slotmesh", "SciPy"], body)
        lines += _folded("Assignment, ms per batch", table)
    return lines


def _against(rows: list[Measurement]) -> list[str]:
    """MESH and its baselines."""
    chosen = [row for row in rows if row["name"] == "mesh" and row.get("baselines")]
    chosen = [row for row in chosen if not _is_large(row)]
    if not chosen:
        return []
    names = list(dict.fromkeys(name for row in chosen for name in row["baselines"]))
    head = ["batch", "n", "m", "slotmesh", "10 to 90 %"]
    head += [word for name in names for word in (name, "times")]
    with_memory = any("memory_over_cost" in row for row in chosen)
    body: list[list[str]] = []
    for row in chosen:
        cells = [*_size(row), milliseconds(row), spread(row)]
        for name in names:
            other = row["baselines"].get(name, {})
            cells += [milliseconds(other), _ratio(other, row)]
        if with_memory:
            memory = row.get("memory_over_cost")
            cells.append(NOTHING if memory is None else f"{memory:.1f}")
        body.append(cells)
    head += ["memory"] if with_memory else []
    text = "MESH, forward and backward, in ms. *times*: time of the baseline over that of slotmesh."
    lines = [text, "", *_table(head, body)]
    same, values = fixed(rows, "n")
    found = {row["n"]: row for row in rows if _is_mesh(row, same)}
    if {4096, 16_384} <= set(values):
        ratio = _ratio(found[16_384], found[4096])
        lines += [f"At m = {same['m']}, n = 16,384 takes {ratio} times as long as n = 4,096.", ""]
    return _folded("MESH and its baselines", lines)


def _eager(rows: list[Measurement]) -> list[str]:
    """Operations as they are called without a graph."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        if row["name"] in _CALLED and "call_ms" in row:
            found.setdefault(tuple(_size(row)), {})[row["name"]] = row["call_ms"]
    if not found:
        return []
    body = [
        [*size, *(three(times[name]) if name in times else NOTHING for name in _CALLED)]
        for size, times in found.items()
    ]
    table = _table(["batch", "n", "m", *(NAMES[name] for name in _CALLED)], body)
    return _folded("Called one by one, without a graph, ms per call: mostly host time", table)


def _small(rows: list[Measurement]) -> list[str]:
    """Many small matrices."""
    chosen = [row for row in rows if row["name"] == "small"]
    if not chosen:
        return []
    others = ["compiled", "liger"]
    body = [
        [
            *_size(row),
            three(row["forward_ms"]) if "forward_ms" in row else NOTHING,
            milliseconds(row),
            *_baselines(row, others),
        ]
        for row in chosen
    ]
    head = ["batch", "n", "m", "forward", "forward and backward", "compiled", "Liger"]
    return _folded("Sinkhorn of many small matrices, 20 iterations, in ms", _table(head, body))


def _large(rows: list[Measurement]) -> list[str]:
    """Matrices with many slots."""
    chosen = [row for row in rows if _is_large(row)]
    if not chosen:
        return []
    body = [
        [
            NAMES[row["name"]],
            *_size(row),
            milliseconds(row),
            *_baselines(row, ["compiled"]),
            _ratio(row["baselines"].get("compiled", {}), row),
        ]
        for row in chosen
    ]
    head = ["operation", "batch", "n", "m", "slotmesh", "compiled", "times"]
    return _folded("Many slots, forward and backward, in ms", _table(head, body))


def _is_large(row: Measurement) -> bool:
    compiled = "compiled" in row.get("baselines", {})
    return compiled and row["m"] > _FEW_SLOTS and row["name"] in ("sinkhorn", "mesh")


def _is_mesh(row: Measurement, same: dict[str, int]) -> bool:
    return row["name"] == "mesh" and all(row[key] == value for key, value in same.items())


def _sizes(rows: list[Measurement]) -> list[str]:
    """All operations at all sizes."""
    found: dict[tuple[str, ...], dict[str, Measurement]] = {}
    has_pot = any("pot" in row.get("baselines", {}) for row in rows)
    names = dict(NAMES)
    if any(row["name"] == "mesh_implicit" for row in rows):
        names["mesh_implicit"] = "MESH, implicit"
    for row in rows:
        if row["name"] in names:
            found.setdefault(tuple(_size(row)), {})[row["name"]] = row
    head = ["batch", "n", "m", *names.values()]
    if has_pot:
        head.append("POT")
    body: list[list[str]] = []
    for size, by_name in found.items():
        cells = [milliseconds(by_name.get(name, {})) for name in names]
        if has_pot:
            cells += _baselines(by_name.get("emd", {}), ["pot"])
        body.append([*size, *cells])
    text = "In ms; forward and backward, exact transport forward only."
    return _folded("All operations at all sizes", [text, "", *_table(head, body)])


def _steps(stem: str, result: Result, rows: list[Measurement]) -> list[str]:
    head = ["task", "variant", "preset", "batch", "n", "m", "precision", "ms", "10 to 90 %"]
    body = [
        [
            *(f"{row.get(key, NOTHING)}" for key in head[:7]),
            milliseconds(row),
            spread(row),
            over_sa(row, rows),
        ]
        for row in [row | {"task": row["name"]} for row in rows]
    ]
    table = _table([*head, "over SA"], body)
    return ["### Training steps", "", *_folded("Time of a step, in ms", table), *_kernels(rows)]


def _kernels(rows: list[Measurement]) -> list[str]:
    """Time of the kernels of a step, by kind."""
    found = [row for row in rows if "kernels" in row]
    if not found:
        return []
    body: list[list[str]] = []
    for row in found:
        times = dict(row["kernels"]["kinds"])
        times["other"] = times.get("other", 0.0) + times.pop("memory", 0.0)
        cells = [milliseconds({"ms": times[kind]} if kind in times else {}) for kind in _HEADS]
        body.append([row["name"], row["variant"], row["precision"], *cells])
    table = _table(["task", "variant", "", *_HEADS.values()], body)
    return _folded("Where the time goes, ms of kernels per step", table)


def _table1(stem: str, result: Result, rows: list[Measurement]) -> list[str]:
    head = ["variant", "runs at once", "steps timed", "ms per step", "all steps, extrapolated"]
    body = [
        [
            row["variant"],
            f"{row['replicas']}",
            f"{row.get('steps_timed', NOTHING)}",
            milliseconds(row),
            whole_run(row),
        ]
        for row in rows
    ]
    return ["### Table 1", "", *_folded("Time of a step of all runs at once", _table(head, body))]


def _size(row: Measurement) -> list[str]:
    return [f"{row[key]:,}" for key in ("batch", "n", "m")]


def _ratio(row: Measurement, other: Measurement) -> str:
    return three(row["ms"] / other["ms"]) if "ms" in row and "ms" in other else NOTHING


def _baselines(row: Measurement, names: Sequence[str]) -> list[str]:
    return [milliseconds(row.get("baselines", {}).get(name, {})) for name in names]


def _folded(title: str, lines: list[str]) -> list[str]:
    """What the page shows once the title is clicked."""
    return [f":::{{fold}} {title}", "", *lines, ":::", ""]


def _table(head: list[str], body: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *body]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]
