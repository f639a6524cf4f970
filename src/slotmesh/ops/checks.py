"""Checks of arguments; each error says what it got, what it expected and how to fix it.

Shapes, dtypes and devices are always checked. Values (finite costs, non-negative marginals, ...)
are read only where reading them is free: on the CPU and outside of compilation, so that no check
ever waits for a GPU unless ``set_value_checks("always")`` asks for it.
"""

import math
import sys
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from slotmesh.ops._private import transform

ValueChecks = Literal["auto", "always", "never"]

_mode: ValueChecks = "auto"
_torch: Any = torch


def set_value_checks(mode: ValueChecks) -> ValueChecks:
    """Choose when the values of costs, marginals and masks are checked.

    Args:
        mode: ``"auto"`` checks values on the CPU only, ``"always"`` on every device (this waits
            for the GPU at each call: meant for debugging), ``"never"`` not at all.

    Returns:
        The previous mode.

    Example:
        >>> from slotmesh.ops import set_value_checks
        >>> before = set_value_checks("always")
        >>> set_value_checks(before)
        'always'
    """
    global _mode
    check_choice("set_value_checks", "mode", mode, ("auto", "always", "never"))
    before, _mode = _mode, mode
    return before


def can_read_values(*tensors: Tensor | None) -> bool:
    """Whether the values of these tensors may be read now."""
    if torch.compiler.is_compiling() or _mode == "never":
        return False
    for t in tensors:
        # Subclasses (fake, distributed, ...) and tensors inside vmap have no plain values to read.
        if t is not None and (type(t) not in (Tensor, torch.nn.Parameter) or t.is_meta):
            return False
        if t is not None and _mode == "auto" and not t.is_cpu:
            return False
    return not in_transform()


def in_transform() -> bool:
    """Whether this is inside a transform of torch.func."""
    return transform() is not None


def check_choice(op: str, name: str, value: object, choices: tuple[object, ...]) -> None:
    """Check that an option has one of a few values."""
    if value not in choices:
        raise ValueError(
            f"{op}: {name} is {value!r}, expected one of {', '.join(repr(c) for c in choices)}."
        )


def check_gradient(op: str, grad: object, potentials: object) -> Any:
    """Check how MESH is differentiated; returns the potentials, by default those that suit it."""
    check_choice(op, "grad", grad, ("straight_through", "implicit", "unroll", "truncated"))
    if potentials is None:
        return "reuse" if grad == "unroll" else "detach"
    check_choice(op, "potentials", potentials, ("detach", "reuse", "fresh"))
    if grad == "unroll" and potentials == "detach":
        raise ValueError(
            f"{op}: potentials is 'detach' with grad='unroll', which would not be the exact "
            "gradient. Leave potentials out or pass 'reuse' or 'fresh'; grad='truncated' is the "
            "gradient that ignores how potentials depend on the cost."
        )
    if grad == "truncated" and potentials != "detach":
        raise ValueError(
            f"{op}: potentials is {potentials!r}, expected 'detach' with grad='truncated', which "
            "ignores how potentials depend on the cost. Pass grad='unroll' for the exact gradient."
        )
    if grad == "implicit" and potentials == "reuse":
        raise ValueError(
            f"{op}: potentials is 'reuse', expected 'detach' or 'fresh' with grad='implicit', "
            "which goes through no potentials. Pass grad='straight_through' for the gradient of "
            "the authors' code."
        )
    return potentials


def step_or_lr(
    op: str, step: object, lr: object, default: float | None
) -> tuple[float | None, float | None]:
    """Check the two ways to give the size of a step; the default step if neither is given."""
    if step is not None and lr is not None:
        raise ValueError(
            f"{op}: got both step={step} and lr={lr}. Pass either step or lr, not both; lr is the "
            "paper's lambda, step does not depend on the size of the matrix."
        )
    if lr is not None:
        return None, as_real(op, "lr", lr)
    return as_real(op, "step", default if step is None else step), None


def check_instance(
    op: str, name: str, value: object, kind: type | tuple[type, ...], say: str
) -> None:
    """Check the class of an object; ``say`` tells which objects to pass."""
    if not isinstance(value, kind):
        raise ValueError(f"{op}: {name} is {value!r}, expected {say}.")


def check_count(op: str, name: str, value: object, least: int) -> None:
    """Check for a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{op}: {name} is {value!r}, expected a whole number of at least {least}.")


def check_real(op: str, name: str, value: object, *, positive: bool = False) -> None:
    """Check for a finite number, at least 0 or above 0."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared, not converted: a whole number can be too large for a float.
    number: Any = value if good else math.nan
    if not (number > 0 if positive else number >= 0) or number > sys.float_info.max:
        raise ValueError(
            f"{op}: {name} is {value!r}, expected a finite number "
            f"{'above' if positive else 'of at least'} 0."
        )


