"""``RESULTS.md``, made from the files in ``results/``: a small file for each section."""

from paper.page.command import Results, render, run_results

__all__ = ["Results", "render", "run_results"]
