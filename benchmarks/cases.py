"""The operations that are measured, and their sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

OpName = Literal["softmax", "sinkhorn", "mesh", "mesh_implicit", "emd", "assign", "small"]
BaselineName = Literal["eager", "compiled", "pot", "scipy", "liger"]


@dataclass(frozen=True)
class OpCase:
    """One operation at one size."""

    op: OpName
    batch: int
    n: int
    """Number of inputs."""
    m: int
    """Number of slots."""
    baselines: tuple[BaselineName, ...] = ()
    """Baselines it is compared with."""

    def row(self) -> dict[str, Any]:
        """Return the part of the measurement that identifies the case."""
        return {"name": self.op, "batch": self.batch, "n": self.n, "m": self.m}

    @property
    def group(self) -> tuple[object, ...]:
        """Cases of the same group are prepared in one process: they may share compiled code."""
        alone = {"emd": ("emd", self.m), "assign": ("assign",), "small": ("small",)}
        return alone.get(self.op, (self.batch, self.n, self.m))


Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Sizes:
    """Sizes ``(batch, n, m)`` for a type of device."""

    targets: tuple[Shape, ...]
    """Sizes that are compared with baselines."""
    pairs: tuple[Shape, ...]
    """Sizes of assignment problems."""
    sweep: tuple[Shape, ...] = ()
    """Sizes that show how the time grows with n and m."""
    exact: tuple[Shape, ...] = ()
    """Sizes of exact transport that is an assignment."""
    implicit: tuple[Shape, ...] = ()
    """Sizes of MESH with both gradients, that of a converged plan too."""
    small: tuple[Shape, ...] = ()
    """Many small matrices."""
    large: tuple[Shape, ...] = ()
    """Sizes with many slots, compared with compiled torch."""


SIZES = {
    ("cuda", False): Sizes(
        targets=((64, 105, 5), (64, 1024, 11), (64, 4096, 6), (64, 4096, 11)),
        pairs=((64, 5, 5), (64, 10, 10), (960, 5, 5), (8, 128, 128), (64, 128, 128)),
        sweep=(
            *((64, n, 11) for n in (105, 256, 1024, 4096, 16_384, 65_536)),
            *((64, 4096, m) for m in (2, 4, 8, 16, 32, 64)),
        ),
        small=((32_768, 4, 4),),
        large=((16, 256, 256), (4, 1024, 1024)),
    ),
    ("cuda", True): Sizes(targets=((64, 105, 5), (64, 1024, 11)), pairs=((64, 5, 5),)),
    ("cpu", False): Sizes(
        targets=((64, 105, 5), (64, 1024, 11), (64, 4096, 6), (64, 4096, 11), (4, 1024, 11)),
        pairs=((64, 5, 5), (64, 10, 10), (4096, 4, 4), (1, 256, 256)),
        exact=((4096, 4, 4), (1, 256, 256)),
        implicit=((1, 256, 256),),
        sweep=(
            *((4, n, 11) for n in (105, 256, 1024, 4096, 16_384)),
            *((4, 1024, m) for m in (2, 4, 8, 16, 32)),
        ),
    ),
    ("cpu", True): Sizes(
        targets=((4, 64, 5),), pairs=((4, 5, 5),), exact=((4, 5, 5),), implicit=((4, 5, 5),)
    ),
}
"""By type of device and ``--quick``."""
AGAINST: dict[str, dict[OpName, tuple[BaselineName, ...]]] = {
    "cuda": {
        "mesh": ("eager", "compiled"),
        "emd": ("pot",),
        "assign": ("scipy",),
        "small": ("compiled", "liger"),
    },
    "cpu": {"mesh": ("eager",), "emd": ("pot",), "assign": ("scipy",)},
}
"""Baselines by type of device."""
# Maximum numbers of inputs and slots for exact transport: what the kernel supports, and what POT
# solves in reasonable time.
MOST_EXACT = {"cuda": (16_384, 32), "cpu": (4096, 32)}


def op_cases(kind: str, *, quick: bool = False) -> list[OpCase]:
    """Return the cases for ``cuda`` or ``cpu``; those that take longest to compile come first.

    Example:
        >>> from benchmarks.cases import op_cases
        >>> op_cases("cuda")[0]
        OpCase(op='mesh', batch=64, n=105, m=5, baselines=('eager', 'compiled'))
    """
    sizes = SIZES[kind, quick]

    def case(op: OpName, shape: Shape) -> OpCase:
        if shape in sizes.large:
            return OpCase(op, *shape, baselines=("compiled",))
        compared = shape in (*sizes.targets, *sizes.exact) or op in ("assign", "small")
        return OpCase(op, *shape, baselines=AGAINST[kind].get(op, ()) if compared else ())

    shapes = list(dict.fromkeys((*sizes.targets, *sizes.sweep)))
    most_n, most_m = MOST_EXACT[kind]
    small = [(batch, n, m) for batch, n, m in shapes if n <= most_n and m <= most_m]
    every: dict[OpName, Sequence[Shape]] = {
        "mesh": [*shapes, *sizes.implicit, *sizes.large],
        "mesh_implicit": sizes.implicit,
        "emd": [*small, *sizes.exact],
        "sinkhorn": [*shapes, *sizes.large],
        "softmax": shapes,
        "assign": sizes.pairs,
        "small": sizes.small,
    }
    return [case(op, shape) for op, chosen in every.items() for shape in chosen]
