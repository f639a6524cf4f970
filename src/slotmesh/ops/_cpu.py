"""``sinkhorn`` and ``mesh`` on the CPU: scalings in C, and the log domain where they fail."""

import functools
import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slotmesh.ops import _native as native
from slotmesh.ops import checks
from slotmesh.ops._fused import HALF_OR_SINGLE, flat_vector
from slotmesh.ops._implicit import plan_adjoint
from slotmesh.ops._naive import Potentials, descend, first_potentials, solve, step_length
from slotmesh.ops._native.library import REMEDY, SWITCH, SWITCHED_OFF
from slotmesh.ops._private import is_batched_gradient, only_vmap, transform, unpack_dual
from slotmesh.ops.objectives import EntropyObjective
from slotmesh.ops.problem import (
    Given,
    Problem,
    SolverSettings,
    check_ratio,
    log_marginal,
    problem,
    scaled_temperature,
)

# The implicit gradient in C holds a matrix of this many slots squared; the matrix products of torch
# take less time for more.
MOST_SLOTS = 512
# Scalings are relative to the potentials that a Sinkhorn starts from. If they leave their range, C
# tries again with this many iterations at a time, each time from the latest potentials.
PIECE = 20


# ---- whether C runs ----


def use_c(given: Given, backend: str, beyond: str | None, *more: object) -> bool:
    """Whether to compute in C; a ValueError if it was asked for by name and cannot.

    Args:
        given: The arguments, of which ``cost`` has been checked to be a matrix.
        backend: The backend that the caller asked for.
        beyond: An option in use that only the torch backend supports, in words, or None.
        more: Further arguments that may be tensors.
    """
    if backend not in ("auto", "cpu"):
        return False
    reason = beyond or _unfit(given.cost, *given.tensors()[1:], *more)
    missing = native.unavailable() if reason is None else None
    if missing is not None:
        reason = f"the C backend is unavailable ({missing})"
        if backend == "auto" and missing != SWITCHED_OFF:
            _warn_once(missing)
    if reason is not None and backend == "cpu":
        raise ValueError(
            f"{given.op}: backend is 'cpu', which does not work here: {reason}. "
            "Use backend='auto' to choose one, or backend='torch'."
        )
    return reason is None


def _unfit(cost: Tensor, *others: object) -> str | None:
    """Why C cannot be used, or None."""
    if torch.compiler.is_compiling():
        return "this is being compiled, and the C backend chooses its path by values"
    if cost.device.type != "cpu":
        return f"cost is on {cost.device}"
    if cost.dtype not in HALF_OR_SINGLE:
        return f"cost has dtype {cost.dtype}, and the C backend computes in float32"
    tensors = [x for x in (cost, *others) if isinstance(x, Tensor)]
    for x in tensors:
        if type(x) not in (Tensor, torch.nn.Parameter):
            return f"it got a {type(x).__name__}, whose values it cannot read"
    if transform() is not None and not only_vmap():
        return "this is inside a transform of torch.func, of which the C backend supports only vmap"
    if any(unpack_dual(x).tangent is not None for x in tensors):
        return "forward-mode derivatives are on, which the C backend does not support"
    return None


@functools.cache
def _warn_once(missing: str) -> None:
    """Warn once per process; if warnings are errors, every time."""
    warnings.warn(
        "sinkhorn and mesh run in plain torch on the CPU, several times slower than in C, because "
        f"the C backend is unavailable: {missing}. {REMEDY}; {SWITCH}=0 in the environment chooses "
        "torch without this warning.",
        UserWarning,
        stacklevel=5,  # the caller of mesh or sinkhorn
    )


def _in_transform(*tensors: Tensor | None) -> bool:
    """Whether this is inside a torch.func transform or a batched backward pass."""
    return transform() is not None or any(x is not None and is_batched_gradient(x) for x in tensors)


# ---- the form that problems have on their way to C ----


class Batch(NamedTuple):
    """A problem with one batch dimension, contiguous."""

    cost: Tensor  # (batch, m, n)
    a: Tensor  # (batch, m)
    b: Tensor  # (batch, n)
    slots: Tensor | None  # (batch, m)
    tau: float | Tensor  # a tensor is (batch, 1, 1), like the next
    length: float | Tensor  # norm of a step
    even: Tensor | None  # (batch,), where masses suit scalings; None for everywhere

    def at(self, rows: Tensor) -> "Batch":
        """The batch elements with these indices."""
        return Batch(*(x[rows] if isinstance(x, Tensor) else x for x in self))  # pyright: ignore

    def task(self) -> Problem:
        """The same problem for the log domain."""
        log_a, log_b = log_marginal(self.a), log_marginal(self.b)
        return Problem(self.cost, self.a, self.b, log_a, log_b, self.slots, None, self.tau)


