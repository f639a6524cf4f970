"""A transport problem: the caller's arguments, checked and in the form that all solvers share."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.ops import checks

# Smaller masses are treated as 0: the derivative of their logarithm could overflow float32.
SMALLEST = 1e-30
# Largest marginal error of a converged plan, if the caller gives no tolerance.
CONVERGED = 1e-3


class Given(NamedTuple):
    """The arguments that all operations have in common, as the caller passed them."""

    op: str
    """Name of the operation, for its errors."""
    cost: Tensor
    a: Tensor | None = None
    b: Tensor | None = None
    slot_mask: Tensor | None = None
    input_mask: Tensor | None = None
    temperature: float | Tensor = 1.0

    def tensors(self) -> list[Tensor]:
        """All tensors among them."""
        return [x for x in self if isinstance(x, Tensor)]


class SolverSettings(NamedTuple):
    """Settings of ``sinkhorn`` or ``mesh``, as passed to every backend.

    Plain values only, because they are also arguments of a custom operator of torch.
    """

    n_iters: int
    """Iterations of each Sinkhorn."""
    tol: float | None = None
    """Marginal error at which a batch element stops."""
    implicit: bool = False
    """Whether the last plan is differentiated as if it had converged."""
    mesh: bool = False
    """Whether the cost is adjusted first (``mesh``); all settings below are only for this."""
    n_steps: int = 0
    """Descent steps on the cost."""
    length: float = 0.0
    """Norm of a step, or with ``per_entry`` its root mean square over real entries."""
    per_entry: bool = False
    """Whether ``length`` is ``step`` (per entry) or ``lr`` (over the whole matrix)."""
    relative: bool = False
    """Whether ``length`` is in units of the temperature, a tensor, instead of the cost."""
    unroll: bool = False
    """Whether the steps are differentiated."""
    fresh: bool = False
    """Whether each Sinkhorn starts from zero potentials."""
    reuse: bool = False
    """Whether potentials are passed on with their graph."""
    sigma: float = 1.0
    """Factor of the noise."""
    temperature: float = 1.0
    """Temperature, for the kernels only, if all batch elements share it; see ``Problem.tau``."""
    keep: bool = False
    """For the kernels: whether to keep the cost of each step, for a gradient through potentials."""


class Problem(NamedTuple):
    """A batch of transport problems: float32 or float64, padding replaced by zeros."""

    cost: Tensor  # (*batch, m, n), 0 where padded
    a: Tensor  # (*batch, m), the mass of each slot, 0 where padded
    b: Tensor  # (*batch, n), the mass of each input, 0 where padded
    log_a: Tensor  # (*batch, m), -inf where there is no mass
    log_b: Tensor  # (*batch, n), -inf where there is no mass
    slots: Tensor | None  # (*batch, m), True where real
    inputs: Tensor | None  # (*batch, n), True where real
    tau: float | Tensor = 1.0  # the temperature; a tensor is (..., 1, 1)

    def detach(self) -> "Problem":
        """The same problem without a graph."""
        return Problem(*(x.detach() if isinstance(x, Tensor) else x for x in self))  # pyright: ignore


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The precision to compute in: float64 stays, everything else becomes float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast is off on the device of ``like``."""
    kind = like.device.type
    # Autocast has no meta device; asking torch which devices it has cannot be compiled in 2.11.
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def problem(given: Given, *, balanced: bool = True) -> Problem:
    """Check the arguments and fill in the defaults; ``balanced`` requires equal total masses."""
    clean, slots, inputs = clean_cost(given)
    a, b = marginals(given, slots, inputs, clean, balanced=balanced)
    tau = scaled_temperature(given, tuple(clean.shape[:-2]))
    check_ratio(given.op, clean, tau)
    return Problem(clean, a, b, log_marginal(a), log_marginal(b), slots, inputs, tau)


