"""Write the measured part of frozen-features.md: python -m docs.make_frozen_features.

Reads what `python -m paper features` wrote: results/features/clevrtex.json and the pictures beside
it.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

from PIL import Image

DOCS = Path(__file__).parent
RESULT = DOCS.parent / "results" / "features" / "clevrtex.json"
PAGE = DOCS / "frozen-features.md"
PICTURE = DOCS / "images" / "frozen-features.png"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
COLUMNS = {"fg_ari": "FG-ARI", "fg_miou": "FG-mIoU", "mbo": "mBO"}


def render(found: dict[str, Any]) -> str:
    """The table and what it rests on, in Markdown."""
    variants: dict[str, Any] = found["variants"]
    first = next(iter(variants.values()))
    rows = [(name, one["metrics"]) for name, one in variants.items()]
    rows.append(("blind", first["blind"]["metrics"]))
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for name, values in rows:
        shown = (f"{100 * values[key]:.1f}" for key in COLUMNS)
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    encoder, settings = found["encoder"], first["settings"]
    device = found["environment"].get("device", "")
    text = (
        f"In percent, on {first['n']:,} test images, one seed: differences of a few points may be "
        "chance. *blind* is a fixed grid. The encoder was trained for "
        f"{encoder['settings']['encoder_steps']:,} steps of "
        f"{encoder['settings']['encoder_batch']} images, and each variant for "
        f"{settings['steps']:,} steps of {settings['data.batch_size']}, with a decoder of "
        f"{settings['model.layers']} x {settings['model.hidden']}, on {device}. "
        "`results/features/clevrtex.json` has everything."
    )
    return "\n".join([*lines, "", textwrap.fill(text, 100, break_on_hyphens=False), ""])


def picture(files: list[Path]) -> Image.Image:
    """The first two samples of each sheet, below each other."""
    sheets = [Image.open(file).convert("RGB") for file in files]
    parts = [sheet.crop((0, 0, sheet.width, sheet.height // 2)) for sheet in sheets]
    whole = Image.new("RGB", (max(p.width for p in parts), sum(p.height for p in parts)), "white")
    y = 0
    for part in parts:
        whole.paste(part, (0, y))
        y += part.height
    return whole


def updated(page: str, part: str) -> str:
    """The page with another measured part."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def main() -> None:
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    part = render(found)
    files = [RESULT.with_name(f"{RESULT.stem}-{name}.png") for name in found["variants"]]
    if all(file.is_file() for file in files):
        picture(files).save(PICTURE, optimize=True)
        names = " and ".join(found["variants"])
        part += (
            f"\n```{{image}} images/{PICTURE.name}\n:alt: Scenes of the ClevrTex world, their "
            f"features, reconstructions, attention and masks\n```\n\nThe same two validation "
            f"images with {names}, from top to bottom, at the end of these runs.\n"
        )
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), part), encoding="utf-8")


if __name__ == "__main__":
    main()