def quick_problem(given: Given) -> Problem:
    """As :func:`problem`; quicker for a cost alone, which has been checked to be a matrix."""
    if any(x is not None for x in given[2:6]):
        return problem(given)
    clean = given.cost.to(torch.float32)
    if clean.numel() > 0 and checks.can_read_values(clean):
        low, high = torch.aminmax(clean.detach())
        if not (math.isfinite(low.item()) and math.isfinite(high.item())):
            return problem(given)  # for its error
    *batch, m, n = clean.shape
    share = m / n
    tau = scaled_temperature(given, tuple(batch))
    check_ratio(given.op, clean, tau)
    return Problem(
        clean,
        clean.new_ones((*batch, m)),
        clean.new_full((*batch, n), share),
        clean.new_zeros((*batch, m)),
        clean.new_full((*batch, n), math.log(share)),
        None,
        None,
        tau,
    )


def _flat_batch(task: Problem, cost: Tensor, settings: SolverSettings, *, given: bool) -> Batch:
    """A problem with another cost (*batch, m, n); ``given`` says if a caller passed marginals."""
    *batch, m, n = cost.shape
    a, b, slots = (flat_vector(x) for x in (task.a, task.b, task.slots))
    assert a is not None
    assert b is not None

    def flat(x: float | Tensor) -> float | Tensor:
        return x.expand(*batch, 1, 1).reshape(-1, 1, 1) if isinstance(x, Tensor) else x

    length = flat(_useful_length(task, settings, given=given)) if settings.n_steps else 0.0
    even = sound(a.detach(), b.detach(), slots) if given else None
    if len(batch) != 1:
        cost = cost.reshape(-1, m, n)
    return Batch(cost.contiguous(), a, b, slots, flat(task.tau), length, even)


def _useful_length(task: Problem, settings: SolverSettings, *, given: bool) -> float | Tensor:
    """Norm of a step (*batch, 1, 1), 0 if one slot or one input leaves nothing to decide.

    The derivative is zero there, and a step would follow its rounding. A slot without mass counts:
    it takes part in the first half-step.
    """
    length = step_length(task, settings)
    if 1 in task.cost.shape[-2:]:
        return 0.0
    if not given and task.slots is None and task.inputs is None:
        return length
    undecided = (task.b > 0).sum(-1) > 1
    if task.slots is not None:
        undecided = undecided & (task.slots.sum(-1) > 1)
    return length * undecided.to(task.b.dtype)[..., None, None]


def sound(a: Tensor, b: Tensor, slots: Tensor | None) -> Tensor:
    """Which batch elements have masses that suit scalings: (batch,).

    Entries of E are off by up to 1e-30, and scalings of inputs are at most ``LIMIT`` of scaling.c
    times the largest mass. Summed over a row, that error has to be negligible against the sum of
    the row, which is the mass of its slot over its scaling. And vectors of inputs must be normal
    numbers in float32.
    """
    total = a.sum(-1)
    lowest = (a if slots is None else torch.where(slots, a, torch.inf)).amin(-1)
    even = lowest >= 1e-7 * b.shape[-1] * b.amax(-1)
    normal = ((b == 0) | (b >= 1e-15)).all(-1)
    return even & normal & (total >= 1e-6) & (total <= 1e6)


# ---- the computation ----


def cpu_transport(
    task: Problem, cost: Tensor, u: Tensor | None, settings: SolverSettings, *, given: bool
) -> tuple[Tensor, Potentials, Tensor]:
    """Plan, potentials and the cost that they belong to.

    Args:
        task: The problem.
        cost: ``(*batch, m, n)``, its cost with the noise.
        u: ``(*batch, m)``, potentials to start from, or None.
        settings: The settings.
        given: Whether a caller passed marginals, so that they can have any values.
    """
    batch = _flat_batch(task, cost, settings, given=given)
    u = flat_vector(u)
    leaves = (batch.cost, batch.a, batch.b, batch.tau, u)
    graph = torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in leaves
    )
    apply = _apply()
    plan, last_u, last_v, changed = apply(*batch, u, settings, graph)
    *shape, m, n = cost.shape
    count = torch.full(shape, settings.n_iters, dtype=torch.int64, device=cost.device)
    cost = batch.cost if changed is None else changed
    if len(shape) != 1:
        plan, cost = (x.view(*shape, m, n) for x in (plan, cost))
        last_u, last_v = last_u.view(*shape, m), last_v.view(*shape, n)
    return plan, Potentials(last_u, last_v, count), cost


