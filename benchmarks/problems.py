"""The operations that are measured: how to run and how to check them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines import (
    compiled_mesh,
    eager_mesh,
    has_liger,
    liger_sinkhorn,
    pot_loop,
    scipy_loop,
)
from benchmarks.cases import OpCase, OpName
from benchmarks.gate import (
    assignment_errors,
    exact_errors,
    has_pot,
    plan_errors,
    relative,
)
from slotmesh import ops
from slotmesh.ops.mesh import MeshGrad

DIM = 64
"""Dimension of the slots and inputs whose distances are the costs."""
SEED = 0
NOISE = 1e-3
"""Standard deviation of the noise, the default of MESH."""

OURS = "ours"


class OpProblem(ABC):
    """A case with its data: standard normal slots and inputs, and their distances as costs."""

    direction = "forward"
    """What is timed."""
    forward: Callable[[], Any] | None = None
    """What is timed a second time without its backward, if anything."""

    def __init__(self, case: OpCase, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.generator = torch.Generator(device).manual_seed(SEED)
        slots, inputs = (self.randn(case.batch, size, DIM) for size in (case.m, case.n))
        self.cost = ops.pairwise_cost(slots, inputs)

    def randn(self, *shape: int) -> Tensor:
        """Return standard normal numbers from the generator of this problem."""
        return torch.randn(*shape, generator=self.generator, device=self.device)

    @property
    @abstractmethod
    def backend(self) -> str:
        """The backend of slotmesh that is measured."""

    @abstractmethod
    def runs(self) -> dict[str, Callable[[], Any]]:
        """Return ``ours`` and the baselines: functions to time, which return what to check."""

    @abstractmethod
    def errors(self, result: Any) -> dict[str, float]:
        """Return the errors of a result, by kinds of :data:`benchmarks.gate.LIMITS`."""

    def forget(self) -> None:
        """Free the memory that only checks need."""
        self.__dict__.pop("right", None)  # pyright: ignore

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"


class PlanProblem(OpProblem):
    """A plan with a gradient: forward and backward are measured."""

    direction = "forward+backward"

    def __init__(self, case: OpCase, device: torch.device) -> None:
        super().__init__(case, device)
        self.weight = self.randn(*self.cost.shape)
        self.cost.requires_grad_()

    @abstractmethod
    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return functions from cost to plan, by the names of :meth:`runs`."""

    @abstractmethod
    def truth(self, cost: Tensor) -> Tensor:
        """Return the plan of a float64 cost, by pure torch."""

    @property
    def backend(self) -> str:
        """The kernel on a GPU, else the default."""
        return "triton" if self.on_gpu else "auto"

    def runs(self) -> dict[str, Callable[[], Any]]:
        """Return functions that compute plan and gradient."""
        return {name: partial(self._both, plan) for name, plan in self.plans().items()}

    def errors(self, result: Any) -> dict[str, float]:
        """Return the errors of plan and gradient."""
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
    """The attention of SA: softmax over slots, normalised over inputs."""

    @property
    def backend(self) -> str:
        """Plain torch on every device."""
        return "torch"

    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return the formula itself."""
        return {OURS: self.truth}

    def truth(self, cost: Tensor) -> Tensor:
        """Return softmax over slots, normalised over inputs."""
        share = torch.softmax(-cost, -2) + 1e-8
        return share / share.sum(-1, keepdim=True)


class SinkhornProblem(PlanProblem):
    """Five iterations of Sinkhorn."""

    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return the sinkhorn of the library, and the pure-torch path compiled."""
        plans: dict[str, Callable[[Tensor], Tensor]] = {
            OURS: lambda cost: ops.sinkhorn(cost, backend=self.backend).plan  # pyright: ignore
        }
        if "compiled" in self.case.baselines:
            plans["compiled"] = torch.compile(self.truth, fullgraph=True, dynamic=False)
        return plans

    def truth(self, cost: Tensor) -> Tensor:
        """Return the plan of the pure-torch backend."""
        return ops.sinkhorn(cost, backend="torch").plan


