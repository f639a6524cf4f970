"""``python -m benchmarks``: what is wrong is not timed, and what is written can be relied on."""

import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from rich.console import Console

from benchmarks import (
    Benchmark,
    __main__,
    gate,
    measure,
    record,
    run_benchmark,
    steps,
    table1,
)
from benchmarks.baselines import compiled_mesh, eager_mesh
from benchmarks.cases import OpCase, op_cases
from benchmarks.gate import assignment_errors, exact_errors, noted, passed
from benchmarks.ops import measure_ops
from benchmarks.problems import PROBLEMS
from benchmarks.processes import measure_in_processes
from benchmarks.timing import time_together
from slotmesh import ops
from slotmesh.ops import Transport, assign, emd, mesh, sinkhorn

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
SMALL = [OpCase("mesh", 2, 12, 3, ("eager",)), OpCase("emd", 2, 12, 3), OpCase("assign", 2, 4, 4)]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=dice, dtype=torch.float64)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Benchmark, Path, str]:
    """What ``python -m benchmarks ops --quick`` was asked, wrote and printed."""
    out, screen = tmp_path_factory.mktemp("bench") / "new", io.StringIO()
    bench = Benchmark("ops", device="cpu", quick=True, seconds=0.01, threads=1, out=out)
    return bench, run_benchmark(bench, Console(file=screen, width=80)), screen.getvalue()


# Baselines


@pytest.mark.parametrize("options", [{"lr": 5.0}, {"lr": 1.5, "n_steps": 2, "n_iters": 3}])
def test_eager_baseline_is_mesh(options: dict[str, Any]) -> None:
    cost, noise, weight = randn(3, 3, 5, 17)
    cost.requires_grad_()
    plans = eager_mesh(cost, noise, **options), mesh(cost, noise=noise, **options).plan
    torch.testing.assert_close(*plans, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(plan, cost, weight)[0] for plan in plans]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-11)


