"""How far a campaign of faults goes: a few in every run of the tests, many in `make soak`."""

import os
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Campaign:
    """How many faults to try, which ones, and where to count them."""

    seed: int
    long: bool
    record: Callable[[str, object], None]

    def size(self, short: int, long: int) -> int:
        """How many cases to try: ``short`` in `make test`, ``long`` in `make soak`."""
        return long if self.long else short

    def rng(self, name: str) -> random.Random:
        """Random numbers that depend on the seed and on a name, not on the order of the tests."""
        return random.Random(zlib.crc32(name.encode()) ^ self.seed)  # noqa: S311

    def count(self, what: str, n: int = 1) -> None:
        """Add to a total that is printed when all tests have ended."""
        self.record(f"campaign: {what}", n)


@pytest.fixture
def campaign(record_property: Callable[[str, object], None]) -> Campaign:
    """The campaign of this run; SLOTMESH_SOAK=1 is the long one, SLOTMESH_SEED another one."""
    return Campaign(
        seed=int(os.environ.get("SLOTMESH_SEED", "0")),
        long=os.environ.get("SLOTMESH_SOAK") == "1",
        record=record_property,
    )