def clean_cost(given: Given) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Check cost and masks: the cost (*batch, m, n), 0 where padded, and the masks."""
    op, cost = given.op, given.cost
    batch = check_problem(given)
    m, n = cost.shape[-2:]
    slots, inputs = expanded_masks(given, batch)
    _check_mask(op, "slot_mask", slots)
    _check_mask(op, "input_mask", inputs)
    clean = cost.to(compute_dtype(cost)).expand(*batch, m, n)
    real = real_entries(slots, inputs)
    if real is not None:
        clean = torch.where(real, clean, 0.0)
    pairs = "" if op == "emd" else ", pairs that are not allowed into pair_mask"
    checks.check_finite(
        op,
        "cost",
        clean,
        "Look for a NaN or an overflow upstream; padding goes into slot_mask and input_mask"
        f"{pairs}.",
    )
    return clean, slots, inputs


def check_problem(given: Given) -> tuple[int, ...]:
    """Check shapes, dtypes and devices; returns the batch dimensions that all of them share."""
    op, cost, a, b, slot_mask, input_mask, _ = given
    checks.check_matrix(op, "cost", cost)
    if a is None and b is None and slot_mask is None and input_mask is None:
        return tuple(cost.shape[:-2])
    m, n = cost.shape[-2:]
    for name, vector, size, is_mask in (
        ("a", a, m, False),
        ("b", b, n, False),
        ("slot_mask", slot_mask, m, True),
        ("input_mask", input_mask, n, True),
    ):
        if vector is not None:
            checks.check_vector(op, name, vector, size, cost, mask=is_mask)
    vectors = [x for x in (a, b, slot_mask, input_mask) if x is not None]
    try:
        return checks.broadcast_shapes(cost.shape[:-2], *(x.shape[:-1] for x in vectors))
    except RuntimeError:
        shapes = ", ".join(str(tuple(x.shape)) for x in [cost, *vectors])
        raise ValueError(
            f"{op}: the shapes {shapes} of cost, marginals and masks have leading dimensions that "
            "do not broadcast, expected the batch dimensions of cost in all of them. Give them "
            "these, or none."
        ) from None


def expanded_masks(given: Given, batch: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
    """The masks (*batch, m) and (*batch, n), or None."""
    m, n = given.cost.shape[-2:]
    slots, inputs = given.slot_mask, given.input_mask
    return (
        None if slots is None else slots.expand(*batch, m),
        None if inputs is None else inputs.expand(*batch, n),
    )


def marginals(
    given: Given,
    slots: Tensor | None,
    inputs: Tensor | None,
    like: Tensor,
    *,
    balanced: bool = True,
) -> tuple[Tensor, Tensor]:
    """The masses (*batch, m) and (*batch, n) of a matrix ``like``, defaults filled in."""
    op, a, b = given.op, given.a, given.b
    *batch, m, n = like.shape
    full_a = _marginal(op, "a", a, slots, (*batch, m), like)
    full_b = _marginal(op, "b", b, inputs, (*batch, n), like)
    if full_a is None and full_b is None:
        full_a = torch.ones_like(like[..., 0]) if slots is None else slots.to(like.dtype)
    if full_b is None:
        assert full_a is not None
        full_b = _spread(full_a.sum(-1, keepdim=True), inputs, (*batch, n))
    if full_a is None:
        full_a = _spread(full_b.sum(-1, keepdim=True), slots, (*batch, m))
    if balanced and a is not None and b is not None:
        _check_totals(op, full_a, full_b, a, b)
    return full_a, full_b


def real_entries(slots: Tensor | None, inputs: Tensor | None) -> Tensor | None:
    """Where a cost matrix is not padding, broadcastable to (*batch, m, n); None if it has none."""
    if slots is None:
        return None if inputs is None else inputs.unsqueeze(-2)
    if inputs is None:
        return slots.unsqueeze(-1)
    return slots.unsqueeze(-1) & inputs.unsqueeze(-2)


def log_marginal(mass: Tensor) -> Tensor:
    """log(mass), -inf below ``SMALLEST``, with a gradient that is finite everywhere.

    Where a batch element has no mass at all every entry becomes 0, so that no solver divides by
    nothing; its plan is still zero because plans are multiplied by the mass itself.
    """
    positive = mass >= SMALLEST
    log = torch.where(positive, torch.where(positive, mass, 1.0).log(), -torch.inf)
    return torch.where(positive.any(-1, keepdim=True), log, 0.0)


def marginal_error(plan: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """How much of the mass is in the wrong place, as a share of all mass: (*batch)."""
    plan, a, b = plan.detach(), a.detach(), b.detach()
    wrong = (plan.sum(-1) - a).abs().sum(-1) + (plan.sum(-2) - b).abs().sum(-1)
    return wrong / a.sum(-1).clamp(min=torch.finfo(a.dtype).tiny)


def scaled_temperature(given: Given, batch: tuple[int, ...]) -> float | Tensor:
    """The temperature, ready to divide the cost (*batch, m, n)."""
    op, temperature, device = given.op, given.temperature, given.cost.device
    if not isinstance(temperature, Tensor):
        number = checks.as_real(op, "temperature", temperature, positive=True)
        dtype = compute_dtype(given.cost)
        if number > torch.finfo(dtype).max:
            raise ValueError(
                f"{op}: temperature is {number}, expected a number that {dtype} can hold. Lower "
                "it, or pass cost.double()."
            )
        return number
    if not checks.broadcasts_to(temperature.shape, batch):
        raise ValueError(
            f"{op}: temperature has shape {tuple(temperature.shape)}, expected one that broadcasts "
            f"to the batch dimensions {tuple(batch)} of cost. Pass a float for one temperature."
        )
    if temperature.device != device:
        raise ValueError(
            f"{op}: temperature is on {temperature.device}, expected {device}, where cost is. "
            "Move it with temperature.to(cost.device)."
        )
    checks.check_finite(op, "temperature", temperature, "Look for an overflow upstream.")
    if checks.can_read_values(temperature) and not bool((temperature > 0).all()):
        raise ValueError(
            f"{op}: temperature has an entry of {temperature.min().item():.4g}, expected all above "
            "0. Use softplus or exp to make a learned temperature."
        )
    return temperature.to(compute_dtype(given.cost))[..., None, None]


def check_ratio(op: str, cost: Tensor, tau: float | Tensor) -> None:
    """Check that cost over temperature does not overflow, where values may be read."""
    tensors = (cost, tau if isinstance(tau, Tensor) else None)
    if not checks.can_read_values(*tensors) or cost.numel() == 0:
        return
    least = float(tau.detach().amin()) if isinstance(tau, Tensor) else tau
    # Only then can a quotient be larger than a cost.
    if least < 1 and not math.isfinite((cost.detach().abs().amax() / least).item()):
        raise ValueError(
            f"{op}: cost / temperature exceeds what {cost.dtype} can hold (the largest cost is "
            f"{cost.detach().abs().amax().item():.4g}, the lowest temperature {least:.4g}), "
            "expected a finite quotient. Raise the temperature, or pass cost.double()."
        )


def temperature_of(given: Given, u: Tensor) -> Tensor:
    """The temperature as a tensor (*batch), for potentials (*batch, m)."""
    tau = given.temperature
    tau = tau.to(u.dtype) if isinstance(tau, Tensor) else u.new_full((), float(tau))
    return tau.expand(u.shape[:-1])


def _spread(total: Tensor, mask: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Total mass (*batch, 1), uniform over the real elements."""
    if mask is None:
        return (total / shape[-1]).expand(shape)
    real = mask.to(total.dtype)
    return total * real / real.sum(-1, keepdim=True).clamp(min=1.0)


