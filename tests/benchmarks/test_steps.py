"""``python -m benchmarks``: training steps, their kernels, and the runs of Table 1."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import kernels, steps, table1
from slotmesh.training.tasks import preset
from slotmesh.training.variants import VARIANTS

CPU = torch.device("cpu")


def test_steps_are_checked_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = steps.StepCase("multi-dsprites", "SA-EMD", 2, "32", "quick")
    [row] = steps.measure_steps([case], CPU, 0.001)
    assert row["passed"]
    assert 0 < row["error"]["loss"] < 1e-5
    assert 0 < row["error"]["gradient"] < 1e-2
    assert (row["n"], row["m"], row["variant"]) == (256, 6, "SA-EMD")
    assert row["ms"] > 0
    right = steps.PreparedStep._gradient
    monkeypatch.setattr(
        steps.PreparedStep, "_gradient", lambda self, *a, **k: 1.001 * right(self, *a, **k)
    )
    [row] = steps.measure_steps([case], CPU, 0.001)
    assert not row["passed"]
    assert "ms" not in row


def test_kernels_by_kind_and_name() -> None:
    long = "void at::native::" + 100 * "x"
    events = [("forward_kernel", 0.3), ("sm80_xmma_gemm_f32", 1.0), ("forward_kernel", 0.1)]
    events += [("sm90_xmma_wgrad_implicit_gemm", 2.0), (long, 0.2)]
    found = kernels.summary(events, calls=2)
    kinds = {"transport": 0.2, "matrix product": 0.5, "convolution": 1.0, "other": 0.1}
    assert found["kinds"] == kinds
    first, second, third, last = found["longest"]
    assert first == {"kernel": "sm90_xmma_wgrad_implicit_gemm", "calls": 0.5, "ms": 1.0}
    assert (second["ms"], third) == (0.5, {"kernel": "forward_kernel", "calls": 1.0, "ms": 0.2})
    assert long.startswith(last["kernel"])
    assert len(last["kernel"]) < 100


def test_all_variants_of_a_step_can_be_built() -> None:
    for kind in ("cuda", "cpu"):
        cases = steps.step_cases(kind)
        assert {case.variant for case in cases} == set(steps.VARIANTS)
        for case in cases:
            settings = steps.experiment_of(case).settings
            settings.check()
            assert (settings.variant, settings.data.batch_size) == (case.variant, case.batch)
            assert type(settings.transport) is VARIANTS[case.variant].transport


def test_table1_steps_are_those_of_single_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(task: str, variant: str, name: str) -> Any:
        start = preset(task, variant, "quick")
        assert name == "paper"
        data = replace(start.data, batch_size=4, n_background=4, dim=8)
        return replace(start, data=data, model=replace(start.model, mlp_dim=8))

    monkeypatch.setattr(table1, "preset", small)
    [row] = table1.measure_table1([table1.Table1Case("SA-MESH", 1)], CPU, 0.001)
    assert row["passed"]
    assert row["replicas"] == 3
    assert row["steps_timed"] == 4 * row["samples"]
    assert row["extrapolated_s"] == pytest.approx(row["ms"] * row["steps"] / 1e3, abs=0.06)
    monkeypatch.setattr(table1.PreparedRuns, "_alone", lambda self: torch.ones(3))
    [row] = table1.measure_table1([table1.Table1Case("SA", 1)], CPU, 0.001)
    assert not row["passed"]
    assert "ms" not in row
