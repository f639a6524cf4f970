"""Figures and pages."""

import base64
from pathlib import Path

import pytest
import torch
from jinja2 import UndefinedError

from slotmesh.report.figures import curves, heat_map, panels, save_figure, svg_bytes, svg_uri
from slotmesh.report.page import render_page


def draw():
    figure, [[left, right]] = panels(4, 2, 1, 2)
    heat_map(left, torch.eye(2), rows=["a", "b"], columns=["c", "d"])
    curves(right, {"SA": [(0, 1.0), (1, 0.5)], "other": [(0, 1.0), (1, 0.2)]}, x="step", y="error")
    return figure


def test_the_same_figure_is_the_same_bytes(tmp_path: Path) -> None:
    assert svg_bytes(draw()) == svg_bytes(draw())
    save_figure(draw(), tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_bytes() == svg_bytes(draw())


def test_uri_holds_the_whole_picture() -> None:
    kind, data = svg_uri(draw()).split(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data) == svg_bytes(draw())


def test_heat_map_writes_its_numbers() -> None:
    text = svg_bytes(draw()).decode()
    assert text.count("<!-- 1.00 -->") == 2
    assert text.count("<!-- 0.00 -->") == 2


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render_page("demo.html")
