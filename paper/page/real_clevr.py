"""The models of Tables 2 and 5 on real images and videos."""

import json
from pathlib import Path

from paper.page.markdown import MISSING, code, grid
from paper.real_clevr import FOLDER
from paper.real_clevrer import FOLDER as VIDEOS
from slotmesh.training.published import published_rows

_LEAD = """
The same weights, tested on real images of CLEVR v1.0. They were trained only on the procedural
world, and no setting was chosen on these images. The paper's models were trained on 70,000 real
images.
"""


def real_section(results: Path) -> list[str]:
    """Return the section that tests the weights on the dataset that the world imitates."""
    # Imports matplotlib, which is slow.
    from slotmesh.training.report.compare import NAMES, as_printed, heading, shown

    rows = [
        row
        for row in published_rows()
        if row.table == "Table 2" and row.variant in ("SA", "SA-MESH")
    ]
    metrics = [metric for metric in NAMES if metric in rows[0].results]
    lines: list[list[str]] = []
    for row in rows:
        papers = [f"*{as_printed(m, *row.results[m])}*" for m in metrics]
        lines.append([f"*{row.label}, paper*", *papers, "*15,000, val*", "*CC BY 4.0*"])
        path = results / FOLDER.name / f"{row.variant}.json"
        if not path.is_file():
            lines.append([row.label, *[MISSING] * len(metrics), "", ""])
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        ours = [shown(m, found["metrics"][m]) for m in metrics]
        images = f"{found['n']:,}, {found['split']}"
        lines.append([row.label, *ours, images, found["licence"]])
    head = ["", *map(heading, metrics), "real images, split", "licence"]
    command = code("python -m paper real-clevr --root CLEVR_v1.0")
    return ["### On the real dataset", *_LEAD.splitlines(), "", *command, *grid(head, lines)]


_VIDEOS = """
The same weights, applied to real videos of CLEVRER. They were trained only on the procedural world.
The videos come without masks, so we show pictures instead of metrics, for the first videos
available. Each row shows a frame, its segments, and the part that each slot represents; slots with
the same picture, such as those that share the background, are merged.
"""


def real_videos(results: Path) -> list[str]:
    """Return the pictures of real videos, if there are any."""
    shown: list[str] = []
    for path in sorted((results / VIDEOS.name).glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        picture = f"{results.name}/{VIDEOS.name}/{found['variant']}.png"
        first, second = found["frames"]
        what = (
            f"{found['variant']}: {found['n']} videos ({found['licence']}), frames {first} and "
            f"{second} of each"
        )
        shown += [f"{what}.", "", f"![{what}]({picture})", ""]
    if not shown:
        return []
    command = code("python -m paper real-clevrer --root CLEVRER")
    return ["### On real videos", *_VIDEOS.splitlines(), "", *command, *shown]