def test_compiled_baseline_is_mesh_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    asked: dict[str, Any] = {}

    def cheap(function: Any, **options: Any) -> Any:
        asked.update(options)
        return compile_(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", cheap)
    cost, noise = randn(2, 2, 3, 9)
    found = compiled_mesh()(cost, noise)
    assert asked == {"fullgraph": True, "dynamic": False}
    torch.testing.assert_close(found, mesh(cost, lr=5.0, noise=noise).plan)


# The gate


def wrong_plan(t: Transport) -> Transport:
    return t._replace(plan=t.plan * (1 + 1e-3))


def wrong_gradient(t: Transport) -> Transport:
    return t._replace(plan=t.plan + 1e-3 * (t.plan - t.plan.detach()))


def not_a_number(t: Transport) -> Transport:
    return t._replace(plan=t.plan * torch.nan)


@pytest.mark.parametrize("spoil", [wrong_plan, wrong_gradient, not_a_number])
@pytest.mark.parametrize("op", ["mesh", "sinkhorn"])
def test_wrong_plans_and_gradients_are_not_timed(
    op: str, spoil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {"mesh": mesh, "sinkhorn": sinkhorn}[op]

    def spoiled(cost: torch.Tensor, **options: Any) -> Transport:
        found = right(cost, **options)
        return found if options["backend"] == "torch" else spoil(found)

    case = OpCase(op, 2, 12, 3, ("eager",) if op == "mesh" else ())  # pyright: ignore
    assert "ms" in next(measure_ops([case], CPU, 0.001))
    monkeypatch.setattr(ops, op, spoiled)
    [row] = measure_ops([case], CPU, 0.001)
    assert not row["passed"]
    assert row["error"]["gradient"] is None or row["error"]["gradient"] > 9e-4
    assert not {"ms", "p10_ms", "p90_ms"} & set(row)
    if op == "mesh":
        assert "ms" in row["baselines"]["eager"]


def test_wrong_exact_transport_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = randn(2, 3, 12, seed=1).abs() + 0.1
    a, b = torch.ones(2, 3).double(), torch.full((2, 12), 0.25).double()
    t = emd(cost)
    assert passed(exact_errors(t, a, b))
    # Feasible, but not the best.
    even = t._replace(plan=torch.full_like(cost, 1 / 12))
    assert exact_errors(even, a, b)["gap"] > 0.1
    assert exact_errors(even, a, b)["pot"] > 0.1
    # Cheaper than the best, but not feasible.
    assert exact_errors(wrong_plan(t), a, b)["mass"] > 1e-3
    # A bound that is not one: potentials that are too large.
    assert exact_errors(even._replace(v=t.v + 5), a, b)["gap"] > 0.1
    monkeypatch.setattr(ops, "emd", lambda *args, **options: wrong_plan(emd(*args, **options)))
    [row] = measure_ops([OpCase("emd", 2, 12, 3)], CPU, 0.001)
    assert not row["passed"]
    assert "ms" not in row


def test_wrong_assignment_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = randn(3, 4, 4).abs()
    best = assign(cost)
    assert assignment_errors(best, cost) == {"total": 0.0}
    assert assignment_errors(best.flip(-1), cost)["total"] > 1e-3
    for invalid in (best.clamp(max=2), best.where(best > 0, -1)):  # not one-to-one; no partner
        assert not passed(assignment_errors(invalid, cost))
    monkeypatch.setattr(ops, "assign", lambda cost, **_: assign(cost, maximize=True))
    [row] = measure_ops([OpCase("assign", 2, 4, 4)], CPU, 0.001)
    assert not row["passed"]
    assert "ms" not in row


def test_limits_are_those_of_the_documentation() -> None:
    for kind, limit in gate.LIMITS.items():
        assert passed({kind: 0.9 * limit})
        assert not passed({kind: 1.1 * limit})
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    shown = {cells[0].strip(): cells[-1].strip() for cells in rows}
    powers = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

    def power(x: float) -> str:
        return "10" + str(round(math.log10(x))).translate(powers)

    assert shown["plan of softmax, Sinkhorn, MESH"].startswith(power(gate.LIMITS["plan"]))
    assert shown["their gradient by the cost"] == power(gate.LIMITS["gradient"])
    assert shown["cost of exact transport"] == power(gate.LIMITS["gap"])
    assert gate.LIMITS["gap"] == gate.LIMITS["pot"]
    assert shown["total of an assignment"] == power(gate.LIMITS["total"])
    whole, tf32, bf16 = (steps.LIMITS[name] for name in ("32", "tf32", "bf16"))
    assert bf16["loss"] == 5e-3
    expected = f"{power(whole['loss'])} (tf32 {power(tf32['loss'])}, bf16 5 · {power(1e-3)})"
    assert shown["first training step, its loss"] == expected
    expected = f"{whole['gradient']} (tf32 {tf32['gradient']}, bf16 {bf16['gradient']})"
    assert shown["and its gradient"] == expected
    together = shown["first losses of runs that are trained together"]
    assert together == power(table1.LIMITS["loss"])


def test_errors_are_noted_in_three_digits() -> None:
    errors = noted({"plan": 1.23456e-7, "gradient": float("nan")})
    assert errors == {"plan": 1.23e-7, "gradient": None}


def test_the_command_ends_with_1_where_a_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoiled(cost: torch.Tensor, **options: Any) -> Transport:
        found = sinkhorn(cost, **options)
        return found if options["backend"] == "torch" else wrong_plan(found)

    monkeypatch.setattr(ops, "sinkhorn", spoiled)
    with pytest.raises(SystemExit) as end:
        __main__.main(f"ops --device cpu --quick --seconds 0.001 --out {tmp_path}".split())
    assert end.value.code == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "sinkhorn auto 4 x 64 x 5 (plan off by 1.0e-03" in error
    [path] = tmp_path.iterdir()
    rows = record.read(path)["sections"]["ops"]["rows"]
    assert {row["name"]: "ms" in row for row in rows} == {
        "mesh": True,
        "mesh_implicit": True,
        "emd": True,
        "sinkhorn": False,
        "softmax": True,
        "assign": True,
    }


def test_an_error_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **options: Any) -> Any:
        raise RuntimeError("no such kernel\nand more of it")

    monkeypatch.setattr(ops, "mesh", broken)
    monkeypatch.setattr(ops, "pairwise_cost", broken)
    [row] = measure_ops([SMALL[0]], CPU, 0.001)
    assert row == {
        **{"name": "mesh", "batch": 2, "n": 12, "m": 3},
        **{"passed": False, "failure": "RuntimeError: no such kernel"},
    }
    monkeypatch.undo()
    monkeypatch.setattr(ops, "mesh", broken)
    [row] = measure_ops([SMALL[0]], CPU, 0.001)
    assert row["failure"] == "RuntimeError: no such kernel"
    assert len(record.wrong([row])) == 2  # the baseline has no truth to be held to


# Timing


def test_times_are_in_order_and_taken_in_turn() -> None:
    calls: list[str] = []

    def slow() -> None:
        calls.append("slow")
        end = torch.ones(20_000)
        for _ in range(50):
            end = end.sin()

    times = time_together({"slow": slow, "fast": lambda: calls.append("fast")}, CPU, 0.05)
    for one in times.values():
        assert 0 < one.p10 <= one.ms <= one.p90
        assert 5 <= one.samples <= 50
    assert times["slow"].ms > 10 * times["fast"].ms
    order = [name for name, before in zip(calls, ["", *calls], strict=False) if name != before]
    assert len(order) > 10


def test_cases_are_the_targets_and_the_sweeps() -> None:
    cases = op_cases("cuda")
    assert len(set(cases)) == len(cases)
    compared = {(c.batch, c.n, c.m) for c in cases if "compiled" in c.baselines}
    targets = {(64, 105, 5), (64, 1024, 11), (64, 4096, 6), (64, 4096, 11)}
    large = {(16, 256, 256), (4, 1024, 1024)}
    assert compared == targets | {(32_768, 4, 4)} | large
    assert {(c.op, c.baselines) for c in cases if (c.batch, c.n, c.m) in large} == {
        ("mesh", ("compiled",)),
        ("sinkhorn", ("compiled",)),
    }
    meshes = [c for c in cases if c.op == "mesh"]
    assert {c.n for c in meshes if c.m == 11} == {105, 256, 1024, 4096, 16_384, 65_536}
    assert {2, 64} <= {c.m for c in meshes if c.n == 4096}
    # All of them compile at once on 16 cores.
    assert len({c.group for c in cases}) <= 26
    assert all("eager" in c.baselines for c in op_cases("cpu")[:3])


# Processes


def test_processes_measure_as_one_does() -> None:
    heard: list[tuple[int, int, str]] = []
    groups = [SMALL[:1], [*SMALL[2:], OpCase("nothing", 1, 1, 1)]]  # pyright: ignore
    rows = [*measure_in_processes("ops", groups, CPU, 0.001, lambda *said: heard.append(said))]
    assert [row["name"] for row in rows] == ["mesh", "assign", "nothing"]
    assert [row["passed"] for row in rows] == [True, True, False]
    [here] = measure_ops(SMALL[:1], CPU, 0.001)
    assert rows[0].keys() == here.keys()
    assert rows[0]["error"] == here["error"]
    assert rows[0]["baselines"]["eager"]["ms"] > 0
    assert rows[2]["failure"] == "KeyError: 'nothing'"
    assert heard[-1][:2] == (3, 3)
    assert (0, 3, "checked and compiled 2 of 2") in heard


def test_a_process_that_dies_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    groups = [SMALL[:1], SMALL[1:]]
    rows = [*measure_in_processes("ops", groups, CPU, 0.001, measure.noop, most=1)]
    assert [row["name"] for row in rows] == ["mesh", "emd", "assign"]
    assert all("exited with 1" in row["failure"] for row in rows)


# Files


def test_what_is_written(quick: tuple[Benchmark, Path, str]) -> None:
    bench, path, screen = quick
    result = json.loads(path.read_text(encoding="utf-8"))
    assert re.fullmatch(r"[a-z0-9-]+-\d+\.\d+\.\d+[a-z0-9.-]*\.json", path.name)
    assert path.name.endswith(f"-{torch.__version__.replace('+', '-')}.json")
    assert result.keys() == {"device", "torch", "sections"}
    section = result["sections"]["ops"]
    assert section["threads"] == 1
    assert section["cuda"] is None
    for row in section["rows"]:
        assert {"name", "variant", "batch", "n", "m", "error", "passed", "ms"} <= row.keys()
        assert row["passed"]
        assert row["p10_ms"] <= row["ms"] <= row["p90_ms"]
    # What is written as the command gives the same settings.
    words = section["command"].split()
    assert words[:3] == ["python", "-m", "benchmarks"]
    asked: Any = tyro.cli(Benchmark, args=words[3:])
    assert asked == replace(bench, out=record.FOLDER)
    assert "mesh" in screen
    assert path.name in screen.replace("\n", "")
    assert max(len(line) for line in screen.splitlines() if "Written" not in line) <= 80


def test_sections_add_to_one_file(tmp_path: Path) -> None:
    path = record.result_path(tmp_path, CPU)
    record.write_section(path, "steps", ["two"], [{"name": "b"}], CPU)
    record.write_section(path, "ops", ["one"], [{"name": "a"}], CPU)
    record.write_section(path, "ops", ["three"], [{"name": "c"}, {"name": "d"}], CPU)
    sections = record.read(path)["sections"]
    assert list(sections) == ["ops", "steps"]
    assert sections["ops"]["command"] == "three"
    assert sections["ops"]["rows"] == [{"name": "c"}, {"name": "d"}]
    assert sections["steps"]["rows"] == [{"name": "b"}]
    (tmp_path / "clevr_cpu.json").write_text('{"world": "clevr"}')
    assert list(record.read_all(tmp_path)) == [path.stem]


def test_parts_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Benchmark("ops", device="cpu", quick=True, seconds=0.001, threads=1, out=tmp_path)
    path = record.result_path(tmp_path, CPU)
    run_benchmark(replace(bench, only=("mesh", "sinkhorn")))
    first = record.read(path)["sections"]["ops"]
    assert [row["name"] for row in first["rows"]] == ["mesh", "mesh", "sinkhorn"]
    assert first["command"].endswith("--quick --only mesh sinkhorn --seconds 0.001 --threads 1")
    run_benchmark(replace(bench, only=("sinkhorn", "assign")))
    run_benchmark(replace(bench, only=("sinkhorn", "assign")))
    second = record.read(path)["sections"]["ops"]
    assert [row["name"] for row in second["rows"]] == ["mesh", "mesh", "sinkhorn", "assign"]
    assert second["rows"][:2] == first["rows"][:2]
    assert second["rows"][2] != first["rows"][2]
    assert second["command"] == first["command"]
    assert second["later"] == [first["command"].replace("mesh sinkhorn", "sinkhorn assign")]
    assert "mesh" not in capsys.readouterr().out.rpartition("Operations")[2]
    # With other versions, rows could not be compared.
    now = record.versions(CPU) | {"threads": 1, "python": "3.99.0"}
    monkeypatch.setattr(record, "versions", lambda _: now)
    with pytest.raises(ValueError, match=r"has been measured with python 3\.1\S+ and not 3\.99\.0"):
        run_benchmark(replace(bench, only=("mesh",)))
    assert record.read(path)["sections"]["ops"] == second


def test_an_interrupted_run_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    bench = Benchmark("ops", device="cpu", quick=True, seconds=0.001, out=tmp_path)
    monkeypatch.setattr(ops, "emd", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(bench)
    rows = record.read(record.result_path(tmp_path, CPU))["sections"]["ops"]["rows"]
    done = ["mesh", "mesh", "mesh_implicit", "sinkhorn", "softmax"]
    assert [row["name"] for row in rows] == done


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    path = record.result_path(tmp_path, CPU)
    path.write_text("[]")
    with pytest.raises(ValueError, match="holds no result"):
        run_benchmark(Benchmark("ops", device="cpu", quick=True, out=tmp_path))
    assert path.read_text() == "[]"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seconds": 0.0}, "--seconds is 0"),
        ({"seconds": float("nan")}, "--seconds is nan"),
        ({"threads": 0}, "--threads is 0"),
        ({"device": "tpu"}, "--device is 'tpu'"),
        ({"what": "nothing"}, "'nothing', expected ops, steps, table1, all"),
        ({"only": ("mesh", "mash")}, "--only got mash, expected some of assign, emd, mesh,"),
    ],
)
def test_what_makes_no_sense_is_told(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        run_benchmark(replace(Benchmark("ops", out=tmp_path / "new"), **change))
    assert not (tmp_path / "new").exists()


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="finds no GPU"):
        run_benchmark(Benchmark("ops", device="cuda", out=tmp_path))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_a_gpu(tmp_path: Path) -> None:
    cases = [replace(case, baselines=()) for case in SMALL]
    rows = [*measure_ops(cases, torch.device("cuda"), 0.01)]
    assert not record.wrong(rows)
    assert all(row["ms"] > 0 and row["memory_over_cost"] > 0 for row in rows)


def test_help_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        __main__.main(["ops", "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: python -m benchmarks ")
    assert max(map(len, said.splitlines())) <= 80


def test_many_small_matrices():
    [row] = measure_ops([OpCase("small", 5, 4, 4)], CPU, 0.001)
    assert row["passed"], row
    assert row["error"]["gradient"] < 1e-4
    assert row["ms"] > 0


@pytest.mark.parametrize("op", ["sinkhorn", "mesh"])
def test_many_slots_are_compared_with_compiled_torch(op: Any) -> None:
    case = OpCase(op, 1, 9, 70, baselines=("compiled",))
    assert set(PROBLEMS[op](case, CPU).runs()) == {"ours", "compiled"}
    [row] = measure_ops([OpCase(op, 1, 9, 70)], CPU, 0.001)
    assert row["passed"], row
