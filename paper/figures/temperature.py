"""Sinkhorn at low temperatures against MESH: entropy and its gradient (the paper's section 4.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from slotmesh.ops import Transport, mesh, sinkhorn
from slotmesh.report.figures import COLOURS, panels, shades

TEMPERATURES = (1.0, 0.1, 0.01)
LEARNING_RATES = (1.0, 2.0, 3.0, 5.0)
NOISE = 1e-3

Curves = NDArray[np.float64]
OnProgress = Callable[[int, int], None]
"""Told (done, of how many) as the work goes on."""


def noop(done: int, total: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Scaling:
    """What becomes of a 10 x 10 identity matrix times a factor, averaged over draws of noise."""

    factors: Curves
    """``(f,)``."""
    temperatures: Curves
    """``(t,)``, of Sinkhorn."""
    learning_rates: Curves
    """``(l,)``, lambda of MESH."""
    sinkhorn_entropy: Curves
    """``(t, f)``, normalised: 1 is nothing decided."""
    sinkhorn_gradient: Curves
    """``(t, f)``: norm of the gradient of the entropy (in nats) by the cost."""
    mesh_entropy: Curves
    """``(l, f)``."""
    mesh_gradient: Curves
    """``(l, f)``: straight through, like the paper's."""

    def entropy_headline(self) -> str:
        """The claim of the left panel in one line."""
        at = int(np.abs(np.log10(self.factors) + 1).argmin())
        return (
            f"at factor {self.factors[at]:.2g} the entropy is {self.sinkhorn_entropy[0, at]:.2f} "
            f"by Sinkhorn at temperature {self.temperatures[0]:g}, "
            f"{self.mesh_entropy[-1, at]:.2f} by MESH at lambda {self.learning_rates[-1]:g}"
        )

    def gradient_headline(self) -> str:
        """The claim about the gradients in one line."""
        sh, changed = self.sinkhorn_gradient.max(-1), self.mesh_gradient.max(-1)
        return (
            f"the largest gradient norm is {sh.min():.3g} to {sh.max():.3g} for Sinkhorn, by its "
            f"temperature, and {changed.min():.2f} to {changed.max():.2f} for MESH, by its lambda"
        )


