"""How a page distinguishes runs: a light and a dark colour, and a pattern."""

from dataclasses import dataclass

from matplotlib.colors import to_hex, to_rgb

DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""One SVG dash pattern per run of the same variant; they repeat."""


@dataclass(frozen=True)
class Mark:
    """How a run is marked in the legend, in tables and over pictures."""

    label: str
    colour: str
    """On a light page."""
    dash: str = ""
    key: str = ""
    """A class of all that belongs to the run, so that it can be switched off; "" for none."""

    @property
    def style(self) -> str:
        """The CSS properties that the page draws it with.

        Example:
            >>> from slotmesh.report.marks import Mark
            >>> Mark("SA", "#7a869a").style
            '--light:#7a869a;--dark:#adb4c0'
        """
        return f"--light:{self.colour};--dark:{lighter(self.colour)}" + (
            f";--dash:{self.dash}" if self.dash else ""
        )


def lighter(colour: str) -> str:
    """The version of a colour for dark pages."""
    r, g, b = (value + 0.38 * (1 - value) for value in to_rgb(colour))
    return to_hex((r, g, b))