def as_count(op: str, name: str, value: object, least: int) -> int:
    """Check as :func:`check_count` does; accepts NumPy's integers and returns Python's."""
    number = plain(value)
    check_count(op, name, number, least)
    return number


def as_seed(op: str, name: str, value: object) -> int:
    """Check for a seed, which fits into 64 bits; accepts NumPy's integers and returns Python's."""
    number = as_count(op, name, value, 0)
    if number >= 2**63:
        raise ValueError(
            f"{op}: {name} is {value!r}, expected a whole number from 0 to 2**63 - 1. Pass a "
            "smaller one."
        )
    return number


def as_real(op: str, name: str, value: object, *, positive: bool = False) -> float:
    """Check as :func:`check_real` does; accepts NumPy's numbers and whole ones, returns a float."""
    number = plain(value)
    check_real(op, name, number, positive=positive)
    # Not an int, even if given: kernels are compiled for the types of numbers.
    return float(number)


def as_number(op: str, name: str, value: object) -> float:
    """Check for a finite number of any sign; accepts NumPy's numbers and returns Python's."""
    number = plain(value)
    good = isinstance(number, int | float) and not isinstance(number, bool)
    if not good or not abs(number) <= sys.float_info.max:
        raise ValueError(f"{op}: {name} is {value!r}, expected a finite number.")
    return float(number)


def plain(value: Any) -> Any:
    """A NumPy scalar as a Python number; everything else unchanged."""
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def check_matrix(op: str, name: str, value: object, axes: str = "(..., slots m, inputs n)") -> None:
    """Check for a dense, non-empty floating-point tensor of two or more dimensions."""
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{op}: {name} is a {type(value).__name__}, expected a tensor {axes}. "
            "Convert it with torch.as_tensor."
        )
    if not value.is_floating_point():
        raise ValueError(
            f"{op}: {name} has dtype {value.dtype}, expected a floating-point tensor. "
            f"Call {name}.float() first."
        )
    if value.layout != torch.strided:
        raise ValueError(
            f"{op}: {name} has layout {value.layout}, expected a dense tensor. Call "
            f"{name}.to_dense() first."
        )
    if value.ndim < 2:
        raise ValueError(
            f"{op}: {name} has shape {tuple(value.shape)}, expected at least two dimensions "
            f"{axes}. Add the missing ones with {name}[None]."
        )
    if 0 in value.shape[-2:]:
        raise ValueError(
            f"{op}: {name} has shape {tuple(value.shape)}, expected {axes} with at least one "
            "row and one column. Leave empty problems out."
        )


def check_vector(
    op: str, name: str, value: object, size: int, like: Tensor, *, of: str = "cost", mask: bool
) -> None:
    """Check a marginal or a mask ``(..., size)`` on the device of ``like``."""
    kind = "a boolean tensor" if mask else "a floating-point tensor"
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{op}: {name} is a {type(value).__name__}, expected {kind} (..., {size}). "
            "Convert it with torch.as_tensor."
        )
    if (value.dtype != torch.bool) if mask else not value.is_floating_point():
        fix = f"{name}.bool(), True where an element is real" if mask else f"{name}.float()"
        raise ValueError(f"{op}: {name} has dtype {value.dtype}, expected {kind}. Use {fix}.")
    if value.ndim == 0 or value.shape[-1] != size:
        raise ValueError(
            f"{op}: {name} has shape {tuple(value.shape)}, expected (..., {size}) to fit "
            f"{of} of shape {tuple(like.shape)}. "
            + ("Rows of cost are slots, columns are inputs." if of == "cost" else "Pad or cut it.")
        )
    if value.device != like.device:
        raise ValueError(
            f"{op}: {name} is on {value.device}, expected {like.device}, where {of} is. "
            f"Move it with {name}.to({of}.device)."
        )


def check_finite(op: str, name: str, value: Tensor, fix: str) -> None:
    """Check for NaN and infinity, if values may be read."""
    # The sum is the quick test; that of finite numbers may overflow.
    if not can_read_values(value) or math.isfinite(value.detach().sum().item()):
        return
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        where = (~finite).nonzero()
        raise ValueError(
            f"{op}: {name} has {len(where)} entries that are not finite (the first is "
            f"{value[tuple(where[0])].item()} at {[int(i) for i in where[0]]}), expected finite "
            f"numbers. {fix}"
        )


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape; RuntimeError if there is none."""
    first = shapes[0]
    # torch's own is slow, and most are equal.
    if all(shape == first for shape in shapes):
        return tuple(first)
    return tuple(_torch.broadcast_shapes(*shapes))


def broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can be expanded to the wanted one."""
    try:
        return broadcast_shapes(shape, wanted) == tuple(wanted)
    except RuntimeError:
        return False
