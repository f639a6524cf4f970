"""``RESULTS.md``, generated from the files in ``results/``: one module per section."""

from paper.page.command import ResultsPage, render, run_results

__all__ = ["ResultsPage", "render", "run_results"]
