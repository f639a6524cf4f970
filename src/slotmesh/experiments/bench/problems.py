"""The operations that are measured: what they compute, and how wrong that is."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from slotmesh import ops
from slotmesh.experiments.bench.baselines import compiled_mesh, eager_mesh
from slotmesh.experiments.bench.cases import Case, OpName
from slotmesh.experiments.bench.gate import (
    assignment_errors,
    exact_errors,
    has_pot,
    relative,
)

DIM = 64
"""Of the slots and inputs whose distances are the costs."""
SEED = 0
NOISE = 1e-3
"""Standard deviation, MESH's default."""

OURS = "ours"


class Problem(ABC):
    """One case with its inputs: standard normal slots and inputs, costs their distances."""

    direction = "forward"
    """What is timed."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.dice = torch.Generator(device).manual_seed(SEED)
        slots, inputs = (self.randn(case.batch, size, DIM) for size in (case.m, case.n))
        self.cost = ops.pairwise_cost(slots, inputs)

    def randn(self, *shape: int) -> Tensor:
        """Of this problem's own randomness."""
        return torch.randn(*shape, generator=self.dice, device=self.device)

    @property
    @abstractmethod
    def backend(self) -> str:
        """Which of slotmesh's implementations is measured."""

    @abstractmethod
    def runs(self) -> dict[str, Callable[[], Any]]:
        """``ours`` and the baselines of the case: functions to time, which return what to check."""

    @abstractmethod
    def errors(self, result: Any) -> dict[str, float]:
        """How wrong the result of a run is, by kinds of :data:`~gate.LIMITS`."""

    def forget(self) -> None:
        """Free what only checks need."""
        self.__dict__.pop("right", None)  # pyright: ignore

    @property
    def on_gpu(self) -> bool:
        """Whether kernels can be used."""
        return self.device.type == "cuda"


class PlanProblem(Problem):
    """A plan that has a gradient: forward and backward."""

    direction = "forward+backward"

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self.weight = self.randn(*self.cost.shape)
        self.cost.requires_grad_()

    @abstractmethod
    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Costs to plans, as in :meth:`runs`."""

    @abstractmethod
    def truth(self, cost: Tensor) -> Tensor:
        """The plan of a float64 cost, by pure torch."""

    @property
    def backend(self) -> str:
        """The kernel on a GPU, else what there is."""
        return "triton" if self.on_gpu else "auto"

    def runs(self) -> dict[str, Callable[[], Any]]:
        """Plan and gradient."""
        return {name: partial(self._both, plan) for name, plan in self.plans().items()}

    def errors(self, result: Any) -> dict[str, float]:
        """Of plan and gradient."""
        plan, gradient = self.right
        return {"plan": relative(result[0], plan), "gradient": relative(result[1], gradient)}

    @cached_property
    def right(self) -> tuple[Tensor, Tensor]:
        """Plan and gradient in float64."""
        cost = self.cost.detach().double().requires_grad_()
        plan = self.truth(cost)
        (gradient,) = torch.autograd.grad(plan, cost, self.weight.double())
        return plan.detach(), gradient

    def _both(self, plan: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        found = plan(self.cost)
        (gradient,) = torch.autograd.grad(found, self.cost, self.weight)
        return found.detach(), gradient


class SoftmaxProblem(PlanProblem):
    """What SA does: softmax over slots, normalised over inputs."""

    @property
    def backend(self) -> str:
        """Plain torch everywhere."""
        return "torch"

    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Plain torch."""
        return {OURS: self.truth}

    def truth(self, cost: Tensor) -> Tensor:
        """The same in any precision."""
        share = torch.softmax(-cost, -2) + 1e-8
        return share / share.sum(-1, keepdim=True)


class SinkhornProblem(PlanProblem):
    """Five iterations of Sinkhorn."""

    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The library's."""
        return {OURS: lambda cost: ops.sinkhorn(cost, backend=self.backend).plan}  # pyright: ignore

    def truth(self, cost: Tensor) -> Tensor:
        """Pure torch."""
        return ops.sinkhorn(cost, backend="torch").plan


class MeshProblem(PlanProblem):
    """MESH with its defaults: four steps of five iterations, and five for the plan."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        # What a call draws by itself right after seeding.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.noise = NOISE * torch.randn_like(self.cost)

    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Ours draws its noise as it runs; baselines are given it."""
        plans: dict[str, Callable[[Tensor], Tensor]] = {
            OURS: lambda cost: ops.mesh(cost, lr=5.0, noise=NOISE, backend=self.backend).plan  # pyright: ignore
        }
        if "eager" in self.case.baselines:
            plans["eager"] = lambda cost: eager_mesh(cost, self.noise)
        if "compiled" in self.case.baselines:
            compiled = compiled_mesh()
            plans["compiled"] = lambda cost: compiled(cost, self.noise)
        return plans

    def truth(self, cost: Tensor) -> Tensor:
        """Pure torch."""
        return ops.mesh(cost, lr=5.0, noise=self.noise.double(), backend="torch").plan


class ExactProblem(Problem):
    """Exact transport between uneven masses."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        sizes = (case.m, case.n)
        self.a, self.b = (case.m * self.randn(case.batch, size).softmax(-1) for size in sizes)

    @property
    def backend(self) -> str:
        """The kernel, or POT."""
        return "triton" if self.on_gpu else "pot"

    def runs(self) -> dict[str, Callable[[], Any]]:
        """By the kernel and by POT."""
        names = {OURS: self.backend} | {name: name for name in self.case.baselines if has_pot()}
        return {
            name: partial(ops.emd, self.cost, self.a, self.b, backend=backend)  # pyright: ignore
            for name, backend in names.items()
        }

    def errors(self, result: Any) -> dict[str, float]:
        """Of the plan's cost and marginals."""
        a, b = self.a.double(), self.b.double()
        return exact_errors(result, a, b * (a.sum(-1, keepdim=True) / b.sum(-1, keepdim=True)))


class AssignProblem(Problem):
    """The best one-to-one matching."""

    @property
    def backend(self) -> str:
        """The kernel, or SciPy."""
        return "triton" if self.on_gpu else "scipy"

    def runs(self) -> dict[str, Callable[[], Any]]:
        """By the kernel and by SciPy."""
        names = {OURS: self.backend} | {name: name for name in self.case.baselines}
        return {
            name: partial(ops.assign, self.cost, backend=backend)  # pyright: ignore
            for name, backend in names.items()
        }

    def errors(self, result: Any) -> dict[str, float]:
        """Of the total."""
        return assignment_errors(result, self.cost)


PROBLEMS: dict[OpName, type[Problem]] = {
    "softmax": SoftmaxProblem,
    "sinkhorn": SinkhornProblem,
    "mesh": MeshProblem,
    "emd": ExactProblem,
    "assign": AssignProblem,
}
