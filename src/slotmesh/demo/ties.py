"""The paper's tie examples, under all four transports."""

from dataclasses import dataclass

import torch
from torch import Tensor

from slotmesh.ops import emd, entropy, mesh, sinkhorn

VARIANTS = ("SA", "SA-SH", "SA-EMD", "SA-MESH")


@dataclass(frozen=True)
class Tie:
    """A cost matrix with equal slots in it."""

    title: str
    slots: tuple[str, ...]
    inputs: tuple[str, ...]
    cost: Tensor


@dataclass(frozen=True)
class TieResult:
    """The results of all transports for a tie."""

    tie: Tie
    plans: dict[str, Tensor]
    entropies: dict[str, float]

    def broken(self, variant: str) -> bool:
        """Whether the first two slots, which are equal, get different inputs."""
        plan = self.plans[variant]
        return bool((plan[0] - plan[1]).abs().max() > 0.5)


def paper_ties() -> tuple[Tie, Tie]:
    """Two equal slots for two equal inputs (appendix C), and slots x, x, y (appendix B)."""
    near, far = 0.0, 6.0
    return (
        Tie("all equal", ("x", "x"), ("α", "β"), torch.ones(2, 2)),
        Tie(
            "x wants α or β, y wants γ",
            ("x", "x", "y"),
            ("α", "β", "γ"),
            torch.tensor([[near, near, far], [near, near, far], [far, far, near]]),
        ),
    )


def transport_tie(tie: Tie, seed: int = 0) -> TieResult:
    """Plans and entropies of the four transports on one cost matrix."""
    noise = torch.Generator().manual_seed(seed)
    plans = {
        # Slot attention's softmax and normalisation are one iteration of Sinkhorn.
        "SA": sinkhorn(tie.cost, n_iters=1).plan,
        "SA-SH": sinkhorn(tie.cost, n_iters=100).plan,
        "SA-EMD": emd(tie.cost).plan,
        "SA-MESH": mesh(tie.cost, generator=noise).plan,
    }
    return TieResult(tie, plans, {name: entropy(plan).item() for name, plan in plans.items()})
