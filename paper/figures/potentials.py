"""The benefit of reusing Sinkhorn's potentials from one MESH step to the next (appendix D)."""

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from paper.figures.common import NOISE, FloatArray, OnProgress, noop
from slotmesh.ops import mesh, pairwise_cost
from slotmesh.ops.mesh import PotentialsMode
from slotmesh.palette import VARIANT_COLOURS
from slotmesh.report.figures import panels

N_SLOTS, N_INPUTS, DIM = 7, 100, 64
LR = 5.0
N_ITERS = 5
# Enough that the misplaced mass of the reference is far below the measured gaps.
IDEAL_ITERS = 300


@dataclass(frozen=True)
class PotentialGaps:
    """Mean absolute difference from plans in whose runs every Sinkhorn converged.

    The k-th Sinkhorn of a MESH run gets a cost that was adjusted k - 1 times.
    """

    iterations: NDArray[np.int64]
    """``(k,)``: 1, 2, ..., the index of the Sinkhorn in the run."""
    reused: FloatArray
    """``(draws, k)``: each Sinkhorn starts from the potentials of the previous one."""
    fresh: FloatArray
    """``(draws, k)``: each Sinkhorn starts from zero potentials."""
    lr: float
    """Lambda of MESH."""
    ideal_error: FloatArray
    """``(k,)``: largest fraction of misplaced mass among the converged plans."""

    def headline(self) -> str:
        """State the claim in one line."""
        reused, fresh = self.reused.mean(0), self.fresh.mean(0)
        ratio = fresh[1:] / reused[1:]
        return (
            f"from the second MESH iteration on, fresh potentials have a gap {ratio.min():.1f} to "
            f"{ratio.max():.0f} times that of reused ones"
        )


def potential_gaps(
    *, n_draws: int, seed: int = 0, n_iterations: int = 10, on_progress: OnProgress = noop
) -> PotentialGaps:
    """Compute gaps for costs like those of slot attention: distances of random slots and inputs."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(n_draws, *shape, generator=generator, dtype=torch.float64)

    cost = pairwise_cost(normal(N_SLOTS, DIM), normal(N_INPUTS, DIM))
    return gaps_of(
        cost, NOISE * normal(N_SLOTS, N_INPUTS), n_iterations=n_iterations, on_progress=on_progress
    )


def gaps_of(
    cost: Tensor,
    noise: Tensor,
    *,
    lr: float = LR,
    n_iterations: int = 10,
    on_progress: OnProgress = noop,
) -> PotentialGaps:
    """Compute gaps for given costs and noise ``(draws, m, n)``."""
    reused: list[FloatArray] = []
    fresh: list[FloatArray] = []
    errors: list[float] = []
    modes: tuple[tuple[PotentialsMode, list[FloatArray]], ...] = (
        ("detach", reused),
        ("fresh", fresh),
    )
    # A converged Sinkhorn forgets its start, so the reference can be run one step at a time.
    ideal = mesh(cost, noise=noise, n_steps=0, n_iters=IDEAL_ITERS)
    for k in range(n_iterations):
        if k > 0:
            ideal = mesh(ideal.cost, noise=0.0, lr=lr, n_steps=1, n_iters=IDEAL_ITERS)
        errors.append(ideal.marginal_error.max().item())
        for mode, gaps in modes:
            t = mesh(cost, noise=noise, lr=lr, n_steps=k, n_iters=N_ITERS, potentials=mode)
            gaps.append((t.plan - ideal.plan).abs().mean((-2, -1)).numpy())
        on_progress(k + 1, n_iterations)
    return PotentialGaps(
        iterations=np.arange(1, n_iterations + 1),
        reused=np.stack(reused, -1),
        fresh=np.stack(fresh, -1),
        lr=lr,
        ideal_error=np.array(errors),
    )


def draw_potentials(numbers: PotentialGaps) -> Figure:
    """Draw both gaps by MESH iteration, with the central 80 % of the draws."""
    figure, [[axes]] = panels(6.4, 3.8)
    series = (
        ("fresh u, v", numbers.fresh, VARIANT_COLOURS["SA"], "s", "--"),
        ("reused u, v", numbers.reused, VARIANT_COLOURS["SA-MESH"], "o", "-"),
    )
    for name, gaps, colour, mark, dash in series:
        low, high = np.quantile(gaps, (0.1, 0.9), axis=0)
        axes.fill_between(numbers.iterations, low, high, color=colour, alpha=0.18, linewidth=0)
        mean = gaps.mean(0)
        axes.plot(
            numbers.iterations, mean, dash, color=colour, marker=mark, markersize=5, linewidth=2
        )
        axes.annotate(
            name,
            (numbers.iterations[-1], mean[-1]),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold",
            annotation_clip=False,
        )
    axes.set_yscale("log")
    axes.set_xticks(numbers.iterations)
    axes.set_xlabel("MESH iteration")
    axes.set_ylabel("mean absolute gap\nto converged Sinkhorn")
    axes.grid(color="#e6e8ec")
    axes.set_axisbelow(True)
    return figure
