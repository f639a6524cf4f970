"""Minimise the Entropy of SinkHorn: adjust the cost until its Sinkhorn plan breaks ties."""

from typing import Literal

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops._cpu import cpu_transport, quick_problem, use_c
from slotmesh.ops._fused import BACKENDS, Backend, fused_transport, use_kernel
from slotmesh.ops._implicit import implicit_plan
from slotmesh.ops._naive import all_true, descend, solve, step_length
from slotmesh.ops._pairs import framed
from slotmesh.ops.objectives import EntropyObjective, Objective
from slotmesh.ops.problem import (
    CONVERGED,
    Given,
    Problem,
    SolverSettings,
    check_problem,
    compute_dtype,
    expanded_masks,
    full_precision,
    marginal_error,
    problem,
    real_entries,
    temperature_of,
)
from slotmesh.ops.sinkhorn import solved
from slotmesh.ops.transport import Transport

MeshGrad = Literal["straight_through", "implicit", "unroll", "truncated"]
PotentialsMode = Literal["detach", "reuse", "fresh"]

# In units of the temperature; breaks exact ties at sizes from 2 x 2 to 256 x 256 and 6 x 4,096.
DEFAULT_STEP = 1.0
# Sinkhorn iterations, and those of the last plan of nearly square problems, where steps of the
# default size leave sums further from the masses than where each slot has many inputs.
N_ITERS, N_LAST = 5, 100


