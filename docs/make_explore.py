"""Take the pictures of docs/explore.md: runs slotmesh explore, and looks at it in Chromium."""

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
READY = {
    "tie": "slotmesh-tie .chart circle",
    "objects": "#slotmesh-objects .slotmesh-view",
    "properties": "#slotmesh-properties .slotmesh-view",
}
WIDTH = 1280


def main() -> None:
    """Write one picture per view."""
    command = [sys.executable, "-u", "-m", "slotmesh", "explore"]
    chromium = shutil.which("chromium") or sys.exit("Chromium is not installed.")
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,  # noqa: S603
        sync_playwright() as running,
    ):
        try:
            [url] = re.findall(r"http://\S+", server.stdout.readline() if server.stdout else "")
            browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": 600})
            for view, ready in READY.items():
                page.goto(f"{url}?view={view}")
                page.locator(ready).first.wait_for()
                # Gradio fades some elements in.
                page.wait_for_timeout(2000)
                picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
                picture.convert("RGB").save(IMAGES / f"explore-{view}.webp", quality=82, method=6)
            browser.close()
        finally:
            server.kill()


if __name__ == "__main__":
    main()
