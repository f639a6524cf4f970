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
from slotmesh.ops._kernel_types import Gradients, Incoming, Operands, Past, Results, Wanted
from slotmesh.ops._private import custom_op
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
    incoming = Incoming(grads[0], grads[1], grads[2], grads[6] if mesh else None)
    needs = Operands(*ctx.needs_input_grad[: len(Operands._fields)])
    found = pull_back(ctx, incoming, needs, backward_flat, plan_adjoint)
    return *found, *(None,) * len(ctx.settings)


transport_op.register_autograd(_backward, setup_context=_setup)
