"""Sinkhorn at low temperatures compared with MESH: entropy and its gradient (section 4.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from paper.figures.common import NOISE, FloatArray, OnProgress, noop
from slotmesh.ops import Transport, mesh, sinkhorn
from slotmesh.palette import VARIANT_COLOURS
from slotmesh.report.figures import panels, shades

TEMPERATURES = (1.0, 0.1, 0.01)
LEARNING_RATES = (1.0, 2.0, 3.0, 5.0)


@dataclass(frozen=True)
class Scaling:
    """Entropies and gradients for a scaled 10 x 10 identity, averaged over draws of noise."""

    factors: FloatArray
    """``(f,)``."""
    temperatures: FloatArray
    """``(t,)``: temperatures of Sinkhorn."""
    learning_rates: FloatArray
    """``(l,)``: lambdas of MESH."""
    sinkhorn_entropy: FloatArray
    """``(t, f)``: normalised entropy; 1 for a uniform plan."""
    sinkhorn_gradient: FloatArray
    """``(t, f)``: norm of the gradient of the entropy (in nats) with respect to the cost."""
    mesh_entropy: FloatArray
    """``(l, f)``."""
    mesh_gradient: FloatArray
    """``(l, f)``: with the paper's straight-through gradient."""

    def entropy_headline(self) -> str:
        """State the claim of the left panel in one line."""
        at = int(np.abs(np.log10(self.factors) + 1).argmin())
        return (
            f"at factor {self.factors[at]:.2g} the entropy is {self.sinkhorn_entropy[0, at]:.2f} "
            f"for Sinkhorn at temperature {self.temperatures[0]:g} and "
            f"{self.mesh_entropy[-1, at]:.2f} for MESH at lambda {self.learning_rates[-1]:g}"
        )

    def gradient_headline(self) -> str:
        """State the claim about the gradients in one line."""
        sh, changed = self.sinkhorn_gradient.max(-1), self.mesh_gradient.max(-1)
        return (
            f"the largest gradient norm is {sh.min():.3g} to {sh.max():.3g} for Sinkhorn, "
            f"depending on its temperature, and {changed.min():.2f} to {changed.max():.2f} for "
            "MESH, depending on its lambda"
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
    """Compute entropy and gradient norm for factors from 0.001 to 100.

    The identity is a similarity, so the cost is its negative: a large factor makes the plan
    one-hot. All methods get the same noise at every factor.
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
    """Return the normalised entropy of plans and the norm of its gradient.

    The gradient is that of the entropy in nats with respect to the cost.

    Args:
        cost: ``(..., m, n)``.
        method: Computes a transport from a cost.

    Returns:
        Two tensors ``(...)``.
    """
    with torch.enable_grad():
        leaf = cost.detach().clone().requires_grad_()
        transport = method(leaf)
        (gradient,) = torch.autograd.grad(transport.entropy().sum(), leaf)
    return transport.entropy(normalized=True).detach(), torch.linalg.matrix_norm(gradient)


def draw_temperature(numbers: Scaling) -> Figure:
    """Draw the entropy (left) and the gradient norm (right), each scaled to a maximum of 1."""
    figure, [[left, right]] = panels(9.2, 4.0, 1, 2)
    _lines(left, numbers, numbers.sinkhorn_entropy, numbers.mesh_entropy)
    left.set_title("Entropy of the plan", fontsize=11)
    left.set_ylabel("normalised entropy")
    handles = _lines(
        right, numbers, _to_one(numbers.sinkhorn_gradient), _to_one(numbers.mesh_gradient)
    )
    right.set_title("Gradient of the entropy w.r.t. the cost", fontsize=11)
    right.set_ylabel("norm / its maximum")
    for axes in (left, right):
        axes.set_ylim(-0.03, 1.05)
    _legend(figure, handles)
    return figure


def draw_unnormalised(numbers: Scaling) -> Figure:
    """Draw the raw gradient norms on a linear scale (left) and on a logarithmic one (right)."""
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


def _to_one(curves: FloatArray) -> FloatArray:
    return curves / curves.max(-1, keepdims=True)


def _lines(axes: Axes, numbers: Scaling, sh: FloatArray, changed: FloatArray) -> list[Line2D]:
    """Draw Sinkhorn dashed in blue and MESH in red; darker lines reduce the entropy more."""
    lines: list[Line2D] = []
    groups = (
        ("SH, τ", numbers.temperatures, sh, "SA-SH", (0, (5, 1.5))),
        ("MESH, λ", numbers.learning_rates, changed, "SA-MESH", "-"),
    )
    for name, values, curves, variant, dash in groups:
        for value, curve, colour in zip(
            values, curves, shades(VARIANT_COLOURS[variant], len(values)), strict=True
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
