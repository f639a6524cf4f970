"""Finding a dataset's folder."""

from pathlib import Path


def find_folder(reader: str, root: Path | str, holds: str, inner: str, layout: str) -> Path:
    """``root``, or the folder ``inner`` in it, whichever holds the entry ``holds``.

    Raises:
        ValueError: If neither does: names what was looked for and how the folder should look.
    """
    root = Path(root)
    for folder in (root, root / inner):
        if (folder / holds).exists():
            return folder
    what = f"{root} has no {holds}" if root.exists() else f"{root} does not exist"
    raise missing(reader, what, layout)


def missing(reader: str, what: str, layout: str) -> ValueError:
    """An error about something that is not in the folder."""
    return ValueError(f"{reader}: {what}. Pass the root of a folder like this:\n{layout}")
