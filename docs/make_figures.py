"""Draw the pictures of the documentation and the README into docs/images."""

from pathlib import Path

from paper.figures.descent import draw_descent
from slotmesh.demo import draw_ties
from slotmesh.demo.ties import paper_ties, transport_tie
from slotmesh.report.figures import save_figure


def main() -> None:
    images = Path(__file__).parent / "images"
    save_figure(draw_ties([transport_tie(tie) for tie in paper_ties()]), images / "ties.svg")
    save_figure(draw_descent(), images / "descent.svg")


if __name__ == "__main__":
    main()
