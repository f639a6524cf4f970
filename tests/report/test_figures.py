"""Figures and pages."""

from pathlib import Path

import pytest
import torch
from jinja2 import UndefinedError

from slotmesh.report.figures import heat_map, panels, save_figure, svg_bytes
from slotmesh.report.page import render_page


def draw():
    figure, [[axes]] = panels(4, 2)
    heat_map(axes, torch.eye(2), rows=["a", "b"], columns=["c", "d"])
    return figure


def test_the_same_figure_is_the_same_bytes(tmp_path: Path) -> None:
    assert svg_bytes(draw()) == svg_bytes(draw())
    save_figure(draw(), tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_bytes() == svg_bytes(draw())


def test_heat_map_writes_its_numbers() -> None:
    text = svg_bytes(draw()).decode()
    assert text.count("<!-- 1.00 -->") == 2
    assert text.count("<!-- 0.00 -->") == 2


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render_page("demo.html")
