"""When the CPU's path by scalings can be used, the form of its problems, and their blocks."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from slotmesh.ops import _checks as checks
from slotmesh.ops._fused import DTYPES, flat_vector
from slotmesh.ops._problem import Problem, log_marginal, problem
from slotmesh.ops._scaling import ROWS, Scaling

# Entries of a block: its matrices fit into the caches, and calls of torch are worth their while.
BLOCK = 400_000

_C: Any = torch._C  # pyright: ignore
_X = TypeVar("_X")

# Which batch elements: None for all of them.
Part = slice | None


def use_blocks(op: str, backend: str, beyond: str | None, cost: Tensor, *others: object) -> bool:
    """Whether to compute by scalings; a ValueError where that was asked for and cannot be.

    Args:
        op: The name of the operation, for the error.
        backend: What the caller asked for.
        beyond: An option in use that only the torch path knows, in words, or None.
        cost: ``(..., m, n)``, checked to be a matrix.
        others: The other arguments that may be tensors.
    """
    if backend not in ("auto", "cpu"):
        return False
    reason = beyond or _unfit(cost, *others)
    if reason is not None and backend == "cpu":
        raise ValueError(
            f"{op}: backend is 'cpu', which does not work here: {reason}. "
            "Use backend='auto' to choose what fits, or backend='torch'."
        )
    return reason is None


def _unfit(cost: Tensor, *others: object) -> str | None:
    """Why scalings cannot be used, or None."""
    if torch.compiler.is_compiling():
        return "this is being compiled, and it chooses its way by values"
    if cost.device.type != "cpu":
        return f"cost is on {cost.device}"
    if cost.dtype not in DTYPES:
        return f"cost has dtype {cost.dtype}, and it computes in float32"
    for x in (cost, *others):
        if isinstance(x, Tensor) and type(x) not in (Tensor, torch.nn.Parameter):
            return f"a {type(x).__name__} came, whose values it cannot read"
    if in_a_transform():
        return "this is inside a transform of torch.func, which it does not know"
    if torch.autograd.forward_ad._current_level >= 0:  # pyright: ignore
        return "forward-mode derivatives are on, which it does not have"
    return None


def in_a_transform(*tensors: Tensor | None) -> bool:
    """Whether a transform of torch.func is at work, or a batched backward pass on these tensors."""
    if _C._functorch.peek_interpreter_stack() is not None:
        return True
    return any(x is not None and _C._functorch.is_legacy_batchedtensor(x) for x in tensors)


def plain_problem(op: str, cost: Tensor) -> Problem:
    """As :func:`problem`, for a cost alone, which has been checked to be a matrix."""
    clean = cost.to(torch.float32)
    if clean.numel() > 0 and checks.can_read_values(clean):
        low, high = torch.aminmax(clean.detach())
        if not (math.isfinite(low.item()) and math.isfinite(high.item())):
            return problem(op, cost, None, None, None, None)  # for its error
    *batch, m, n = clean.shape
    share = m / n
    return Problem(
        clean,
        clean.new_ones((*batch, m)),
        clean.new_full((*batch, n), share),
        clean.new_zeros((*batch, m)),
        clean.new_full((*batch, n), math.log(share)),
        None,
        None,
    )


class Batch(NamedTuple):
    """A problem with one batch dimension, contiguous."""

    cost: Tensor  # (batch, m, n)
    a: Tensor  # (batch, m)
    b: Tensor  # (batch, n)
    slots: Tensor | None  # (batch, m)
    tau: float | Tensor  # a tensor is (batch, 1, 1)
    even: Tensor | None  # (batch,), where masses suit scalings; None for everywhere

    def at(self, rows: Tensor) -> "Batch":
        """Some elements of it."""
        return Batch(*(x[rows] if isinstance(x, Tensor) else x for x in self))  # pyright: ignore

    def task(self) -> Problem:
        """What the log domain works on."""
        log_a, log_b = log_marginal(self.a), log_marginal(self.b)
        return Problem(self.cost, self.a, self.b, log_a, log_b, self.slots, None)


def flat_batch(task: Problem, cost: Tensor, tau: float | Tensor, *, given: bool) -> Batch:
    """A checked problem with another cost.

    Args:
        task: The problem.
        cost: ``(*batch, m, n)``.
        tau: The temperature, a float or ``(..., 1, 1)``.
        given: Whether a caller gave marginals, so that they can be anything.
    """
    *batch, m, n = cost.shape
    a, b, slots = (flat_vector(x) for x in (task.a, task.b, task.slots))
    assert a is not None
    assert b is not None
    if isinstance(tau, Tensor):
        tau = tau.expand(*batch, 1, 1).reshape(-1, 1, 1)
    even = sound(a.detach(), b.detach(), slots) if given else None
    if len(batch) != 1:
        cost = cost.reshape(-1, m, n)
    return Batch(cost.contiguous(), a, b, slots, tau, even)


def part_of(x: _X, part: Part) -> _X:
    """Some batch elements of what may be a tensor."""
    # A view of the whole takes as long as an operation on a small batch.
    return x if part is None or not isinstance(x, Tensor) else x[part]  # pyright: ignore


def steps_of(x: Tensor, part: Part) -> Tensor:
    """The same of vectors of every iteration, (n_iters, batch, ...)."""
    return x if part is None else x[:, part]


def kernels(like: Tensor, count: int) -> Tensor:
    """Memory for E of so many matrices (m, n), and for what products read beyond the last."""
    m, n = like.shape[-2:]
    memory = like.new_empty(count * m * n + (-m % ROWS) * n)
    memory[count * m * n :].zero_()
    return memory


def blocks(
    cost: Tensor,
    a: Tensor,
    b: Tensor,
    slots: Tensor | None,
    n_iters: int,
    memory: Tensor | None = None,
) -> Iterator[tuple[Part, Scaling]]:
    """Cut a batch of costs (batch, m, n) into blocks, each with what works on it.

    With ``memory``, of :func:`kernels` for the whole batch, each E has its own place there.
    """
    batch, m, n = cost.shape
    size = max(1, BLOCK // (m * n))
    shared = kernels(cost, min(size, batch)) if memory is None else memory
    scaling = None
    for begin in range(0, batch, size):
        part = slice(begin, begin + size) if size < batch else None
        like = part_of(cost, part)
        if scaling is None or scaling.shape != like.shape:
            scaling = _scaling(like, n_iters)
        mask = part_of(slots, part)
        place = 0 if memory is None else begin
        scaling.take(part_of(a, part), part_of(b, part), mask, shared, place)
        yield part, scaling
    if scaling is not None:
        _keep(scaling)


# To make the object takes as long as a small Sinkhorn, and new memory is slow: the last one is used
# again. Only a matrix that is larger than a block, and so alone in it, is not worth that.
_kept: dict[tuple[object, ...], Scaling] = {}


def _scaling(like: Tensor, n_iters: int) -> Scaling:
    kept = _kept.pop(_key(like.shape, n_iters, like.dtype), None)
    return Scaling(like, n_iters) if kept is None else kept


def _keep(scaling: Scaling) -> None:
    scaling.release()
    _kept.clear()
    if scaling.spare.numel() <= BLOCK:
        _kept[_key(scaling.shape, scaling.n_iters, scaling.spare.dtype)] = scaling


def _key(shape: tuple[int, ...], n_iters: int, dtype: torch.dtype) -> tuple[object, ...]:
    # What is made in inference mode can only be changed there.
    return shape, n_iters, dtype, torch.is_inference_mode_enabled()


def sound(a: Tensor, b: Tensor, slots: Tensor | None) -> Tensor:
    """Of which batch elements the masses suit scalings: (batch,).

    Entries of E are off by up to 1e-30, and scalings of inputs are at most ``LIMIT`` times the
    largest mass. The sum over a row has to be nothing beside that of the row, which is the mass of
    its slot over its scaling. And vectors of inputs must be normal numbers in float32.
    """
    total = a.sum(-1)
    lowest = (a if slots is None else torch.where(slots, a, torch.inf)).amin(-1)
    even = lowest >= 1e-7 * b.shape[-1] * b.amax(-1)
    normal = ((b == 0) | (b >= 1e-15)).all(-1)
    return even & normal & (total >= 1e-6) & (total <= 1e6)
