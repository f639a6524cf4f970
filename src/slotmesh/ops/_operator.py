"""The kernels of ``sinkhorn`` and ``mesh`` as operators of torch, for whatever traces a call.

They are known to torch without triton, which is imported when one of them runs.
"""

from typing import Any, get_type_hints

import torch
from torch import Tensor

from slotmesh.ops._fused import (
    adjoint_of,
    gradients_of,
    pull_back,
    results_of,
    run_adjoint,
    run_backward,
    run_forward,
    save,
)
from slotmesh.ops._kernel_types import (
    SHOWN,
    Gradients,
    Incoming,
    Operands,
    Past,
    Results,
    Wanted,
)
from slotmesh.ops._private import custom_op, register_vmap
from slotmesh.ops.problem import SolverSettings

_SCHEMA = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    float: "float",
    float | None: "float?",
    int: "SymInt",
    bool: "bool",
    torch.dtype: "ScalarType",
}


def _flat_op(name: str, returns: type[Any], *parts: type[Any]) -> Any:
    """Make an operator of a function of NamedTuples; torch.library wants flat arguments."""
    # Numbered, as two parts may have fields of one name.
    hints = [kind for part in parts for kind in get_type_hints(part).values()]
    arguments = ", ".join(f"{_SCHEMA[kind]} x{i}" for i, kind in enumerate(hints))
    schema = f"({arguments}) -> ({', '.join(['Tensor'] * len(returns._fields))})"

    def decorate(function: Any) -> Any:
        def flat(*args: Any) -> tuple[Tensor, ...]:
            return _whole(args[0], function(*_split(args, *parts)))

        return custom_op(name, flat, mutates_args=(), schema=schema)

    return decorate


def _split(args: tuple[Any, ...], *parts: Any) -> list[Any]:
    """Flat arguments as NamedTuples again."""
    found: list[Any] = []
    for part in parts:
        size = len(part._fields)
        found.append(part(*args[:size]))
        args = args[size:]
    return found


def _whole(like: Tensor, results: Any) -> tuple[Tensor, ...]:
    """An operator returns tensors only: an empty one for None."""
    return tuple(like.new_empty(0, dtype=torch.float32) if x is None else x for x in results)


@_flat_op("slotmesh::transport", Results, Operands, SolverSettings)
def transport_op(operands: Operands, settings: SolverSettings) -> Results:
    """Sinkhorn, or MESH."""
    return run_forward(operands, settings)


@transport_op.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    return _whole(args[0], results_of(*_split(args, Operands, SolverSettings)))


_BACKWARD = (Operands, Past, Incoming, SolverSettings, Wanted)


@_flat_op("slotmesh::transport_backward", Gradients, *_BACKWARD)
def transport_backward(
    operands: Operands, past: Past, incoming: Incoming, settings: SolverSettings, wanted: Wanted
) -> Gradients:
    """Gradients through the iterations."""
    return run_backward(operands, past, incoming, settings, wanted)


@transport_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    operands, past, _, _, wanted = _split(args, *_BACKWARD)
    grads = gradients_of(operands, past, wanted)
    return _whole(args[0], grads._replace(cost=grads.cost.to(wanted.dtype)))


def backward_flat(*parts: Any) -> tuple[Tensor, ...]:
    """The operator of the gradients, with the arguments of :func:`run_backward`."""
    return transport_backward(*(x for part in parts for x in part))


@custom_op("slotmesh::plan_adjoint", mutates_args=())
def plan_adjoint(plan: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The implicit gradient of a plan."""
    return run_adjoint(plan, grad, scale)


@plan_adjoint.register_fake
def _(plan: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return adjoint_of(plan)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    results = Results(*output)
    operands, settings = _split(inputs, Operands, SolverSettings)
    hidden = (results.trace, results.history, *(() if settings.mesh else (results.changed,)))
    save(ctx, operands, settings, results, *hidden)


def _backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
    mesh = ctx.settings.mesh
    incoming = Incoming(grads[0], grads[1], grads[2], grads[7] if mesh else None)
    needs = Operands(*ctx.needs_input_grad[: len(Operands._fields)])
    found = pull_back(ctx, incoming, needs, backward_flat, plan_adjoint)
    return *found, *(None,) * len(ctx.settings)


transport_op.register_autograd(_backward, setup_context=_setup)


# ---- inside vmap: one batch of all batches ----


def _with_batch(info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...], at: int = 0) -> Any:
    """The arguments with one more batch dimension ``at`` the same place in all tensors."""
    whole: list[Any] = []
    for x, dim in zip(args, in_dims, strict=True):
        if isinstance(x, Tensor):
            if dim is None:
                x, dim = x.unsqueeze(0).expand(info.batch_size, *x.shape), 0
            x = x.movedim(dim, at).contiguous()
        whole.append(x)
    return whole


def _of_each(results: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Where results have that dimension; None for empty placeholders."""
    return tuple(None if x.shape == (0,) else 0 for x in results)


def _map_transport(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    size = len(Operands._fields)
    operands = Operands(*_with_batch(info, in_dims[:size], args[:size]))
    settings = SolverSettings(*args[size:])
    # Only here it is known whether there is a graph.
    graph = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)
    settings = settings._replace(keep=settings.reuse and settings.n_steps > 0 and graph)
    found: tuple[Tensor, ...] = transport_op(*operands, *settings)
    shown, trace, history = found[:SHOWN], found[SHOWN], found[SHOWN + 1]
    # Links of a chain of Sinkhorns come first, then batches.
    count = trace.shape[1] // max(1, info.batch_size)
    trace = trace.reshape(len(trace), info.batch_size, count, *trace.shape[2:])
    dims = (*_of_each(shown), 1, None if history.shape == (0,) else 1)
    return (*shown, trace, history), dims


def _map_backward(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    sizes = [len(part._fields) for part in _BACKWARD]
    first, second = sizes[0], sizes[0] + sizes[1]
    trace, history = _with_batch(info, in_dims[first:second], args[first:second], at=1)
    flat = [
        *_with_batch(info, in_dims[:first], args[:first]),
        trace.flatten(1, 2),
        history,
        *_with_batch(info, in_dims[second:], args[second:]),
    ]
    found = transport_backward(*flat)
    return found, _of_each(found)


def _map_adjoint(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    return plan_adjoint(*_with_batch(info, in_dims, args)), (0, 0, 0)


register_vmap(transport_op, _map_transport)
register_vmap(transport_backward, _map_backward)
register_vmap(plan_adjoint, _map_adjoint)
