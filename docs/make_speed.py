"""Write the results of `python -m benchmarks` in benchmarks/results to docs/speed.md."""

from pathlib import Path

from benchmarks.page import filled, save_pictures
from benchmarks.record import FOLDER, read_all


def main() -> None:
    docs = Path(__file__).parent
    results = read_all(docs.parent / FOLDER)
    page = docs / "speed.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    save_pictures(results, docs)


if __name__ == "__main__":
    main()
