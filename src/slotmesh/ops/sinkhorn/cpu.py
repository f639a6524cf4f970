"""Sinkhorn on the CPU: by scalings in C, and in the log domain what leaves their range."""

from typing import Any, Protocol

import torch
from torch import Tensor

from slotmesh.ops import _native as native
from slotmesh.ops._batch import Batch
from slotmesh.ops._cpu import in_a_transform
from slotmesh.ops.sinkhorn.implicit import plan_adjoint
from slotmesh.ops.sinkhorn.naive import Potentials, first_potentials, solve

Gradients = tuple[Tensor | None, ...]
# The implicit gradient in C keeps so many vectors squared.
MOST_SLOTS = 64


class Descent(native.Descent, Protocol):
    """Changes costs before their Sinkhorn; for derivatives the change is a constant."""

    def by_logarithms(self, batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The changed costs of the elements with these indices, and the next u or None."""
        ...


def cpu_sinkhorn(
    batch: Batch,
    u: Tensor | None,
    n_iters: int,
    shape: tuple[int, ...],
    descent: Descent | None = None,
    *,
    implicit: bool = False,
) -> tuple[Tensor, Potentials, Tensor]:
    """Plan, potentials and the cost they belong to.

    Args:
        batch: The problem.
        u: ``(batch, m)``, potentials to start from, or None.
        n_iters: Number of iterations.
        shape: The batch dimensions of the result.
        descent: What to do to the cost before, or None.
        implicit: Whether the plan is differentiated as a converged one, and potentials not at all.
    """
    leaves = (batch.cost, batch.a, batch.b, batch.tau, u)
    graph = torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in leaves
    )
    apply: Any = _Sinkhorn.apply  # pyright: ignore
    plan, last_u, last_v, changed = apply(*batch, u, n_iters, graph, descent, implicit)
    m, n = batch.cost.shape[-2:]
    count = torch.full(shape, n_iters, dtype=torch.int64, device=batch.cost.device)
    cost = batch.cost if changed is None else changed
    if len(shape) != 1:
        plan, cost = (x.view(*shape, m, n) for x in (plan, cost))
        last_u, last_v = last_u.view(*shape, m), last_v.view(*shape, n)
    return plan, Potentials(last_u, last_v, count), cost


class _Sinkhorn(torch.autograd.Function):
    """Plan, u, v and changed cost. Derivatives of higher orders go by the log domain."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        batch, (u, n_iters, graph, descent, implicit) = Batch(*args[:6]), args[6:]
        start = first_potentials(batch.a, batch.slots, u)
        outputs = [torch.empty_like(x) for x in batch[:3]]
        changed = None if descent is None else torch.empty_like(batch.cost)
        easy = native.solve(batch, changed, start, n_iters, descent, outputs)
        if bool(easy.all()):
            easy = None
        else:
            _solve_again(batch, changed, start, n_iters, descent, outputs, _hard(easy))
        plan, last_u, last_v = outputs
        ctx.set_materialize_grads(False)
        if implicit:
            ctx.mark_non_differentiable(last_u, last_v)
        if graph:
            cost = batch.cost if changed is None else changed
            tau = batch.tau if isinstance(batch.tau, Tensor) else None
            # Of MESH the potentials are constants.
            begin = u if descent is None else start
            # C does iterations again: that takes less time than memory for all of them.
            kept = plan if implicit else None
            ctx.save_for_backward(cost, *batch[1:4], tau, begin, easy, kept)
            ctx.tau, ctx.n_iters = batch.tau if tau is None else None, n_iters
        return plan, last_u, last_v, changed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        cost, a, b, slots, tau, u, easy, plan = ctx.saved_tensors
        batch = Batch(cost, a, b, slots, ctx.tau if tau is None else tau, None)
        wanted = [ctx.needs_input_grad[i] for i in (0, 1, 2, 4, 6)]
        into, by_changed = grads[:3], grads[3]
        if all(x is None for x in into):
            found: Gradients = (None,) * 5
        elif plan is not None and into[0] is not None:
            found = _as_converged(batch, plan, into[0], wanted)
        elif torch.is_grad_enabled() or in_a_transform(*into):
            found = _by_logarithms(batch, u, ctx.n_iters, into, wanted)
        else:
            found = _room(batch, wanted)
            start = first_potentials(a, slots, u)
            native.pull_back(batch, start, ctx.n_iters, easy, into, found)
            if easy is not None:
                hard = _hard(easy)
                begin = None if u is None else u[hard]
                some = tuple(None if x is None else x[hard] for x in into)
                exact = _by_logarithms(batch.at(hard), begin, ctx.n_iters, some, wanted)
                for whole, piece in zip(found, exact, strict=True):
                    if whole is not None and piece is not None:
                        whole[hard] = piece
        by_cost, by_a, by_b, by_tau, by_u = found
        by_cost = by_cost if wanted[0] else None
        if by_changed is not None:
            by_cost = by_changed if by_cost is None else by_cost + by_changed
        return by_cost, by_a, by_b, None, by_tau, None, by_u, *(None,) * 4


def _solve_again(
    batch: Batch,
    changed: Tensor | None,
    start: Tensor,
    n_iters: int,
    descent: Descent | None,
    outputs: list[Tensor],
    rows: Tensor,
) -> None:
    """Replace the outputs of some elements by those of the log domain, from the first cost."""
    plan, last_u, last_v = outputs
    some = batch.at(rows)
    if descent is not None and changed is not None:
        cost, u = descent.by_logarithms(batch, rows)
        changed[rows], some = cost, some._replace(cost=cost)
        start[rows] = first_potentials(some.a, some.slots, None) if u is None else u
    plan[rows], again = solve(some.task(), some.cost, some.tau, start[rows], n_iters)
    last_u[rows], last_v[rows] = again.u, again.v


def _hard(easy: Tensor) -> Tensor:
    """The indices of the elements that are left to the log domain."""
    return (~easy).nonzero().squeeze(-1)


def _room(batch: Batch, wanted: list[bool]) -> native.Gradients:
    """Memory for gradients: by the cost always, by the others where wanted."""
    like: tuple[Any, ...] = (batch.cost, batch.a, batch.b, batch.tau, batch.a)
    contiguous = torch.contiguous_format
    return native.Gradients(
        *(
            torch.empty_like(x, memory_format=contiguous) if y else None
            for x, y in zip(like, [True, *wanted[1:]], strict=True)
        )  # pyright: ignore
    )


def _as_converged(batch: Batch, plan: Tensor, grad: Tensor, wanted: list[bool]) -> Gradients:
    """The implicit gradients; by the first potentials there is none."""
    m, n = plan.shape[-2:]
    wanted = [*wanted[:4], False]
    if m <= min(n, MOST_SLOTS) and not torch.is_grad_enabled() and not in_a_transform(grad):
        found = _room(batch, wanted)
        native.adjoint(batch, plan, grad, found)
        return found
    by_kernel, by_a, by_b = plan_adjoint(plan, grad)
    by_cost = -by_kernel / batch.tau
    by_tau = -(by_cost * batch.cost).sum((-2, -1), keepdim=True) / batch.tau if wanted[3] else None
    return by_cost, by_a, by_b, by_tau, None


def _by_logarithms(
    batch: Batch, u: Tensor | None, n_iters: int, grads: Gradients, wanted: list[bool]
) -> Gradients:
    """The same by autograd through the log domain, with a graph of its own if that is asked for."""
    create_graph = torch.is_grad_enabled()
    given: tuple[Any, ...] = (batch.cost, batch.a, batch.b, batch.tau, u)
    with torch.enable_grad():
        leaves = [_renamed(x) if y else x for x, y in zip(given, wanted, strict=True)]
        cost, a, b, tau, u = leaves
        again = Batch(cost, a, b, batch.slots, tau, None)
        plan, potentials = solve(again.task(), cost, tau, u, n_iters)
        outputs = (plan, potentials.u, potentials.v)
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
    """The same tensor under a new name, as one input may have been made of another."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