def scaling(
    *,
    n_draws: int,
    seed: int = 0,
    n_factors: int = 101,
    temperatures: Sequence[float] = TEMPERATURES,
    learning_rates: Sequence[float] = LEARNING_RATES,
    on_progress: OnProgress = noop,
) -> Scaling:
    """Entropy and gradient norm for factors from 0.001 to 100.

    The identity is a similarity, so the cost is minus it: a large factor then decides everything.
    All methods get the same noise, at every factor.
    """
    factors = torch.logspace(-3, 2, n_factors, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    identity = torch.eye(10, dtype=torch.float64)
    noise = NOISE * torch.randn(n_draws, 10, 10, generator=generator, dtype=torch.float64)
    methods: list[Callable[[Tensor], Transport]] = [
        *(_sinkhorn(noise, temperature) for temperature in temperatures),
        *(_mesh(noise, lr) for lr in learning_rates),
    ]
    entropies = np.empty((len(methods), n_factors))
    gradients = np.empty((len(methods), n_factors))
    for j, factor in enumerate(factors):
        cost = (-factor * identity).expand_as(noise)
        for i, method in enumerate(methods):
            entropy, gradient = entropy_and_gradient(cost, method)
            entropies[i, j], gradients[i, j] = entropy.mean().item(), gradient.mean().item()
        on_progress(j + 1, n_factors)
    split = len(temperatures)
    return Scaling(
        factors=factors.numpy(),
        temperatures=np.array(temperatures),
        learning_rates=np.array(learning_rates),
        sinkhorn_entropy=entropies[:split],
        sinkhorn_gradient=gradients[:split],
        mesh_entropy=entropies[split:],
        mesh_gradient=gradients[split:],
    )


def entropy_and_gradient(
    cost: Tensor, method: Callable[[Tensor], Transport]
) -> tuple[Tensor, Tensor]:
    """Normalised entropy of the plans, and the norm of the gradient of their entropy by the cost.

    Args:
        cost: ``(..., m, n)``.
        method: Makes a transport of it.

    Returns:
        Two tensors ``(...)``.
    """
    with torch.enable_grad():
        leaf = cost.detach().clone().requires_grad_()
        transport = method(leaf)
        (gradient,) = torch.autograd.grad(transport.entropy().sum(), leaf)
    return transport.entropy(normalized=True).detach(), torch.linalg.matrix_norm(gradient)


def decades_above(factors: Curves, gradient: Curves, share: float = 0.1) -> float:
    """Over how many decades of the factor the gradient is above a share of its maximum."""
    decade = float(np.log10(factors[1] / factors[0]))
    return decade * float((gradient > share * gradient.max()).sum())


def draw_temperature(numbers: Scaling) -> Figure:
    """Entropy on the left, gradient norm on the right, each curve scaled to a maximum of 1."""
    figure, [[left, right]] = panels(9.2, 4.0, 1, 2)
    _lines(left, numbers, numbers.sinkhorn_entropy, numbers.mesh_entropy)
    left.set_title("Entropy of the plan", fontsize=11)
    left.set_ylabel("normalised entropy")
    handles = _lines(
        right, numbers, _to_one(numbers.sinkhorn_gradient), _to_one(numbers.mesh_gradient)
    )
    right.set_title("Gradient of the entropy by the cost", fontsize=11)
    right.set_ylabel("norm / its largest value")
    for axes in (left, right):
        axes.set_ylim(-0.03, 1.05)
    _legend(figure, handles)
    return figure


def draw_unnormalised(numbers: Scaling) -> Figure:
    """The gradient norms as they are, on a linear scale (left) and on a logarithmic one (right)."""
    figure, [[left, right]] = panels(9.2, 4.0, 1, 2)
    for axes in (left, right):
        handles = _lines(axes, numbers, numbers.sinkhorn_gradient, numbers.mesh_gradient)
        axes.set_ylabel("gradient norm (nats per unit of cost)")
    left.set_title("Linear scale", fontsize=11)
    right.set_title("Logarithmic scale", fontsize=11)
    right.set_yscale("log")
    right.set_ylim(1e-3, 1e3)
    _legend(figure, handles)
    return figure


def _sinkhorn(noise: Tensor, temperature: float) -> Callable[[Tensor], Transport]:
    return lambda cost: sinkhorn(cost + noise, temperature=temperature)


def _mesh(noise: Tensor, lr: float) -> Callable[[Tensor], Transport]:
    return lambda cost: mesh(cost, noise=noise, lr=lr)


def _to_one(curves: Curves) -> Curves:
    return curves / curves.max(-1, keepdims=True)


def _lines(axes: Axes, numbers: Scaling, sh: Curves, changed: Curves) -> list[Line2D]:
    """Sinkhorn dashed in blue, MESH in red; the darker, the more of its remedy."""
    lines: list[Line2D] = []
    groups = (
        ("SH, τ", numbers.temperatures, sh, "SA-SH", (0, (5, 1.5))),
        ("MESH, λ", numbers.learning_rates, changed, "SA-MESH", "-"),
    )
    for name, values, curves, variant, dash in groups:
        for value, curve, colour in zip(
            values, curves, shades(COLOURS[variant], len(values)), strict=True
        ):
            label = f"{name} = {value:g}"
            lines += axes.plot(
                numbers.factors, curve, color=colour, linestyle=dash, linewidth=2, label=label
            )
    axes.set_xscale("log")
    axes.set_xlim(numbers.factors[0], numbers.factors[-1])
    axes.set_xlabel("scaling factor")
    axes.grid(color="#e6e8ec")
    axes.set_axisbelow(True)
    return lines


def _legend(figure: Figure, handles: list[Line2D]) -> None:
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        handlelength=2.2,
        columnspacing=1.4,
    )