class _Transport(torch.autograd.Function):
    """Plan, u, v and adjusted cost. Derivatives of higher orders use the log domain."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        size = len(Batch._fields)
        batch, (u, settings, graph) = Batch(*args[:size]), args[size:]
        start = first_potentials(batch.a, batch.slots, u)
        outputs = [torch.empty_like(x) for x in batch[:3]]
        changed = torch.empty_like(batch.cost) if settings.n_steps else None
        easy = native.solve(batch, changed, start, settings, outputs)
        if bool(easy.all()):
            easy = None
        else:
            _solve_again(batch, changed, start, settings, outputs, _hard(easy))
        plan, last_u, last_v = outputs
        ctx.set_materialize_grads(False)
        if settings.implicit:
            ctx.mark_non_differentiable(last_u, last_v)
        if graph:
            cost = batch.cost if changed is None else changed
            tau = batch.tau if isinstance(batch.tau, Tensor) else None
            # For MESH the potentials are constants.
            begin = u if changed is None else start
            # C repeats the iterations: that takes less time than keeping all of them in memory.
            kept = plan if settings.implicit else None
            ctx.save_for_backward(cost, *batch[1:4], tau, begin, easy, kept)
            ctx.tau, ctx.n_iters = batch.tau if tau is None else None, settings.n_iters
        return plan, last_u, last_v, changed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        cost, a, b, slots, tau, u, easy, plan = ctx.saved_tensors
        batch = Batch(cost, a, b, slots, ctx.tau if tau is None else tau, 0.0, None)
        wanted = [ctx.needs_input_grad[i] for i in (0, 1, 2, 4, 7)]
        into, grad_changed = grads[:3], grads[3]
        if all(x is None for x in into):
            found: tuple[Tensor | None, ...] = (None,) * 5
        elif plan is not None and into[0] is not None:
            found = _as_converged(batch, plan, into[0], wanted)
        elif torch.is_grad_enabled() or _in_transform(*into):
            found = _in_log_domain(batch, u, ctx.n_iters, into, wanted)
        else:
            found = _room(batch, wanted)
            start = first_potentials(a, slots, u)
            native.pull_back(batch, start, ctx.n_iters, easy, into, found)
            if easy is not None:
                hard = _hard(easy)
                begin = None if u is None else u[hard]
                some = tuple(None if x is None else x[hard] for x in into)
                exact = _in_log_domain(batch.at(hard), begin, ctx.n_iters, some, wanted)
                for whole, piece in zip(found, exact, strict=True):
                    if whole is not None and piece is not None:
                        whole[hard] = piece
        grad_cost, grad_a, grad_b, grad_tau, grad_u = found
        grad_cost = grad_cost if wanted[0] else None
        if grad_changed is not None:
            grad_cost = grad_changed if grad_cost is None else grad_cost + grad_changed
        return grad_cost, grad_a, grad_b, None, grad_tau, None, None, grad_u, None, None


class _MappedTransport(torch.autograd.Function):
    """The same inside vmap; a class of its own, as calls of one with a rule take longer."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """Not reached: the rule calls the other class."""
        raise AssertionError

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """One batch of all batches."""
        *tensors, settings, _ = args
        flat: list[Any] = []
        for x, dim in zip(tensors, in_dims, strict=False):
            if isinstance(x, Tensor):
                x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
                x = x.flatten(0, 1).contiguous()
            flat.append(x)
        graph = torch.is_grad_enabled() and any(
            isinstance(x, Tensor) and x.requires_grad for x in flat
        )
        found = _apply()(*flat, settings, graph)
        sizes = (info.batch_size, len(flat[0]) // info.batch_size if info.batch_size else 0)
        outputs = tuple(None if x is None else x.unflatten(0, sizes) for x in found)
        return outputs, tuple(None if x is None else 0 for x in found)


def _apply() -> Any:
    return (_Transport if transform() is None else _MappedTransport).apply  # pyright: ignore


def _solve_again(
    batch: Batch,
    changed: Tensor | None,
    start: Tensor,
    settings: SolverSettings,
    outputs: list[Tensor],
    rows: Tensor,
) -> None:
    """Replace the outputs of some elements by those of the log domain."""
    plan, last_u, last_v = outputs
    some = batch.at(rows)
    if changed is not None:
        cost, u = descend(some.task(), some.cost, settings, some.length, EntropyObjective())
        changed[rows] = cost
        start[rows] = first_potentials(some.a, some.slots, None) if u is None else u
        some = some._replace(cost=cost)
    plan[rows], last_u[rows], last_v[rows] = _solve_hard(some, start[rows], settings.n_iters)


def _solve_hard(batch: Batch, u: Tensor | None, n_iters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Plan, u and v of elements whose scalings leave their range."""
    if n_iters <= PIECE:
        plan, potentials = solve(batch.task(), batch.cost, u, n_iters)
        return plan, potentials.u, potentials.v
    graph = torch.is_grad_enabled()
    batch = batch._replace(cost=batch.cost.contiguous())
    for done in range(0, n_iters, PIECE):
        piece = SolverSettings(n_iters=min(PIECE, n_iters - done))
        plan, u, v, _ = _Transport.apply(*batch, u, piece, graph)  # pyright: ignore
    return plan, u, v  # pyright: ignore


