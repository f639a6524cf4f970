"""Draw into docs/images how far MESH breaks exact ties, by size of the step and of the matrix."""

from pathlib import Path

import torch

from slotmesh.ops import mesh
from slotmesh.report.figures import panels, save_figure

SIZES = [
    *((2, 2), (4, 4), (16, 16), (64, 64), (256, 256)),
    *((7, 196), (6, 4096), (11, 1024), (11, 4096), (64, 1024)),
]
STEPS = {
    "lr = 5": {"lr": 5.0},
    "step = 0.05": {"step": 0.05},
    "step = 0.5": {"step": 0.5},
    "step = 1 (default)": {},
    "step = 2": {"step": 2.0},
}


def main() -> None:
    figure, ((axis,),) = panels(9.2, 3.6, 1, 1)
    for label, options in STEPS.items():
        left = []
        for m, n in SIZES:
            noise = torch.Generator().manual_seed(0)
            t = mesh(torch.ones(4, m, n), generator=noise, **options)
            left.append(t.entropy(normalized=True).mean().item())
        axis.plot(range(len(SIZES)), left, marker="o", label=label)
    axis.set_xticks(range(len(SIZES)), [f"{m} x {n}" for m, n in SIZES])
    axis.set_ylabel("normalised entropy")
    axis.set_ylim(0, 1)
    axis.axhline(0.05, color="grey", linewidth=1, linestyle=":")
    axis.legend()
    save_figure(figure, Path(__file__).parent / "images" / "steps.svg")


if __name__ == "__main__":
    main()