def mesh(
    cost: Tensor,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    lr: float | None = None,
    step: float | None = None,
    n_steps: int = 4,
    n_iters: int | None = None,
    temperature: float | Tensor = 1.0,
    noise: float | Tensor = 1e-3,
    generator: torch.Generator | None = None,
    slot_mask: Tensor | None = None,
    input_mask: Tensor | None = None,
    pair_mask: Tensor | None = None,
    dustbin: float | Tensor | None = None,
    potentials: PotentialsMode | None = None,
    objective: Objective | None = None,
    grad: MeshGrad = "straight_through",
    backend: Backend = "auto",
) -> Transport:
    """Adjust the cost by gradient descent until its Sinkhorn plan is nearly one-hot.

    This is the paper's MESH: it minimises the entropy of the Sinkhorn plan. A little noise,
    amplified where slots compete for the same inputs, breaks ties that Sinkhorn and softmax cannot;
    away from ties, the noise has no visible effect.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs. float16 and bfloat16 are computed
            in float32 internally.
        a: Mass of each slot ``(..., m)``. Default: as for :func:`slotmesh.sinkhorn`.
        b: Mass of each input ``(..., n)``. Default: as for :func:`slotmesh.sinkhorn`.
        lr: The paper's lambda: the Frobenius norm of one step over the whole matrix. The same value
            changes each entry of a larger matrix less, so large matrices need a larger ``lr``. Pass
            either ``lr`` or ``step``.
        step: Root-mean-square change of a (real) entry in one step, which does not depend on the
            size of the matrix. Default: the temperature, which breaks exact ties at every size and
            temperature.
        n_steps: Number of descent steps on the cost.
        n_iters: Number of Sinkhorn iterations, in each step and for the plan at the end. Default:
            5, except for the plan at the end if the matrix is nearly square without its padding (at
            most 4 inputs per slot, or 16 from 32 slots on, or the reverse) and ``lr`` is not given:
            it takes 100, so that both marginals hold.
        temperature: Temperature of every Sinkhorn inside; as for :func:`slotmesh.sinkhorn`.
        noise: Standard deviation of the Gaussian noise that breaks ties, or the noise itself as a
            tensor that broadcasts to the cost's shape. It must exceed the rounding of the cost
            (about 1e-7 of the largest entry in float32) to have an effect. With 0, rows that are
            bitwise equal keep equal plans; but if a matrix product rounds the costs of equal slots
            differently, their plans may differ, depending on the processor.
        generator: Source of the noise, for reproducible results. Not supported inside
            ``torch.compile``: pass ``noise`` as a tensor instead.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real.
        pair_mask: ``(..., m, n)``, True where slot and input may be paired; as for
            :func:`slotmesh.sinkhorn`. The mean over entries in ``step`` includes other pairs too.
        dustbin: Cost of leaving an element without a partner, as for :func:`slotmesh.sinkhorn`. It
            adds a row and a column to the result, and to the shape of ``noise``.
        potentials: What each step passes to the Sinkhorn of the next. ``"detach"`` (the default,
            except for ``grad="unroll"``): the values of the potentials. ``"reuse"`` (the default
            for ``grad="unroll"``): the potentials with their graph, as in the authors' code, which
            takes more memory. ``"fresh"``: nothing; each Sinkhorn starts from zero.
        objective: What to minimise instead of the entropy: an object with a method
            ``derivative(plan)``, such as :class:`slotmesh.ops.SimilarityObjective` or
            :class:`slotmesh.nn.LearnedObjective`.
        grad: ``"straight_through"`` (the paper's) treats the adjustment of the cost as a constant
            and differentiates the iterations of the last Sinkhorn, or of all of them with
            ``potentials="reuse"``;
            ``"implicit"`` does the same but treats the last plan as converged, so that row and
            column shifts of the cost get zero gradient; only ``plan`` and ``cost`` of the result
            carry a gradient, and ``potentials="reuse"`` is not possible;
            ``"unroll"`` is the exact gradient: it also differentiates the descent, including the
            parameters of the objective. Close to a tie it is very large, and larger with every
            step; at an exact tie of all slots without noise, where no direction leads down, no step
            is taken;
            ``"truncated"`` differentiates the descent, but not the potentials passed from step to
            step: it takes less memory than ``"unroll"``, and is not exact.
        backend: ``"triton"``: one kernel for the whole computation, on a CUDA device. It supports
            float32 and less, at most 1,024 slots and 65,536 inputs, first derivatives, and
            ``vmap`` but no other transform of ``torch.func``; not ``objective``,
            ``grad="unroll"`` or ``"truncated"``.
            ``"cpu"``: C code, several times as fast as torch on a CPU. It has the same limits
            except for the size, and does not support ``potentials="reuse"`` or ``torch.compile``;
            :func:`slotmesh.ops.backends` tells whether it is available.
            ``"torch"``: supports everything everywhere.
            ``"auto"``: the fastest that supports the call.

    Returns:
        A :class:`~slotmesh.ops.Transport` whose ``cost`` is the adjusted cost.

    Raises:
        ValueError: If an argument is invalid; values are only checked on the CPU (see
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
    potentials = checks.check_gradient("mesh", grad, potentials)
    checks.check_choice("mesh", "backend", backend, BACKENDS)
    if objective is not None:
        checks.check_instance(
            "mesh", "objective", objective, Objective, "an object with a method derivative(plan)"
        )
    checks.check_matrix("mesh", "cost", cost)
    # The default is in units of the temperature, which only a backend can read from a tensor.
    default, relative = DEFAULT_STEP, False
    if isinstance(temperature, Tensor):
        relative = step is None and lr is None
    else:
        default *= checks.as_real("mesh", "temperature", temperature, positive=True)
    step, lr = checks.step_or_lr("mesh", step, lr, default)
    settings = SolverSettings(
        n_iters=N_ITERS if n_iters is None else checks.as_count("mesh", "n_iters", n_iters, 1),
        implicit=grad == "implicit",
        mesh=True,
        n_steps=checks.as_count("mesh", "n_steps", n_steps, 0),
        length=(step if lr is None else lr) or 0.0,
        per_entry=step is not None,
        relative=relative,
        unroll=grad in ("unroll", "truncated"),
        fresh=potentials == "fresh",
        reuse=potentials == "reuse",
    )
    given, frame = Given("mesh", cost, a, b, slot_mask, input_mask, temperature), None
    if dustbin is not None or pair_mask is not None:
        frame = framed(given, dustbin, pair_mask)
        given = frame.given
    # An option in use that only the torch backend supports, in words.
    beyond = f"grad is '{grad}'" if settings.unroll else None
    beyond = beyond if objective is None else "objective is given"
    drawn, sigma = _draw(given, noise, generator)
    settings = settings._replace(sigma=sigma)
    if use_kernel(given, backend, settings, beyond, noise):
        t = fused_transport(given, settings, noise=drawn)
    else:
        t = _in_c_or_torch(given, backend, settings, beyond, drawn, objective)
    if n_iters is None and lr is None:
        t = _converge(given, t, settings, backend)
    return t if frame is None else frame.finish(t)


def _nearly_square(given: Given) -> bool | Tensor:
    """Whether a matrix is nearly square without its padding; (*batch) if there are masks."""
    m, n = given.cost.shape[-2:]
    if given.slot_mask is None and given.input_mask is None:
        few, many = min(m, n), max(m, n)
        return 1 < many <= (16 if few >= 32 else 4) * few
    batch, device = check_problem(given), given.cost.device
    rows, columns = (
        torch.full(batch, size, device=device) if mask is None else mask.sum(-1)
        for mask, size in zip(expanded_masks(given, batch), (m, n), strict=True)
    )
    few, many = torch.minimum(rows, columns), torch.maximum(rows, columns)
    return (many > 1) & (many <= torch.where(few >= 32, 16, 4) * few)


def _in_c_or_torch(
    given: Given,
    backend: Backend,
    settings: SolverSettings,
    beyond: str | None,
    noise: Tensor | None,
    objective: Objective | None,
) -> Transport:
    """MESH in C or in torch."""
    if settings.reuse:
        beyond = beyond or "potentials is 'reuse'"
    in_c = use_c(given, backend, beyond, noise)
    task = quick_problem(given) if in_c else problem(given)
    with full_precision(given.cost):
        first = _with_noise(task, noise, settings.sigma)
        if in_c:
            has_marginals = given.a is not None or given.b is not None
            plan, last, changed = cpu_transport(task, first, None, settings, given=has_marginals)
        else:
            minimised = EntropyObjective() if objective is None else objective
            changed, u = descend(task, first, settings, step_length(task, settings), minimised)
            solver = implicit_plan if settings.implicit else solve
            plan, last = solver(task, changed, u, settings.n_iters)
        error = marginal_error(plan, task.a, task.b)
    return Transport(
        plan=plan.to(given.cost.dtype),
        u=last.u,
        v=last.v,
        cost=changed,
        marginal_error=error,
        n_iters=last.n_iters,
        converged=error <= CONVERGED,
        temperature=temperature_of(given, last.u),
    )


def _converge(given: Given, t: Transport, settings: SolverSettings, backend: Backend) -> Transport:
    """Continue the last Sinkhorn of nearly square matrices until both marginals hold."""
    square = _nearly_square(given)
    if square is False or (isinstance(square, Tensor) and all_true(~square)):
        return t
    longer = solved(
        given._replace(cost=t.cost),
        SolverSettings(n_iters=N_LAST - settings.n_iters, implicit=settings.implicit),
        (t.u, t.v),
        backend,
    )
    longer = longer._replace(
        plan=longer.plan.to(given.cost.dtype), n_iters=longer.n_iters + settings.n_iters
    )
    if not isinstance(square, Tensor):
        return longer

    def chosen(name: str) -> Tensor:
        ours, theirs = getattr(longer, name), getattr(t, name)
        where = square[(..., *(None,) * (ours.ndim - square.ndim))]
        return torch.where(where, ours, theirs)

    changed = ("plan", "u", "v", "marginal_error", "n_iters", "converged")
    return t._replace(**{name: chosen(name) for name in changed})


def _draw(
    given: Given, noise: float | Tensor, generator: torch.Generator | None
) -> tuple[Tensor | None, float]:
    """Noise ``(*batch, m, n)``, or None, and the factor to multiply it with."""
    cost, dtype = given.cost, compute_dtype(given.cost)
    if generator is not None:
        checks.check_instance(
            "mesh", "generator", generator, torch.Generator, "torch.Generator().manual_seed(seed)"
        )
    sigma = 1.0 if isinstance(noise, Tensor) else checks.as_real("mesh", "noise", noise)
    if sigma == 0:
        return None, 1.0
    shape = (*check_problem(given), *cost.shape[-2:])
    if isinstance(noise, Tensor):
        _check_noise(given, noise, generator, shape)
        return noise.to(dtype).expand(shape), 1.0
    if generator is not None:
        return torch.randn(shape, dtype=dtype, device=cost.device, generator=generator), sigma
    like = cost if cost.dtype == dtype else cost.new_empty((), dtype=dtype)
    # Expanded only if necessary, and detached, so that it adds nothing to the graph.
    like = like if like.shape == shape else like.detach().expand(shape)
    return torch.randn_like(like), sigma


def _check_noise(
    given: Given, noise: Tensor, generator: torch.Generator | None, shape: tuple[int, ...]
) -> None:
    """Check a tensor of noise."""
    device = given.cost.device
    if generator is not None:
        raise ValueError(
            "mesh: got both a noise tensor and a generator, expected one of them. Leave the "
            "generator out, or pass noise as a standard deviation."
        )
    if not checks.broadcasts_to(noise.shape, shape) or not noise.is_floating_point():
        raise ValueError(
            f"mesh: noise is a tensor of shape {tuple(noise.shape)} and dtype {noise.dtype}, "
            f"expected floating point that broadcasts to the cost's shape {tuple(shape)}. "
            "Draw it with torch.randn_like(cost)."
        )
    if noise.device != device:
        raise ValueError(
            f"mesh: noise is on {noise.device}, expected {device}, where cost is. "
            "Move it with noise.to(cost.device)."
        )
    if checks.can_read_values(noise):
        real = real_entries(given.slot_mask, given.input_mask)
        used = noise if real is None else torch.where(real, noise, 0.0)
        checks.check_finite("mesh", "noise", used, "Draw it with torch.randn_like(cost).")


def _with_noise(task: Problem, noise: Tensor | None, sigma: float) -> Tensor:
    """The first cost of the descent (*batch, m, n); padding stays 0."""
    if noise is None:
        return task.cost
    real = real_entries(task.slots, task.inputs)
    if real is not None:
        noise = torch.where(real, noise, 0.0)
    noise = noise if sigma == 1.0 else sigma * noise
    # Standard normal numbers are below 10.
    if sigma > 1e30:
        checks.check_finite("mesh", "noise", noise, "Lower the standard deviation.")
    return task.cost + noise
