"""Sinkhorn on the CPU: by scalings in blocks, and in the log domain where these would not do."""

from typing import Any, Protocol

import torch
from torch import Tensor

from slotmesh.ops._blocked import Batch, Part, blocks, in_a_transform, kernels, part_of, steps_of
from slotmesh.ops._scaling import Scaling
from slotmesh.ops.sinkhorn.naive import Potentials, first_potentials, solve

Gradients = tuple[Tensor | None, ...]


class Descent(Protocol):
    """Changes costs before their Sinkhorn; for derivatives the change is a constant."""

    def by_scaling(
        self, block: Scaling, cost: Tensor, tau: float | Tensor, u: Tensor, part: Part
    ) -> Tensor:
        """Change costs (size, m, n) in place, from potentials u (size, m, 1); returns the next."""
        ...

    def by_logarithms(self, batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The changed costs of the elements with these indices, and the next u or None."""
        ...


def cpu_sinkhorn(
    batch: Batch,
    u: Tensor | None,
    n_iters: int,
    shape: tuple[int, ...],
    descent: Descent | None = None,
) -> tuple[Tensor, Potentials, Tensor]:
    """Plan, potentials and the cost they belong to.

    Args:
        batch: The problem.
        u: ``(batch, m)``, potentials to start from, or None.
        n_iters: Number of iterations.
        shape: The batch dimensions of the result.
        descent: What to do to the cost before, or None.
    """
    leaves = (batch.cost, batch.a, batch.b, batch.tau, u)
    graph = torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in leaves
    )
    apply: Any = _Sinkhorn.apply  # pyright: ignore
    plan, last_u, last_v, changed = apply(*batch, u, n_iters, graph, descent)
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
        batch, (u, n_iters, graph, descent) = Batch(*args[:6]), args[6:]
        start = first_potentials(batch.a, batch.slots, u)
        outputs = [torch.empty_like(x) for x in batch[:3]]
        kept = _memory(batch, n_iters) if graph else None
        if descent is not None:
            batch = batch._replace(cost=torch.empty_like(batch.cost))
        # Operations cost less there. What lives on is made outside of it.
        with torch.inference_mode():
            easy = _solve(batch, args[0], start, n_iters, descent, outputs, kept)
            hard = None if easy is None or bool(easy.all()) else (~easy).nonzero().squeeze(-1)
            if hard is not None:
                _solve_again(batch, args[0], start, n_iters, descent, outputs, hard)
        ctx.set_materialize_grads(False)
        if kept is not None:
            tau = batch.tau if isinstance(batch.tau, Tensor) else None
            # Of MESH the potentials are constants.
            begin = u if descent is None else start
            rest = None if hard is None else hard.clone()
            ctx.save_for_backward(*batch[:4], tau, begin, rest, *kept)
            ctx.tau, ctx.n_iters = batch.tau if tau is None else None, n_iters
        plan, last_u, last_v = outputs
        return plan, last_u, last_v, None if descent is None else batch.cost

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        cost, a, b, slots, tau, u, hard, *kept = ctx.saved_tensors
        batch = Batch(cost, a, b, slots, ctx.tau if tau is None else tau, None)
        wanted = [ctx.needs_input_grad[i] for i in (0, 1, 2, 4, 6)]
        into, by_changed = grads[:3], grads[3]
        if all(x is None for x in into):
            found: Gradients = (None,) * 5
        elif torch.is_grad_enabled() or in_a_transform(*into):
            found = _by_logarithms(batch, u, ctx.n_iters, into, wanted)
        else:
            found = _by_scaling(batch, kept, ctx.n_iters, into, wanted)
            if hard is not None:
                begin = None if u is None else u[hard]
                some = tuple(None if x is None else x[hard] for x in into)
                exact = _by_logarithms(batch.at(hard), begin, ctx.n_iters, some, wanted)
                for whole, piece in zip(found, exact, strict=True):
                    if whole is not None and piece is not None:
                        whole[hard] = piece
        by_cost, by_a, by_b, by_tau, by_u = found
        if by_changed is not None:
            by_cost = by_changed if by_cost is None else by_cost + by_changed
        return by_cost, by_a, by_b, None, by_tau, None, by_u, None, None, None


def _memory(batch: Batch, n_iters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for E, and for s and p of every iteration."""
    size, m, n = batch.cost.shape
    s, p = (n_iters, size, 1, n), (n_iters + 1, size, 1, m)
    return kernels(batch.cost, size), batch.cost.new_empty(s), batch.cost.new_empty(p)


def _solve(
    batch: Batch,
    first: Tensor,
    start: Tensor,
    n_iters: int,
    descent: Descent | None,
    outputs: list[Tensor],
    kept: tuple[Tensor, Tensor, Tensor] | None,
) -> Tensor | None:
    """Fill in the outputs, the changed cost, and what backward needs.

    Returns:
        Which elements are right (batch,), or None if all are.
    """
    plan, last_u, last_v = outputs
    easy = batch.even
    for part, block in blocks(*batch[:4], n_iters, None if kept is None else kept[0]):
        cost, tau, begin = part_of(batch.cost, part), part_of(batch.tau, part), part_of(start, part)
        u = begin.unsqueeze(-1)
        if descent is not None:
            cost.copy_(part_of(first, part))
            u = descent.by_scaling(block, cost, tau, u, part)
            begin.copy_(u.squeeze(-1))
        if not block.lost:
            h = block.absorb(cost, tau, u)
            block.iterate()
            block.plan(part_of(plan, part))
            log_p, log_q = block.potentials()
            torch.add(begin, log_p.squeeze(-1), out=part_of(last_u, part))
            torch.sub(log_q, h, out=part_of(last_v, part).unsqueeze(-2))
        if kept is not None:
            for whole, piece in zip(kept[1:], (block.s, block.p), strict=True):
                steps_of(whole, part).copy_(piece)
        if block.trusted is not None:
            easy = torch.ones_like(start[:, 0], dtype=torch.bool) if easy is None else easy
            part_of(easy, part).logical_and_(block.trusted)
    return easy


def _solve_again(
    batch: Batch,
    first: Tensor,
    start: Tensor,
    n_iters: int,
    descent: Descent | None,
    outputs: list[Tensor],
    rows: Tensor,
) -> None:
    """Replace the outputs of some elements by those of the log domain, from the first cost."""
    plan, last_u, last_v = outputs
    if descent is not None:
        changed, u = descent.by_logarithms(batch._replace(cost=first), rows)
        batch.cost[rows] = changed
        start[rows] = first_potentials(batch.a, batch.slots, None)[rows] if u is None else u
    some = batch.at(rows)
    plan[rows], again = solve(some.task(), some.cost, some.tau, start[rows], n_iters)
    last_u[rows], last_v[rows] = again.u, again.v


def _by_scaling(
    batch: Batch, kept: list[Tensor], n_iters: int, grads: Gradients, wanted: list[bool]
) -> Gradients:
    """Gradients by cost, a, b, tau and u where wanted."""
    memory, s, p = kept
    by_plan, by_u, by_v = grads
    by_cost = torch.empty_like(batch.cost)
    like: tuple[Any, ...] = (batch.a, batch.b, batch.tau, batch.a)
    by_a, by_b, by_tau, by_start = (
        torch.empty_like(x) if y else None for x, y in zip(like, wanted[1:], strict=True)
    )
    with torch.inference_mode():
        for part, block in blocks(*batch[:4], n_iters, memory):
            block.recall(steps_of(s, part), steps_of(p, part))
            grad = part_of(by_cost, part)
            mean = None
            if by_plan is None:
                grad.zero_()
            else:
                mean = block.centre(block.plan(grad), part_of(by_plan, part))
            block.reverse(grad, part_of(by_u, part), part_of(by_v, part))
            # So far this is by -C / tau.
            tau = part_of(batch.tau, part)
            grad.mul_(-1 / tau)
            if by_tau is not None:
                whole = part_of(batch.cost, part).mul(grad).sum((-2, -1), keepdim=True)
                part_of(by_tau, part).copy_(whole.div_(tau).neg_())
            if by_a is not None:
                part_of(by_a, part).copy_(block.by_a() if mean is None else block.by_a().add_(mean))
            if by_b is not None:
                part_of(by_b, part).copy_(block.by_b())
            if by_start is not None:
                part_of(by_start, part).copy_(block.by_start())
    return by_cost if wanted[0] else None, by_a, by_b, by_tau, by_start


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
