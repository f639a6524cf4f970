"""What all worlds have in common."""

from slotmesh.worlds._endless import Endless
from slotmesh.worlds.sample import Sample


class World(Endless[Sample]):
    """An endless labelled dataset: sample ``i`` is a pure function of (seed, i).

    The factors of a scene are the same bits on every device and in every batch; pixels agree to
    one grey level.

    Args:
        seed: Another seed is another dataset.
        device: Where samples are made.
    """

    max_objects: int
    """Rows of the table of objects."""
