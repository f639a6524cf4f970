"""Minimise the Entropy of SinkHorn: costs changed until their Sinkhorn plan breaks ties."""

from typing import Literal

import torch
from torch import Tensor

from slotmesh.ops import _checks as checks
from slotmesh.ops._batch import flat_batch, quick_problem
from slotmesh.ops._cpu import use_c
from slotmesh.ops._drawn import Drawing, Drawn
from slotmesh.ops._fused import BACKENDS, Backend, flat_temperature, flatten, use_kernel
from slotmesh.ops._noise import SharedGenerator
from slotmesh.ops._precision import full_precision
from slotmesh.ops._problem import Problem, marginal_error, problem, real_entries
from slotmesh.ops._typed import broadcasts_to
from slotmesh.ops.mesh.cpu import EntropyDescent, decidable_length
from slotmesh.ops.mesh.naive import descend
from slotmesh.ops.mesh.objectives import EntropyObjective, Objective, SimilarityObjective
from slotmesh.ops.mesh.triton import fused_mesh
from slotmesh.ops.sinkhorn import CONVERGED, scaled_temperature
from slotmesh.ops.sinkhorn.cpu import cpu_sinkhorn
from slotmesh.ops.sinkhorn.implicit import implicit_plan
from slotmesh.ops.sinkhorn.naive import Potentials, solve, start
from slotmesh.ops.transport import Transport

__all__ = [
    "EntropyObjective",
    "MeshGrad",
    "Objective",
    "PotentialsMode",
    "SimilarityObjective",
    "mesh",
]

MeshGrad = Literal["straight_through", "implicit", "unroll"]
PotentialsMode = Literal["detach", "reuse", "fresh"]