def _marginal(
    op: str,
    name: str,
    given: Tensor | None,
    mask: Tensor | None,
    shape: tuple[int, ...],
    like: Tensor,
) -> Tensor | None:
    if given is None:
        return None
    full = given.to(like.dtype).expand(shape)
    if mask is not None:
        full = torch.where(mask, full, 0.0)
    _check_total(op, name, full)
    if checks.can_read_values(full) and bool((full < 0).any()):
        raise ValueError(
            f"{op}: {name} has a negative entry ({full.min().item():.4g}), expected masses of at "
            f"least 0. Use softmax or softplus to make {name}."
        )
    return full


def _check_total(op: str, name: str, full: Tensor) -> None:
    """Check that masses (*batch, size) and their totals are finite, where values may be read."""
    # Totals of masses that are not finite are not finite either.
    if not checks.can_read_values(full) or bool(full.detach().sum(-1).isfinite().all()):
        return
    checks.check_finite(op, name, full, "A marginal is the mass of each element.")
    raise ValueError(
        f"{op}: {name} sums to {full.detach().sum(-1).max().item()}, expected a total that "
        f"{full.dtype} can hold. Rescale the masses, or pass cost.double()."
    )


def _check_mask(op: str, name: str, mask: Tensor | None) -> None:
    if mask is None or not checks.can_read_values(mask):
        return
    empty = ~mask.any(-1)
    if bool(empty.any()):
        raise ValueError(
            f"{op}: {name} masks every element of {int(empty.sum())} of {empty.numel()} batch "
            "elements, expected at least one True in each. Leave these batch elements out."
        )


def _check_totals(op: str, a: Tensor, b: Tensor, given_a: Tensor, given_b: Tensor) -> None:
    if not checks.can_read_values(a, b):
        return
    # Masses that were cast to float64 keep the rounding they had before.
    dtypes = (given_a.dtype, given_b.dtype, torch.float32)
    coarsest = max(torch.finfo(dtype).eps for dtype in dtypes)
    total_a, total_b = a.detach().sum(-1), b.detach().sum(-1)
    # Rounding of n summands grows like sqrt(n); a thousand roundings is far below any real mistake.
    off = (total_a - total_b).abs() > min(1000 * coarsest, 0.05) * torch.maximum(total_a, total_b)
    if bool(off.any()):
        first = tuple(off.nonzero()[0])
        raise ValueError(
            f"{op}: the marginals have different totals (a sums to {total_a[first].item():.6g}, "
            f"b to {total_b[first].item():.6g}), expected the same mass on both sides. "
            "Rescale one of them: b = b * a.sum(-1, keepdim=True) / b.sum(-1, keepdim=True)."
        )
