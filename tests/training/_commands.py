"""Commands, and the pages that they write, as a user sees them."""

import re
from pathlib import Path
from typing import Any

from slotmesh.cli import main


def run(*words: Any) -> int:
    """The exit status of a command, in this process."""
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def text_of(page: Path) -> str:
    """What a reader sees of a page."""
    html = re.sub(r"<(style|script)>.*?</\1>", "", page.read_text(), flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
