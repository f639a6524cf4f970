"""What ``python -m benchmarks`` measured, in tables of the terminal and on the page of the docs."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import page, plots, record
from benchmarks.tables import TABLES
from slotmesh.report.figures import svg_bytes

ROOT = Path(__file__).resolve().parents[2]


def row_of(name: str, **more: Any) -> dict[str, Any]:
    """A row as it would come from a GPU, with the widest numbers there may be."""
    times = {"ms": 1234.5, "p10_ms": 1111.1, "p90_ms": 1333.3, "samples": 50}
    base = {"name": name, "batch": 960, "n": 65_536, "m": 64, "variant": "triton", "passed": True}
    base |= {"error": {"plan": 1e-7, "gradient": 1e-16}, "memory_over_cost": 13.25} | times
    base |= {"baselines": {"compiled": {"error": {"plan": 1e-7}, "passed": True, **times}}}
    return base | more


def result_of(**sections: list[dict[str, Any]]) -> dict[str, Any]:
    known = {"cuda": "13.0", "triton": "3.6.0", "threads": 16, "python": "3.12.3"}
    return {
        "device": "NVIDIA H200",
        "torch": "2.11.0+cu130",
        "sections": {
            name: {
                "command": f"python -m benchmarks {name}",
                "slotmesh": "0.1.0",
                **known,
                "rows": rows,
            }
            for name, rows in sections.items()
        },
    }


def test_tables_fit_80_columns() -> None:
    step = row_of("clevr-properties", variant="SA-MESH", precision="bf16")
    runs = row_of("random-objects", replicas=15, steps_timed=5000, extrapolated_s=123_456.0)
    failed = {"name": "mesh", "batch": 64, "n": 4096, "m": 11, "passed": False, "failure": "x" * 99}
    lost = row_of("mesh", passed=False, error={"plan": None})
    for name, rows in {
        "ops": [row_of("sinkhorn"), lost, failed],
        "steps": [step],
        "table1": [runs],
    }.items():
        screen = io.StringIO()
        Console(file=screen, width=200).print(TABLES[name](rows))
        lines = screen.getvalue().splitlines()
        assert max(len(line.rstrip()) for line in lines) <= 80
        assert "1234" in screen.getvalue() or "1235" in screen.getvalue()


def test_ratio_to_sa_is_of_the_same_task_batch_and_precision() -> None:
    rows = [
        row_of("a", variant="SA", precision="bf16", ms=2.0),
        row_of("a", variant="SA", precision="tf32", ms=4.0),
        row_of("a", variant="SA-MESH", precision="tf32", ms=5.0),
        row_of("b", variant="SA-MESH", precision="tf32", ms=5.0),
    ]
    assert [page.over_sa(row, rows) for row in rows] == ["1.00", "1.00", "1.25", "-"]


def sweep() -> list[dict[str, Any]]:
    """Rows of two sweeps, MESH with a baseline where they cross."""
    rows = [
        row_of(op, batch=64, n=n, m=m, ms=i * n * m / 1e4, p10_ms=10.0, p90_ms=20.0, baselines={})
        for i, op in enumerate(("softmax", "sinkhorn", "mesh", "emd"), 1)
        for n, m in ((1024, 11), (4096, 11), (16_384, 11), (4096, 2), (4096, 4))
    ]
    for row in rows:
        if row["name"] == "mesh" and (row["n"], row["m"]) == (4096, 11):
            row["baselines"] = {
                "compiled": {"passed": True, "ms": 27.0, "p10_ms": 26, "p90_ms": 28}
            }
    lost = {"name": "mesh", "batch": 64, "n": 8, "m": 11, "passed": False, "failure": "a reason"}
    return [*rows, row_of("assign", baselines={}), lost]


def test_the_page_has_the_numbers() -> None:
    step = row_of("multi-dsprites", variant="SA", precision="bf16", preset="paper")
    runs = row_of("random-objects", replicas=15, steps_timed=500, extrapolated_s=43.2)
    result = result_of(ops=sweep(), steps=[step], table1=[runs])
    text = page.filled(f"a\n{page.BEGIN}\nstale\n{page.END}\nb\n", {"h200": result})
    assert text.startswith(f"a\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\nb\n")
    assert "stale" not in text
    assert "## NVIDIA H200, torch 2.11.0+cu130" in text
    assert "images/speed/h200.svg" in text
    # 3 * 4096 * 11 / 1e4 = 13.5168 ms; the baseline's 27 are twice that.
    assert "| 64 | 4,096 | 11 | 13.5 | -26% +48% | 27.0 | 2.00 | 13.2 |" in text
    assert "n = 16,384 takes 4.00 times as long as n = 4,096" in text
    assert "| SA-MESH |" not in text
    assert "43 s" in text
    # Tables are folded, pictures are not.
    assert text.count(":::{fold} ") == text.count("\n:::\n") == 5
    assert page.filled(text, {"h200": result}) == text
    with pytest.raises(ValueError, match="no lines"):
        page.filled("nothing", {})


def test_gpus_come_first_and_a_cpu_alone_will_do() -> None:
    cpu = result_of(ops=[row_of("mesh", baselines={})])
    cpu["device"], cpu["sections"]["ops"]["cuda"] = "A CPU", None
    text = page.render({"a-cpu": cpu, "b-gpu": result_of(ops=sweep())})
    assert text.index("NVIDIA H200") < text.index("A CPU")
    alone = page.render({"a-cpu": cpu})
    assert "A CPU" in alone
    assert "16 threads" in alone
    assert "svg" not in alone  # one size is no line
    assert page.render({}) == "No result is committed yet.\n"


def test_the_picture_has_the_numbers() -> None:
    result = result_of(ops=sweep())
    figure = plots.draw_speed(result)
    assert figure is not None
    drawn = svg_bytes(figure).decode()
    assert 'id="mesh-n_1024-3.3792_4096-13.5168_16384-54.0672"' in drawn
    assert 'id="compiled-m_11-27"' in drawn
    assert drawn.count('id="emd-') == 2


def test_the_documentation_shows_the_committed_results() -> None:
    docs = ROOT / "docs"
    found = record.read_all(ROOT / record.FOLDER)
    text = (docs / "speed.md").read_text(encoding="utf-8")
    assert page.filled(text, found) == text, "run python -m docs.make_speed"
    pictures: set[str] = set()
    for stem, result in found.items():
        rows = result["sections"].get("ops", {}).get("rows", [])
        assert not record.wrong(row for s in result["sections"].values() for row in s["rows"])
        if plots.draw_speed(result) is None:
            continue
        pictures.add(f"{stem}.svg")
        shown = (docs / page.IMAGES / f"{stem}.svg").read_text(encoding="utf-8")
        for axis in ("n", "m"):
            for name, points in plots.lines(rows, axis).items():
                assert plots.mark(name, axis, points) in shown, "run python -m docs.make_speed"
    assert {path.name for path in (docs / page.IMAGES).glob("*")} == pictures


def test_where_the_time_goes_is_on_the_page() -> None:
    kinds = {"transport": 0.61, "convolution": 4.76, "memory": 0.2, "other": 0.3}
    step = row_of("multi-dsprites", variant="SA-MESH", precision="bf16", preset="paper")
    step["kernels"] = {"kinds": kinds, "longest": []}
    text = page.render({"h200": result_of(steps=[step])})
    assert "| multi-dsprites | SA-MESH | bf16 | 0.610 | - | - | 4.76 | - | - | 0.500 |" in text


def test_the_readme_says_what_was_measured() -> None:
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = record.read_all(ROOT / record.FOLDER)
    [gpu] = [one for one in found.values() if "steps" in one["sections"] and _on_gpu(one)]
    [call] = [
        row["ms"]
        for row in gpu["sections"]["ops"]["rows"]
        if (row["name"], row["batch"], row["n"], row["m"]) == ("mesh", 64, 4096, 6)
    ]
    assert f"64 costs of 6 x 4,096 takes {call:.2f} ms" in said
    step = {
        row["variant"]: row["ms"]
        for row in gpu["sections"]["steps"]["rows"]
        if (row["name"], row["precision"]) == ("multi-dsprites", "bf16")
    }
    mine, plain = step["SA-MESH"], step["SA"]
    assert f"bfloat16 {mine:.1f} ms, compared with {plain:.1f} ms for plain slot attention" in said
    cpus = [one["sections"]["ops"] for one in found.values() if not _on_gpu(one)]
    times = [
        row["baselines"]["eager"]["ms"] / row["ms"]
        for cpu in cpus
        for row in cpu["rows"]
        if row.get("baselines", {}).get("eager")
    ]
    assert f"MESH is {min(times):.0f} to {max(times):.0f} times as fast as" in said
    assert all(cpu["threads"] == 2 for cpu in cpus)


def _on_gpu(result: dict[str, Any]) -> bool:
    return bool(result["sections"]["ops"]["cuda"])


def test_many_slots_have_a_table_of_their_own() -> None:
    slow = {"compiled": {"passed": True, "ms": 9.0, "p10_ms": 8.0, "p90_ms": 10.0}}
    rows = [
        row_of(op, batch=4, n=1024, m=1024, ms=2.0, baselines=slow) for op in ("sinkhorn", "mesh")
    ]
    text = page.render({"h200": result_of(ops=[*rows, row_of("mesh", baselines={})])})
    assert "| Sinkhorn | 4 | 1,024 | 1,024 | 2.00 | 9.00 | 4.50 |" in text
    assert "| MESH | 4 | 1,024 | 1,024 | 2.00 | 9.00 | 4.50 |" in text
    assert "MESH and its baselines" not in text
    assert "Many slots" not in page.render({"h200": result_of(ops=[row_of("mesh")])})
