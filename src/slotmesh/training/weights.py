"""Trained weights that come with slotmesh, by name."""

import difflib
from pathlib import Path

# In an installed package; in a clone, they are beside src.
_INSTALLED = Path(__file__).parents[1] / "weights"
_CLONE = Path(__file__).parents[3] / "checkpoints"


def names() -> list[str]:
    """List the names of the weights that are available here.

    Example:
        >>> from slotmesh.training.weights import names
        >>> names()
        ['clevr-properties-sa', 'clevr-properties-sa-mesh', 'clevrer-l-sa', ...]
    """
    folders = [folder for place in _places() for folder in place.iterdir()]
    return sorted({f.name for f in folders if (f / "model.safetensors").is_file()})


def find(name: str) -> Path:
    """Find a folder of weights, in the installed package or in the clone.

    Args:
        name: A name such as ``multi-dsprites-sa-mesh``, with or without ``checkpoints/`` in front.

    Raises:
        ValueError: If there are no weights of this name; lists those that are available.
    """
    plain = name.removeprefix("checkpoints/").rstrip("/")
    if plain in names():
        for place in _places():
            if (place / plain / "model.safetensors").is_file():
                return place / plain
    known = ", ".join(names()) or "none, as this copy of slotmesh has no weights"
    raise ValueError(f"There are no weights named {name!r}, expected one of: {known}.")


def locate(model: str) -> Path:
    """Find the folder of a run, of an export, or of weights that come with slotmesh.

    Raises:
        ValueError: If it is neither a path that exists nor the name of weights.
    """
    path = Path(model)
    if path.exists():
        return path
    try:
        return find(model)
    except ValueError:
        known = ", ".join(names())
        near = difflib.get_close_matches(model, names(), 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"{model} is not a run, an export or a checkpoint, nor the name of weights that come "
            f"with slotmesh ({known or 'there are none'}).{hint} Pass the folder that `slotmesh "
            "train` or `slotmesh export` wrote, or one of these names."
        ) from None


def _places() -> list[Path]:
    return [place for place in (_INSTALLED, _CLONE) if place.is_dir()]