def mesh(
    cost: Tensor,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    lr: float = 5.0,
    step: float | None = None,
    n_steps: int = 4,
    n_iters: int = 5,
    temperature: float | Tensor = 1.0,
    noise: float | Tensor = 1e-3,
    generator: torch.Generator | None = None,
    slot_mask: Tensor | None = None,
    input_mask: Tensor | None = None,
    potentials: PotentialsMode = "detach",
    objective: Objective | None = None,
    grad: MeshGrad = "straight_through",
    backend: Backend = "auto",
) -> Transport:
    """Change the cost by gradient descent until its Sinkhorn plan has low entropy.

    A little noise, amplified where slots compete for the same inputs, breaks ties that Sinkhorn
    and softmax cannot; where nothing is tied the noise has no visible effect. The paper's MESH.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs. float16 and bfloat16 are
            computed in float32 inside.
        a: Mass of each slot ``(..., m)``. Default: as for :func:`slotmesh.sinkhorn`.
        b: Mass of each input ``(..., n)``. Default: as for :func:`slotmesh.sinkhorn`.
        lr: The paper's lambda: the Frobenius norm of the change that one step makes to the whole
            matrix. The same value changes each entry of a larger matrix less.
        step: Used instead of ``lr`` where given: the root-mean-square change of one (real) entry
            in one step, which does not depend on the size of the matrix. 0.05 is a good start.
        n_steps: Number of descent steps on the cost.
        n_iters: Sinkhorn iterations in each step, and for the plan at the end.
        temperature: Of every Sinkhorn inside; as for :func:`slotmesh.sinkhorn`.
        noise: Standard deviation of the Gaussian noise that breaks ties, or the noise itself as a
            tensor that broadcasts to the cost's shape. It acts where it exceeds the rounding of the
            cost, in float32 some 1e-7 of the largest entry. With 0, rows that are equal to the last
            bit keep equal plans; equal slots whose costs a matrix product rounded differently may
            not, depending on the processor.
        generator: Source of the noise, for results that can be repeated.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real.
        potentials: Each step starts its Sinkhorn from the potentials of the step before.
            ``"detach"`` passes their values on only, ``"reuse"`` their graph as well (the
            authors' code: more memory), ``"fresh"`` starts each Sinkhorn from zero.
        objective: What to make small instead of the entropy: an object with a method
            ``derivative(plan)``, such as :class:`slotmesh.ops.SimilarityObjective` or
            :class:`slotmesh.nn.LearnedObjective`.
        grad: ``"straight_through"`` treats the change of the cost as a constant (the paper's) and
            differentiates the iterations of the last Sinkhorn, with ``"reuse"`` of all of them;
            ``"implicit"`` treats the change likewise and the last plan as converged, so that row
            and column shifts of the cost get zero gradient; only the plan and ``cost`` carry one,
            and there is no graph to ``"reuse"``;
            ``"unroll"`` differentiates the descent too, and with it what the objective holds. It
            is the exact gradient for ``"reuse"`` and ``"fresh"`` potentials. Close to a tie it is
            as steep as the decision is sudden, and steeper with every step; at an exact tie of all
            slots without noise, where there is no way down, no step is taken.
        backend: ``"triton"``, one kernel for the whole computation on a CUDA device (float32 or
            less, at most 64 slots and 65,536 inputs, no ``objective``, not ``"unroll"``,
            derivatives of first order only); ``"cpu"``, C, several times as fast as torch there
            (float32 or less, no ``objective``, not ``"unroll"`` or ``"reuse"``, not inside
            ``torch.compile`` or ``torch.func``; :func:`slotmesh.ops.backends` says whether it is
            there); ``"torch"``, which can do everything everywhere; or ``"auto"`` to choose what
            fits.

    Returns:
        A :class:`~slotmesh.ops.Transport` whose ``cost`` is the changed cost.

    Raises:
        ValueError: If an argument does not fit; values are only looked at on the CPU (see
            :func:`slotmesh.ops.set_value_checks`).

    Example:
        >>> import torch
        >>> from slotmesh import mesh, sinkhorn
        >>> tie = torch.ones(2, 2)  # two equal slots, two equal inputs
        >>> sinkhorn(tie).plan
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
        >>> plan = mesh(tie, generator=torch.Generator().manual_seed(0)).plan
        >>> plan.round().sum(0), plan.round().sum(1)  # one input each
        (tensor([1., 1.]), tensor([1., 1.]))
    """
    checks.check_gradient("mesh", grad, potentials)
    checks.check_choice("mesh", "backend", backend, BACKENDS)
    n_steps = checks.as_count("mesh", "n_steps", n_steps, 0)
    n_iters = checks.as_count("mesh", "n_iters", n_iters, 1)
    lr = checks.as_real("mesh", "lr", lr)
    if not isinstance(noise, Tensor):
        noise = checks.as_real("mesh", "noise", noise)
    if step is not None:
        step = checks.as_real("mesh", "step", step)
    if generator is not None:
        checks.check_instance(
            "mesh", "generator", generator, torch.Generator, "torch.Generator().manual_seed(seed)"
        )
    if objective is not None:
        checks.check_instance(
            "mesh", "objective", objective, Objective, "an object with a method derivative(plan)"
        )
    checks.check_matrix("mesh", "cost", cost)
    beyond = "grad is 'unroll'" if grad == "unroll" else None
    beyond = beyond if objective is None else "objective is given"
    implicit = grad == "implicit"
    if use_kernel("mesh", backend, cost, n_iters, beyond):
        size, per_entry = (lr, False) if step is None else (step, True)
        return _on_chip(
            cost,
            a,
            b,
            size,
            per_entry,
            n_steps,
            n_iters,
            temperature,
            noise,
            generator,
            slot_mask,
            input_mask,
            potentials,
            implicit,
        )
    if potentials == "reuse":
        beyond = beyond or "potentials is 'reuse'"
    in_c = use_c("mesh", backend, beyond, cost, a, b, temperature, noise)
    checked = quick_problem if in_c else problem
    task = checked("mesh", cost, a, b, slot_mask, input_mask)
    with full_precision(cost):
        tau = scaled_temperature("mesh", temperature, cost, task.a.shape[:-1])
        first = _with_noise(task, noise, generator)
        length = lr if step is None else _length(step, task)
        if in_c:
            given = a is not None or b is not None
            plan, last, changed = _in_c(
                task, first, tau, length, n_steps, n_iters, potentials, given, implicit
            )
        else:
            changed, u = descend(
                first,
                task,
                length=length,
                n_steps=n_steps,
                n_iters=n_iters,
                temperature=tau,
                potentials=potentials,
                objective=EntropyObjective() if objective is None else objective,
                unroll=grad == "unroll",
            )
            if implicit:
                kernel = -changed / tau
                plan, last = implicit_plan(kernel, task, start(task, u), n_iters, None)
            else:
                plan, last = solve(task, changed, tau, u, n_iters)
        error = marginal_error(plan, task.a, task.b)
    return Transport(
        plan=plan.to(cost.dtype),
        u=last.u,
        v=last.v,
        cost=changed,
        marginal_error=error,
        n_iters=last.n_iters,
        converged=error <= CONVERGED,
    )


def _in_c(
    task: Problem,
    first: Tensor,
    tau: float | Tensor,
    length: float | Tensor,
    n_steps: int,
    n_iters: int,
    potentials: PotentialsMode,
    given: bool,
    implicit: bool,
) -> tuple[Tensor, Potentials, Tensor]:
    """Plan, potentials and changed cost (*batch, m, n) on the CPU."""
    batch = first.shape[:-2]
    descent = None
    if n_steps > 0:
        length = decidable_length(task, length, given=given)
        if isinstance(length, Tensor):
            length = length.expand(*batch, 1, 1).reshape(-1, 1, 1)
        descent = EntropyDescent(length, n_steps, n_iters, potentials == "fresh")
    flat = flat_batch(task, first, tau, given=given)
    return cpu_sinkhorn(flat, None, n_iters, batch, descent, implicit=implicit)


