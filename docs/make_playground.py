"""Write the playground, docs/playground.html, which can be opened without building anything."""

from pathlib import Path

from slotmesh.app.playground import render_playground

if __name__ == "__main__":
    page = Path(__file__).parent / "playground.html"
    page.write_text(render_playground(), encoding="utf-8")