class SmallProblem(PlanProblem):
    """Many small matrices, 20 iterations of Sinkhorn each."""

    n_iters = 20

    def __init__(self, case: OpCase, device: torch.device) -> None:
        super().__init__(case, device)
        still = self.cost.detach()
        self.forward = lambda: ops.sinkhorn(still, n_iters=self.n_iters).plan

    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return ours and the pure-torch path compiled."""
        plans: dict[str, Callable[[Tensor], Tensor]] = {
            OURS: lambda cost: ops.sinkhorn(cost, n_iters=self.n_iters).plan
        }
        if "compiled" in self.case.baselines:
            plans["compiled"] = torch.compile(self.truth, fullgraph=True, dynamic=False)
        return plans

    def runs(self) -> dict[str, Callable[[], Any]]:
        """Return these with their gradients, and the kernels of Liger if it is installed."""
        found = super().runs()
        if "liger" in self.case.baselines and has_liger():
            found["liger"] = liger_sinkhorn(self.cost.detach(), self.weight, self.n_iters)
        return found

    def truth(self, cost: Tensor) -> Tensor:
        """Return the plan of the pure-torch backend."""
        return ops.sinkhorn(cost, n_iters=self.n_iters, backend="torch").plan


class MeshProblem(PlanProblem):
    """MESH with its defaults: four steps of five iterations, and five more for the plan."""

    def __init__(self, case: OpCase, device: torch.device) -> None:
        super().__init__(case, device)
        # The noise that a call draws right after seeding.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.noise = NOISE * torch.randn_like(self.cost)

    grad: MeshGrad = "straight_through"

    def plans(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return ours, which draws its noise, and the baselines, which are given it."""
        options: dict[str, Any] = {"lr": 5.0, "grad": self.grad, "backend": self.backend}
        plans: dict[str, Callable[[Tensor], Tensor]] = {
            OURS: lambda cost: ops.mesh(cost, noise=NOISE, **options).plan
        }
        if "eager" in self.case.baselines:
            plans["eager"] = lambda cost: eager_mesh(cost, self.noise)
        if "compiled" in self.case.baselines:
            compiled = compiled_mesh()
            plans["compiled"] = lambda cost: compiled(cost, self.noise)
        return plans

    def truth(self, cost: Tensor) -> Tensor:
        """Return the plan of the pure-torch backend."""
        noise = self.noise.double()
        return ops.mesh(cost, lr=5.0, noise=noise, grad=self.grad, backend="torch").plan


class ImplicitMeshProblem(MeshProblem):
    """The same with the gradient of a converged plan."""

    grad: MeshGrad = "implicit"


class ExactProblem(OpProblem):
    """Exact transport between non-uniform masses; of as many slots as inputs, equal ones."""

    def __init__(self, case: OpCase, device: torch.device) -> None:
        super().__init__(case, device)
        sizes, even = (case.m, case.n), case.m == case.n
        logits = (self.randn(case.batch, size) * (not even) for size in sizes)
        self.a, self.b = (case.m * x.softmax(-1) for x in logits)

    @property
    def backend(self) -> str:
        """The kernel on a GPU, else the default."""
        return "triton" if self.on_gpu else "auto"

    def runs(self) -> dict[str, Callable[[], Any]]:
        """Return ours and a loop over POT."""
        given = (self.cost, self.a, self.b)
        runs: dict[str, Callable[[], Any]] = {
            OURS: partial(ops.emd, *given, backend=self.backend)  # pyright: ignore
        }
        if "pot" in self.case.baselines and has_pot():
            runs["pot"] = partial(pot_loop, *given)
        return runs

    def errors(self, result: Any) -> dict[str, float]:
        """Return the errors of cost and marginals; of a plan alone, those of its cost."""
        a, b = self.a.double(), self.b.double()
        b = b * (a.sum(-1, keepdim=True) / b.sum(-1, keepdim=True))
        if isinstance(result, Tensor):
            return plan_errors(result, self.cost, a, b)
        return exact_errors(result, a, b)


class AssignProblem(OpProblem):
    """The optimal one-to-one assignment."""

    @property
    def backend(self) -> str:
        """The kernel on a GPU, else the default."""
        return "triton" if self.on_gpu else "auto"

    def runs(self) -> dict[str, Callable[[], Any]]:
        """Return ours and a loop over SciPy."""
        runs: dict[str, Callable[[], Any]] = {
            OURS: partial(ops.assign, self.cost, backend=self.backend)  # pyright: ignore
        }
        if "scipy" in self.case.baselines:
            runs["scipy"] = partial(scipy_loop, self.cost)
        return runs

    def errors(self, result: Any) -> dict[str, float]:
        """Return the error of the total cost."""
        return assignment_errors(result, self.cost)


PROBLEMS: dict[OpName, type[OpProblem]] = {
    "softmax": SoftmaxProblem,
    "sinkhorn": SinkhornProblem,
    "mesh": MeshProblem,
    "mesh_implicit": ImplicitMeshProblem,
    "emd": ExactProblem,
    "assign": AssignProblem,
    "small": SmallProblem,
}
