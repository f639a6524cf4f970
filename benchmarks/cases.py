"""Which operations are measured, and at which sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

OpName = Literal["softmax", "sinkhorn", "mesh", "emd", "assign"]
BaselineName = Literal["eager", "compiled", "pot", "scipy"]


@dataclass(frozen=True)
class Case:
    """One operation at one size."""

    op: OpName
    batch: int
    n: int
    """Inputs."""
    m: int
    """Slots."""
    baselines: tuple[BaselineName, ...] = ()
    """What it is timed against."""

    def row(self) -> dict[str, Any]:
        """What it is about, as results hold it."""
        return {"name": self.op, "batch": self.batch, "n": self.n, "m": self.m}

    @property
    def group(self) -> tuple[object, ...]:
        """Cases of one group are prepared one after another: they may share a compilation."""
        alone = {"emd": ("emd", self.m), "assign": ("assign",)}
        return alone.get(self.op, (self.batch, self.n, self.m))


Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Sizes:
    """Sizes ``(batch, n, m)`` for a kind of device."""

    targets: tuple[Shape, ...]
    """Those that are timed against baselines."""
    pairs: tuple[Shape, ...]
    """Of assignment."""
    sweep: tuple[Shape, ...] = ()
    """Those that show how time grows with n and with m."""


SIZES = {
    ("cuda", False): Sizes(
        targets=((64, 105, 5), (64, 1024, 11), (64, 4096, 6), (64, 4096, 11)),
        pairs=((64, 5, 5), (64, 10, 10), (960, 5, 5)),
        sweep=(
            *((64, n, 11) for n in (105, 256, 1024, 4096, 16_384, 65_536)),
            *((64, 4096, m) for m in (2, 4, 8, 16, 32, 64)),
        ),
    ),
    ("cuda", True): Sizes(targets=((64, 105, 5), (64, 1024, 11)), pairs=((64, 5, 5),)),
    ("cpu", False): Sizes(
        targets=((64, 105, 5), (64, 1024, 11), (64, 4096, 6), (64, 4096, 11), (4, 1024, 11)),
        pairs=((64, 5, 5), (64, 10, 10)),
        sweep=(
            *((4, n, 11) for n in (105, 256, 1024, 4096, 16_384)),
            *((4, 1024, m) for m in (2, 4, 8, 16, 32)),
        ),
    ),
    ("cpu", True): Sizes(targets=((4, 64, 5),), pairs=((4, 5, 5),)),
}
"""By the kind of device, and whether it is to be quick."""
AGAINST: dict[str, dict[OpName, tuple[BaselineName, ...]]] = {
    "cuda": {"mesh": ("eager", "compiled"), "emd": ("pot",), "assign": ("scipy",)},
    "cpu": {"mesh": ("eager",)},
}
"""Baselines; on a CPU, POT and SciPy are what slotmesh uses itself."""
# Inputs and slots that the kernel for exact transport takes, and POT in good time.
MOST_EXACT = {"cuda": (16_384, 32), "cpu": (4096, 32)}


def op_cases(kind: str, *, quick: bool = False) -> list[Case]:
    """The cases for a kind of device, ``cuda`` or ``cpu``; those that compile longest come first.

    Example:
        >>> from benchmarks.cases import op_cases
        >>> op_cases("cuda")[0]
        Case(op='mesh', batch=64, n=105, m=5, baselines=('eager', 'compiled'))
    """
    sizes = SIZES[kind, quick]

    def case(op: OpName, shape: Shape) -> Case:
        compared = shape in sizes.targets or op == "assign"
        return Case(op, *shape, baselines=AGAINST[kind].get(op, ()) if compared else ())

    shapes = list(dict.fromkeys((*sizes.targets, *sizes.sweep)))
    most_n, most_m = MOST_EXACT[kind]
    small = [(batch, n, m) for batch, n, m in shapes if n <= most_n and m <= most_m]
    every: dict[OpName, Sequence[Shape]] = {
        "mesh": shapes,
        "emd": small,
        "sinkhorn": shapes,
        "softmax": shapes,
        "assign": sizes.pairs,
    }
    return [case(op, shape) for op, chosen in every.items() for shape in chosen]
