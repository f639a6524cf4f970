"""Transport problems of all kinds, drawn at random: what may be asked for, in any form."""

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
KINDS = ("normal", "ties", "equal slots", "equal inputs", "constant", "sums", "far", "mixed")


@dataclass
class Case:
    """One call: a batch of problems with one size and one set of options."""

    op: str
    cost: Tensor  # (*batch, m, n)
    masses: dict[str, Tensor | None]  # a (*batch, m) and b (*batch, n)
    masks: dict[str, Tensor | None]  # slot_mask and input_mask
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """All of the call but the cost."""
        return {**self.masses, **self.masks, **self.options}


class Draw:
    """Numbers and tensors of one case, a function of its random numbers alone."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.generator = torch.Generator().manual_seed(rng.getrandbits(62))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, float64."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def below(self, most: int, *shape: int) -> Tensor:
        """Integers from 0 to ``most - 1``."""
        return torch.randint(most, shape, generator=self.generator)

    def size(self) -> int:
        """A number of slots or inputs: mostly small, now and then larger."""
        return self.rng.choice((1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, self.rng.randint(1, 70)))

    def powers(self, low: float, high: float, *shape: int) -> Tensor:
        """Powers of ten between 10^low and 10^high."""
        uniform = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return 10.0 ** (low + (high - low) * uniform)

    def costs(self, batch: int, m: int, n: int, dtype: torch.dtype) -> Tensor:
        """(batch, m, n) of one kind, each matrix with a scale of its own."""
        kind = self.rng.choice(KINDS)
        if kind == "ties":
            cost = self.below(3, batch, m, n).double()
        elif kind == "equal slots":
            chosen = self.below(max(1, m // 2), batch, m, 1).expand(batch, m, n)
            cost = self.normal(batch, m, n).gather(1, chosen)
        elif kind == "equal inputs":
            chosen = self.below(max(1, n // 2), batch, 1, n).expand(batch, m, n)
            cost = self.normal(batch, m, n).gather(2, chosen)
        elif kind == "constant":
            cost = self.normal(batch, 1, 1).expand(batch, m, n)
        elif kind == "sums":
            cost = self.normal(batch, m, 1) + self.normal(batch, 1, n)
        elif kind == "far":
            cost = self.normal(batch, m, n) + 1e3 * self.below(2, batch, m, n)
        elif kind == "mixed":
            cost = self.normal(batch, m, n) * self.powers(-12, 6, batch, m, n)
        else:
            cost = self.normal(batch, m, n)
        low, high = self.rng.choice([(0, 0), (0, 0), (-3, 3), (-30, 30)])
        cost = cost * self.powers(low, high, batch, 1, 1)
        most = min(torch.finfo(dtype).max / 4, 1e31)
        return cost.clamp(-most, most).to(dtype)

    def layout(self, x: Tensor) -> Tensor:
        """The same numbers, or the first of a batch for all, in memory of another order."""
        kind = self.rng.choice(("plain", "plain", "transposed", "strided", "expanded", "batched"))
        if kind == "transposed":
            return x.mT.contiguous().mT
        if kind == "strided":
            return x.repeat_interleave(2, -1)[..., ::2]
        if kind == "expanded":
            return x[:1].expand_as(x)
        if kind == "batched":
            return x.unflatten(0, (2, -1)) if len(x) % 2 == 0 else x.unsqueeze(0)
        return x

    def mask(self, batch: int, size: int) -> Tensor | None:
        """(batch, size) with at least one True in each row, or None."""
        if self.rng.random() < 0.7:
            return None
        mask = self.below(3, batch, size) > 0
        return mask | (torch.arange(size) == self.below(size, batch, 1))

    def mass(self, mask: Tensor | None, batch: int, size: int) -> Tensor:
        """(batch, size), total 1 in each row; with zeros and very uneven ones."""
        mass = torch.rand((batch, size), generator=self.generator, dtype=torch.float64) + 0.1
        kind = self.rng.choice(("even", "even", "zeros", "uneven", "tiny"))
        if kind == "zeros":
            mass = mass * (self.below(2, batch, size) > 0)
        elif kind == "uneven":
            mass = mass * self.powers(-6, 0, batch, size)
        elif kind == "tiny":
            mass = mass * self.powers(-32, 0, batch, size)
        if mask is not None:
            mass = mass * mask
        empty = mass.sum(-1, keepdim=True) == 0
        mass = mass + empty * (torch.ones(size) if mask is None else mask)
        return mass / mass.sum(-1, keepdim=True)

    def masses(self, masks: list[Tensor | None], cost: Tensor) -> dict[str, Tensor | None]:
        """Both marginals, one of them, or none, with a total of their own."""
        batch, m, n = cost.shape
        total = self.powers(*self.rng.choice([(0, 0), (-3, 3)]), batch, 1)
        given = self.rng.choice(("", "", "a", "b", "ab"))
        dtype = torch.float32 if cost.dtype in HALF else cost.dtype
        a = (total * self.mass(masks[0], batch, m)).to(dtype) if "a" in given else None
        b = (total * self.mass(masks[1], batch, n)).to(dtype) if "b" in given else None
        return {"a": a, "b": b}

    def temperature(self, batch: tuple[int, ...]) -> float | Tensor:
        """One for all, or one for each."""
        span = self.rng.choice([(0, 0), (-1, 1), (-6, 6)])
        if self.rng.random() < 0.5:
            return float(self.powers(*span, 1))
        return self.powers(*span, *batch)


def draw(rng: random.Random, batch: int, op: str) -> Case:
    """A valid case of ``batch`` problems."""
    d = Draw(rng)
    m, n = d.size(), d.size()
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, *HALF))
    masks = [d.mask(batch, m), d.mask(batch, n)]
    flat = d.costs(batch, m, n, dtype)
    masses = d.masses(masks, flat)
    cost = d.layout(flat)
    shape = cost.shape[:-2]

    def fit(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.reshape(*shape, -1)

    case = Case(
        op,
        cost,
        {k: fit(x) for k, x in masses.items()},
        {"slot_mask": fit(masks[0]), "input_mask": fit(masks[1])},
    )
    if op in ("sinkhorn", "mesh"):
        case.options = _options(d, case, shape)
    return case


def _options(d: Draw, case: Case, batch: tuple[int, ...]) -> dict[str, Any]:
    rng = d.rng
    *_, m, n = case.cost.shape
    options: dict[str, Any] = {"n_iters": rng.choice((1, 2, 5, 5, 20))}
    options["temperature"] = d.temperature(batch)
    if case.op == "sinkhorn":
        options["grad"] = rng.choice(("unroll", "implicit"))
        options["tol"] = rng.choice((None, None, 0.0, 1e-3))
        if rng.random() < 0.3:
            options["init"] = (d.normal(*batch, m).float(), d.normal(*batch, n).float())
    else:
        options["n_steps"] = rng.choice((0, 1, 2, 4))
        options["potentials"] = rng.choice(("detach", "reuse", "fresh"))
        ways = ("straight_through", "implicit", "unroll")
        options["grad"] = rng.choice(ways if options["potentials"] != "reuse" else ways[::2])
        if options["grad"] == "unroll" and options["potentials"] == "detach":
            options["grad"] = "truncated"
        if rng.random() < 0.5:
            options["step"] = rng.choice((0.0, 0.05, 1.0))
        else:
            options["lr"] = rng.choice((0.0, 1.0, 5.0))
        scale = rng.choice((0.0, 1e-3, 1e-3, 1.0))
        options["noise"] = (scale * d.normal(*batch, m, n)).float()
    beyond = case.cost.dtype == torch.float64 or options.get("tol") is not None
    beyond |= options["grad"] in ("unroll", "truncated") and case.op == "mesh"
    beyond |= options.get("potentials") == "reuse"
    options["backend"] = "torch" if beyond else rng.choice(("torch", "cpu", "auto"))
    return options