def _on_chip(
    cost: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    length: float,
    per_entry: bool,
    n_steps: int,
    n_iters: int,
    temperature: float | Tensor,
    noise: float | Tensor,
    generator: torch.Generator | None,
    slot_mask: Tensor | None,
    input_mask: Tensor | None,
    potentials: PotentialsMode,
    implicit: bool,
) -> Transport:
    """MESH by the fused kernel."""
    with full_precision(cost):
        task = flatten("mesh", cost, a, b, slot_mask, input_mask)
        if implicit:
            # Its gradient is made of the plan, which has to be more than half precise for that.
            task = task._replace(cost=task.cost.to(torch.float32))
        shape = (*task.batch, *cost.shape[-2:])
        tau = scaled_temperature("mesh", temperature, cost, task.batch)
        drawn, sigma = None, 1.0
        if isinstance(noise, Tensor):
            drawn = check_noise(noise, generator, shape, cost).to(torch.float32).expand(shape)
            if checks.can_read_values(cost, noise):
                _with_noise(problem("mesh", cost, a, b, slot_mask, input_mask), noise, None)
        elif noise != 0:
            like = cost if cost.dtype == torch.float32 else cost.new_empty((), dtype=torch.float32)
            drawn, sigma = gaussian(like.expand(shape), generator), float(noise)
        plan, u, v, error, changed = fused_mesh(
            task,
            drawn,
            sigma,
            *flat_temperature(tau, task.batch),
            length=length,
            per_entry=per_entry,
            n_steps=n_steps,
            n_iters=n_iters,
            potentials=potentials,
            implicit=implicit,
        )
    return Transport(
        plan=plan.to(cost.dtype),
        u=u,
        v=v,
        cost=changed,
        marginal_error=error,
        n_iters=torch.full(task.batch, n_iters, dtype=torch.int64, device=cost.device),
        converged=error <= CONVERGED,
    )


def check_noise(
    noise: Tensor, generator: torch.Generator | None, shape: tuple[int, ...], cost: Tensor
) -> Tensor:
    """A noise tensor that broadcasts to ``shape``."""
    if generator is not None:
        raise ValueError(
            "mesh: got both a noise tensor and a generator, expected one of them. Leave the "
            "generator out, or pass noise as a standard deviation."
        )
    if not broadcasts_to(noise.shape, shape) or not noise.is_floating_point():
        raise ValueError(
            f"mesh: noise is a tensor of shape {tuple(noise.shape)} and dtype {noise.dtype}, "
            f"expected floating point that broadcasts to the cost's shape {tuple(shape)}. "
            "Draw it with torch.randn_like(cost)."
        )
    if noise.device != cost.device:
        raise ValueError(
            f"mesh: noise is on {noise.device}, expected {cost.device}, where cost is. "
            "Move it with noise.to(cost.device)."
        )
    return noise


def _with_noise(task: Problem, noise: float | Tensor, generator: torch.Generator | None) -> Tensor:
    """The first cost of the descent (*batch, m, n); padding stays 0."""
    if isinstance(noise, Tensor):
        drawn = check_noise(noise, generator, task.cost.shape, task.cost).to(task.cost.dtype)
    elif noise == 0:
        return task.cost
    elif generator is None:
        drawn = gaussian(task.cost, None).mul_(noise)
    else:
        drawn = noise * gaussian(task.cost, generator)
    real = real_entries(task.slots, task.inputs)
    drawn = drawn if real is None else torch.where(real, drawn, 0.0)
    # Standard normal numbers are below 10.
    if isinstance(noise, Tensor) or noise > 1e30:
        checks.check_finite("mesh", "noise", drawn, "Draw it with torch.randn_like(cost).")
    return task.cost + drawn


def gaussian(like: Tensor, generator: torch.Generator | Drawn | Drawing | None) -> Tensor:
    """Standard normal numbers of the shape, dtype and device of ``like``."""
    if generator is None:
        return torch.randn_like(like)
    if isinstance(generator, (Drawn, Drawing)):
        return generator.take(like)
    shared = isinstance(generator, SharedGenerator)
    shape = (generator.total, *like.shape[1:]) if shared else like.shape
    drawn = torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
    return generator.mine(drawn) if shared else drawn


def _length(step: float, task: Problem) -> float | Tensor:
    """Norm of a change of ``step`` in each real entry: a float, or (*batch, 1, 1) with masks."""
    m, n = task.cost.shape[-2:]
    if task.slots is None and task.inputs is None:
        return step * float(m * n) ** 0.5
    slots = task.cost.new_tensor(m) if task.slots is None else task.slots.sum(-1)
    inputs = task.cost.new_tensor(n) if task.inputs is None else task.inputs.sum(-1)
    return step * (slots * inputs).to(task.cost.dtype).sqrt()[..., None, None]