def _hard(easy: Tensor) -> Tensor:
    """Indices of the elements that are left to the log domain."""
    return (~easy).nonzero().squeeze(-1)


def _room(batch: Batch, wanted: list[bool]) -> native.NativeGradients:
    """Memory for gradients: always for the cost, for the others if wanted."""
    like: tuple[Any, ...] = (batch.cost, batch.a, batch.b, batch.tau, batch.a)
    contiguous = torch.contiguous_format
    return native.NativeGradients(
        *(
            torch.empty_like(x, memory_format=contiguous) if y else None
            for x, y in zip(like, [True, *wanted[1:]], strict=True)
        )  # pyright: ignore
    )


def _as_converged(
    batch: Batch, plan: Tensor, grad: Tensor, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    """The implicit gradients; the first potentials have none."""
    m, n = plan.shape[-2:]
    wanted = [*wanted[:4], False]
    if m <= min(n, MOST_SLOTS) and not torch.is_grad_enabled() and not _in_transform(grad):
        found = _room(batch, wanted)
        native.adjoint(batch, plan, grad, found)
        return found
    grad_kernel, grad_a, grad_b = plan_adjoint(plan, grad)
    grad_cost = -grad_kernel / batch.tau
    grad_tau = None
    if wanted[3]:
        grad_tau = -(grad_cost * batch.cost).sum((-2, -1), keepdim=True) / batch.tau
    return grad_cost, grad_a, grad_b, grad_tau, None


def _in_log_domain(
    batch: Batch, u: Tensor | None, n_iters: int, grads: tuple[Any, ...], wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients by autograd, in the log domain if they need a graph of their own."""
    create_graph = torch.is_grad_enabled()
    given: tuple[Any, ...] = (batch.cost, batch.a, batch.b, batch.tau, u)
    with torch.enable_grad():
        leaves = [_renamed(x) if y else x for x, y in zip(given, wanted, strict=True)]
        cost, a, b, tau, u = leaves
        again = batch._replace(cost=cost, a=a, b=b, tau=tau)
        if create_graph or _in_transform(*grads):
            plan, potentials = solve(again.task(), cost, u, n_iters)
            outputs = (plan, potentials.u, potentials.v)
        else:
            outputs = _solve_hard(again, u, n_iters)
        pairs = [(x, y) for x, y in zip(outputs, grads, strict=True) if y is not None]
        found: tuple[Tensor, ...] = torch.autograd.grad(
            [x for x, _ in pairs],
            [x for x, y in zip(leaves, wanted, strict=True) if y],
            [y for _, y in pairs],
            create_graph=create_graph,
            materialize_grads=True,
        )
    rest = iter(found)
    return tuple(next(rest) if y else None for y in wanted)


def _renamed(x: Tensor) -> Tensor:
    """The same tensor as a new node, as one input may have been computed from another."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
