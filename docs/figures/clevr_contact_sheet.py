"""Real CLEVR images above, ours of the same scenes below, and how far their colours differ.

    python docs/figures/clevr_contact_sheet.py CLEVR_ROOT [--out sheet.png]

CLEVR_ROOT holds ``images/train`` and ``scenes/CLEVR_train_scenes.json``, as in CLEVR v1.0. The
first half of the images, by name, was used to fit ``worlds/render/look.py``; the printed colours
and the sheet are from the second half.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from slotmesh.worlds.clevr import Clevr
from slotmesh.worlds.render import CLEVR_LENS, METAL, Scene, render
from slotmesh.worlds.render.camera import project

COLUMNS, HEIGHT, WIDTH = 7, 160, 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("clevr_contact_sheet.png"))
    parser.add_argument("--rows", type=int, default=2)
    args = parser.parse_args()
    entries = [e for e in _scenes(args.root) if _path(args.root, e).exists()]
    held_out = entries[len(entries) // 2 :]
    lines = [f"{len(entries)} images; colours are of the last {len(held_out)}"]
    lines.append(f"centres, all images: {_centres(entries):.2f} px RMS")
    real = torch.stack([_read(_path(args.root, e), (WIDTH, HEIGHT)) for e in held_out])
    scene = Clevr.from_json(held_out)
    ours, mask = render(scene, (HEIGHT, WIDTH))
    errors = _errors(scene, real, ours, mask)
    lines.extend(f"{name}: {error:.2f} of 255" for name, error in errors.items())
    _sheet(real, ours, args.rows).save(args.out, optimize=True)
    sys.stdout.write("\n".join([*lines, f"wrote {args.out}", ""]))


def _scenes(root: Path) -> list[dict]:
    scenes = json.loads((root / "scenes" / "CLEVR_train_scenes.json").read_text())["scenes"]
    return sorted(scenes, key=lambda e: e["image_filename"])


def _path(root: Path, entry: dict) -> Path:
    return root / "images" / "train" / entry["image_filename"]


def _read(path: Path, size: tuple[int, int]) -> torch.Tensor:
    with Image.open(path) as image:
        small = image.convert("RGB").resize(size, Image.Resampling.BOX)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1)


def _centres(entries: list[dict]) -> float:
    scene = Clevr.from_json(entries)
    seen = project(scene, scene.position)
    off = []
    for i, entry in enumerate(entries):
        for k, item in enumerate(entry["objects"]):
            x = 240 + 240 / CLEVR_LENS.tan_x * seen[i, k, 0].item() - item["pixel_coords"][0]
            y = 160 + 160 / CLEVR_LENS.tan_y * seen[i, k, 1].item() - item["pixel_coords"][1]
            off.append(x * x + y * y)
    return float(np.sqrt(np.mean(off)))


def _errors(
    scene: Scene, real: torch.Tensor, ours: torch.Tensor, mask: torch.Tensor
) -> dict[str, float]:
    """Mean absolute differences in grey levels: by pixel, and of the objects' mean colours."""
    off = (real.float() - ours.float()).abs().mean(1)
    metal = torch.nn.functional.pad(scene.material == METAL, (1, 0))
    on_metal = metal.gather(1, mask.flatten(1).long()).view(mask.shape)
    inside = mask > 0
    means = {True: [], False: []}
    for i in range(len(mask)):
        for k in range(scene.present.shape[1]):
            here = mask[i] == k + 1
            if here.sum() >= 30:
                gap = real[i][:, here].float().mean(1) - ours[i][:, here].float().mean(1)
                means[bool(scene.material[i, k] == METAL)].append(gap.abs().mean())
    return {
        "ground, by pixel": off[~inside].mean().item(),
        "objects, by pixel": off[inside].mean().item(),
        "rubber, by pixel": off[inside & ~on_metal].mean().item(),
        "metal, by pixel": off[inside & on_metal].mean().item(),
        "rubber, mean colour of an object": torch.stack(means[False]).mean().item(),
        "metal, mean colour of an object": torch.stack(means[True]).mean().item(),
    }


def _sheet(real: torch.Tensor, ours: torch.Tensor, rows: int) -> Image.Image:
    lines = []
    for first in range(0, rows * COLUMNS, COLUMNS):
        for images in (real, ours):
            row = images[first : first + COLUMNS].permute(0, 2, 3, 1)
            lines.append(torch.cat(list(row), dim=1))
        lines.append(torch.full((6, COLUMNS * WIDTH, 3), 255, dtype=torch.uint8))
    return Image.fromarray(torch.cat(lines[:-1]).numpy())


if __name__ == "__main__":
    main()
