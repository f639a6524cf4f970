"""How the gallery's figures look: on light pages and on dark ones."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.animation import FuncAnimation
from sphinx_gallery.scrapers import figure_rst, matplotlib_scraper

# Between the text colours of furo's two themes: it can be read on both.
_INK = "#7d838c"
_STYLE: dict[str, Any] = {
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.dpi": 160,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(color=["#3b8fc9", "#d9822b", "#7aa644", "#d0417e", "#8a6fc9"]),
}
_INKED = ("text.color", "legend.labelcolor", "xtick.color", "ytick.color")
_INKED += ("axes.labelcolor", "axes.edgecolor", "axes.titlecolor")
_STYLE.update(dict.fromkeys(_INKED, _INK))
# The order of the gallery: what is easiest first.
_ORDER = (
    "slots.py",
    "tie.py",
    "own_images.py",
    "frozen_features.py",
    "set_prediction.py",
    "keypoints.py",
    "sorting.py",
    "router.py",
    "merging.py",
    "hyper_connections.py",
    "extend.py",
)


class Order:
    """Sort examples as above; those that are not named come last."""

    def __init__(self, src_dir: str) -> None:
        self.src_dir = src_dir

    def __repr__(self) -> str:
        return "Order()"  # part of the configuration, which must not change from build to build

    def __call__(self, name: str) -> int:
        return _ORDER.index(Path(name).name) if Path(name).name in _ORDER else len(_ORDER)


def restyle(gallery_conf: Any, name: str) -> None:
    """Give every example the same style, without a line of it in the example."""
    mpl.rcParams.update(_STYLE)


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: Any, **options: Any) -> str:
    """Save animations as moving pictures that need no script, and figures as they are."""
    values = block_vars["example_globals"].values()
    open_now = [plt.figure(number) for number in plt.get_fignums()]
    moving = [v for v in values if isinstance(v, FuncAnimation) and v._fig in open_now]
    if not moving:
        return matplotlib_scraper(block, block_vars, gallery_conf, **options)
    paths: list[str] = []
    for animation in moving:
        still = Path(next(block_vars["image_path_iterator"]))
        animation.save(still.with_suffix(".webp"), writer="pillow", dpi=110)
        animation._fig.savefig(still)  # the last frame, for the thumbnail
        paths.append(str(still.with_suffix(".webp")))
    plt.close("all")
    return figure_rst(paths, gallery_conf["src_dir"])
