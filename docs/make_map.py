"""Draw the map of the code, docs/images/map.svg: packages, and the path of a batch through them."""

from html import escape
from pathlib import Path

LIBRARY = "src/slotmesh"
ROOMS = (
    (
        ("cli", "cli.py", "command line"),
        ("cli", "app", "browser page"),
        ("cli", "demo", "make demo"),
    ),
    (("training", "training", "tasks, loop, runs"), ("cli", "data", "write datasets")),
    (
        ("models", "models", "whole networks"),
        ("report", "metrics", "FG-ARI, AP, ..."),
        ("report", "report", "pictures, pages"),
    ),
    (
        ("worlds", "worlds", "procedural datasets"),
        ("worlds", "readers", "real datasets, HDF5"),
    ),
    (("nn", "nn", "modules: slot attention, transports, encoders, decoders"),),
    (("ops", "ops", "tensors in, tensors out: sinkhorn, mesh, emd, assign"),),
)
"""Colour, path below src/slotmesh and contents: a package imports nothing from a row above it."""
BESIDE = (
    ("paper", "this one paper: tables, studies, figures, RESULTS.md"),
    ("benchmarks", "timings, with a correctness check"),
    ("examples", "short scripts, such as a task of your own"),
    ("tests", "one folder per package"),
    ("docs", "these pages"),
)
"""Folders outside the library, which use it like any user."""
STEPS = (
    ("cli", "command", "cli.py", "parses slotmesh train multi-dsprites ..."),
    ("training", "settings", "training/settings.py", "dataclasses: every field is a flag"),
    ("training", "task", "training/tasks/discovery.py", "presets, model, loss, metrics"),
    ("training", "stream", "training/stream.py", "picks samples, a function of (seed, step)"),
    ("worlds", "world", "worlds/multi_dsprites.py", "draws these samples"),
    ("training", "loop", "training/loop.py", "loss, gradient, clip, step, log, validate, save"),
    ("models", "model", "models/object_discovery.py", "encoder, slot attention, decoder"),
    ("nn", "slot attention", "nn/slot_attention.py", "updates the slots a few times"),
    ("nn", "transport", "nn/transports/mesh.py", "costs and marginals of slots and inputs"),
    ("ops", "operation", "ops/mesh.py", "checks the input, chooses a backend"),
    ("ops", "kernel", "ops/_triton/forward.py", "all of MESH fused; on the CPU ops/_native"),
    ("training", "checkpoint", "training/checkpoint.py", "saved with a hash, to resume from"),
    ("report", "report", "training/report", "pages that compare runs with the paper"),
)
"""The path of a batch: colour, what, path below src/slotmesh and what it does."""

_LIGHT = {
    "cli": "#e8eaf0",
    "training": "#dbe9f6",
    "models": "#e2f0dc",
    "worlds": "#fdeccf",
    "report": "#efe3f3",
    "nn": "#fbdfd7",
    "ops": "#f5cfd3",
}
_DARK = {
    "cli": "#3a3f4b",
    "training": "#23415e",
    "models": "#2b4a2a",
    "worlds": "#5a4417",
    "report": "#48305a",
    "nn": "#5f3326",
    "ops": "#662a33",
}
_WIDTH, _LEFT, _RIGHT = 940, 384, 508
_TOP, _ROW, _BOX, _LAYER = 66, 54, 42, 66


def render() -> str:
    """The picture, with its own background, in light and dark colours."""
    height = _TOP + _ROW * len(STEPS) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>Packages of the code, and the path of a batch through them</title>",
        _style(),
        f'<rect class="page" width="{_WIDTH}" height="{height}" rx="10"/>',
        f'<text class="head" x="24" y="40">Packages in {LIBRARY}</text>',
        f'<text class="head" x="{_LEFT + 24}" y="40">The path of a batch</text>',
    ]
    for i, layer in enumerate(ROOMS):
        y, width = _TOP + i * _LAYER, (_LEFT - 24 + 8) / len(layer) - 8
        for k, (room, path, says) in enumerate(layer):
            parts += _box(room, 24 + k * (width + 8), y, width, path, says)
        if i:
            parts.append(_arrow(24 + (_LEFT - 24) / 2, y - _LAYER + _BOX, _LAYER - _BOX))
    top = _TOP + len(ROOMS) * _LAYER + 50
    parts.append(f'<text class="head" x="24" y="{top - 16}">Outside the library</text>')
    for i, (path, says) in enumerate(BESIDE):
        parts += _box("cli", 24, top + i * (_BOX + 6), _LEFT - 24, path, says)
    for i, (room, what, path, says) in enumerate(STEPS):
        y = _TOP + i * _ROW
        parts += _box(room, _LEFT + 24, y, _RIGHT, path, says, f"{i + 1}. {what}")
        if i:
            parts.append(_arrow(_LEFT + 24 + 70, y - _ROW + _BOX, _ROW - _BOX))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(
    room: str, x: float, y: float, width: float, path: str, says: str, what: str = ""
) -> list[str]:
    inner = x + (156 if what else 10)
    lines = [
        f'<rect class="{room}" x="{x:g}" y="{y:g}" width="{width:g}" height="{_BOX}" rx="6"/>',
        f'<text class="path" x="{inner:g}" y="{y + 18:g}">{escape(path)}</text>',
        f'<text class="says" x="{inner:g}" y="{y + 34:g}">{escape(says)}</text>',
    ]
    if what:
        lines.append(f'<text class="what" x="{x + 12:g}" y="{y + 26:g}">{escape(what)}</text>')
    return lines


def _arrow(x: float, y: float, length: float) -> str:
    tip = y + length - 1
    head = f"M{x - 4:g} {tip - 5:g}L{x:g} {tip:g}L{x + 4:g} {tip - 5:g}"
    return f'<path class="arrow" d="M{x:g} {y:g}V{tip:g}{head}"/>'


def _style() -> str:
    def colours(page: str, ink: str, soft: str, rooms: dict[str, str]) -> str:
        fills = "".join(f".{room}{{fill:{colour}}}" for room, colour in rooms.items())
        return (
            f".page{{fill:{page}}}.head,.what,.path{{fill:{ink}}}.says{{fill:{soft}}}"
            f".arrow{{stroke:{soft}}}{fills}"
        )

    fonts = (
        "text{font-family:system-ui,sans-serif}.head{font-size:18px;font-weight:600}"
        ".what{font-size:14px;font-weight:600}.says{font-size:12px}"
        ".path{font-size:13px;font-family:ui-monospace,monospace}"
        ".arrow{fill:none;stroke-width:1.5}"
    )
    light = colours("#ffffff", "#1d2430", "#525c6b", _LIGHT)
    dark = colours("#14181f", "#eef1f6", "#b4bdcb", _DARK)
    return f"<style>{fonts}{light}@media (prefers-color-scheme: dark){{{dark}}}</style>"


if __name__ == "__main__":
    (Path(__file__).parent / "images" / "map.svg").write_text(render(), encoding="utf-8")
