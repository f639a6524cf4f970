"""The derivative of the objective of MESH: of the entropy, and of a learned one (appendix I)."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

from paper.figures.common import FloatArray, OnProgress, noop
from slotmesh.models import SetCopier
from slotmesh.nn import LearnedObjective, Mesh
from slotmesh.ops import EntropyObjective
from slotmesh.palette import VARIANT_COLOURS
from slotmesh.report.figures import panels
from slotmesh.training.stream import EvalBatches, RunData
from slotmesh.training.tasks.experiment import Split
from slotmesh.training.tasks.random_objects import RandomObjectsSettings, RandomObjectsTask
from slotmesh.training.variants import MeshSettings


def _task() -> RandomObjectsSettings:
    start = RandomObjectsTask.preset("SA-MESH", "quick")
    assert isinstance(start.transport, MeshSettings)
    return replace(
        start,
        val_every=50,
        data=replace(start.data, batch_size=32, val_size=256, test_size=1024),
        transport=replace(start.transport, objective="learned"),
    )


TASK = _task()
"""Copying five random vectors among a hundred zeros, by SA-MESH with a learned objective."""


@dataclass(frozen=True)
class Derivatives:
    """Derivatives with respect to an entry p of the plan, and how the learned one was trained."""

    p: FloatArray
    """``(n,)``, in (0, 1]."""
    entropy: FloatArray
    """``(n,)``: -(log p + 1)."""
    learned: FloatArray
    """``(n,)``: a step function, because the network has one hidden layer of ReLUs."""
    initial: FloatArray
    """``(n,)``: that of the network before training."""
    fitted_entropy: FloatArray
    """``(n,)``: that of the entropy, scaled and shifted to the learned one by least squares. This
    does not change MESH: it normalises its gradient, and a constant moves no mass."""
    steps: NDArray[np.int64]
    """``(k,)``: training steps at which the error was measured."""
    errors: FloatArray
    """``(k,)``: RMSE / sigma of copying, on a few held-out sets."""
    error: float
    """The same at the end, on many sets."""
    correlation: float
    """Correlation of the learned derivative with that of the entropy."""
    rank_correlation: float
    """Rank correlation of the two: 1 if the learned derivative always decreases."""
    initial_rank_correlation: float
    """The rank correlation before training."""

    def headline(self) -> str:
        """State the claim in one line."""
        return (
            f"rank correlation of the learned derivative with that of the entropy "
            f"{self.rank_correlation:.2f} (before training {self.initial_rank_correlation:.2f}), "
            f"copying error {self.error:.2f}"
        )


def derivatives(
    *,
    n_steps: int,
    seed: int = 0,
    task: RandomObjectsSettings = TASK,
    on_progress: OnProgress = noop,
) -> Derivatives:
    """Train SA-MESH with a learned objective to copy random objects, then examine the objective.

    The descent is differentiated (``grad="unroll"``), so the objective learns what improves the
    copies; the entropy plays no part in its training.
    """
    made = RandomObjectsTask(replace(task, steps=n_steps, seed=seed))
    # Lightning takes seconds to load.
    from lightning.fabric import Fabric

    from slotmesh.training.loop import Training

    fabric = Fabric(accelerator="cpu", devices=1)
    training = Training(made, fabric)
    model, batches = training.model, RunData(made, fabric.device).train(0)
    objective = objective_of(model)
    p = torch.arange(1, 1001, dtype=torch.float64) / 1000
    with torch.no_grad():
        initial = objective.derivative(p).numpy()
    curve: dict[int, float] = {}
    threads = torch.get_num_threads()
    # At this size threads cost more than they save.
    torch.set_num_threads(1)
    try:
        curve[0] = copying_error(made, model, "val")
        for done in range(1, n_steps + 1):
            training.learn(next(batches))
            if done % task.val_every == 0 or done == n_steps:
                curve[done] = copying_error(made, model, "val")
            on_progress(done, n_steps)
        error = copying_error(made, model, "test")
    finally:
        torch.set_num_threads(threads)
    with torch.no_grad():
        learned = objective.derivative(p).numpy()
        entropy = EntropyObjective().derivative(p).numpy()
    slope, shift = np.polyfit(entropy, learned, 1)
    return Derivatives(
        p=p.numpy(),
        entropy=entropy,
        learned=learned,
        initial=initial,
        fitted_entropy=slope * entropy + shift,
        steps=np.array([*curve]),
        errors=np.array([*curve.values()]),
        error=error,
        correlation=_correlation(learned, entropy),
        rank_correlation=_correlation(_ranks(learned), _ranks(entropy)),
        initial_rank_correlation=_correlation(_ranks(initial), _ranks(entropy)),
    )


def objective_of(model: nn.Module) -> LearnedObjective:
    """Return the learned objective of a model."""
    assert isinstance(model, SetCopier)
    transport = model.attention.transport
    assert isinstance(transport, Mesh)
    assert isinstance(transport.objective, LearnedObjective)
    return transport.objective


def copying_error(made: RandomObjectsTask, model: nn.Module, split: Split) -> float:
    """Return the RMSE / sigma on the sets of a split."""
    source, n = made.source(split, torch.device("cpu"))
    assert n is not None
    metrics = made.metrics()
    batches = EvalBatches(source, n, batch_size=made.settings.data.batch_size)
    with torch.inference_mode():
        for i, sample in enumerate(batches):
            made.judge(model, sample, made.noise(split, i, total=batches.totals[i]), metrics)
    return float(metrics["nrmse"].compute())


def _correlation(x: FloatArray, y: FloatArray) -> float:
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(x: FloatArray) -> FloatArray:
    """Return ranks; equal values share their mean rank."""
    ordered = np.sort(x)
    return (np.searchsorted(ordered, x) + np.searchsorted(ordered, x, "right")) / 2.0


def draw_objective(numbers: Derivatives) -> Figure:
    """Draw the derivative of the entropy (left) and of the learned objective (right)."""
    figure, [[left, right]] = panels(9.2, 3.8, 1, 2)
    ink = VARIANT_COLOURS["SA-MESH"]
    left.plot(numbers.p, numbers.entropy, color=ink, linewidth=2)
    left.set_title("Entropy $H$", fontsize=11)
    right.plot(numbers.p, numbers.initial, color="#b9bfc9", linewidth=1.5, label="before training")
    right.plot(
        numbers.p,
        numbers.fitted_entropy,
        color=VARIANT_COLOURS["SA-SH"],
        linestyle=(0, (4, 2)),
        linewidth=1.5,
        label="entropy, scaled and shifted",
    )
    right.plot(numbers.p, numbers.learned, color=ink, linewidth=2, label="learned")
    right.set_title("Learned network (MLP)", fontsize=11)
    right.legend(frameon=False, fontsize=9, loc="upper right", reverse=True)
    # The derivative of the entropy is unbounded at 0; the learned one should fill the panel.
    low, high = numbers.learned.min(), numbers.learned.max()
    right.set_ylim(low - 0.1 * (high - low), high + 0.5 * (high - low))
    for axes in (left, right):
        axes.axhline(0, color="#b9bfc9", linewidth=1)
        axes.set_xlim(0, 1)
        axes.set_xlabel("entry $p$ of the plan")
        axes.set_ylabel("derivative of the objective")
        axes.grid(color="#e6e8ec")
        axes.set_axisbelow(True)
    return figure
