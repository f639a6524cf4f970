"""Runs that are trained together: each is the run that it would be by itself."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from paper.replicas import ReplicaTrainer, data, evaluate, evaluate_replicas, train_replicas
from paper.replicas import trainer as module
from slotmesh.ops import checks as _checks
from slotmesh.training.stream import EvalBatches, Order
from slotmesh.training.tasks import experiment, preset
from slotmesh.training.tasks.experiment import Experiment
from slotmesh.worlds import RandomObjects

from ..training._jobs import assert_same, change, tiny
from ..training._oracle import train_plainly

VARIANTS = ("SA", "SA-SH", "SA-EMD", "SA-MESH")
KINDS = [(0, 1.0), (1, 0.1), (2, 0.01)]
BEYOND = ("model__raw_values", "model__rescale", "model__head")
# Adding a constant to all slots changes nothing: their gradient is zero up to rounding, and Adam
# makes steps of full size of it.
IDLE = ("norm_slots.bias", "slot_marginal.logit.0.bias")

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def runs(variant: str = "SA-MESH", steps: int = 20, **changes: Any) -> list[Experiment]:
    """Small runs with different seeds and sigmas."""
    start = tiny("random-objects", variant, Path("unused"), steps=steps, **changes)
    return [experiment(change(start, seed=seed, data__sigma=sigma)) for seed, sigma in KINDS]


def alone(made: Experiment) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses and weights of a run by itself."""
    losses: list[torch.Tensor] = []
    model = train_plainly(made, lambda done, found: losses.append(found["loss"]))
    return torch.stack(losses), model.state_dict()


def assert_as_alone(trainer: ReplicaTrainer, tol: float, idle: float) -> None:
    for r, made in enumerate(trainer.experiments):
        losses, weights = alone(made)
        torch.testing.assert_close(trainer.losses()[:, r], losses, rtol=tol, atol=0.0)
        found = trainer.replica(r).state_dict()
        assert found.keys() == weights.keys()
        moved = 0
        for name, value in made.fresh_model().state_dict().items():
            least = idle if name.endswith(IDLE) else tol
            torch.testing.assert_close(found[name], weights[name], rtol=0.0, atol=least)
            moved += bool((weights[name] - value).abs().max() > 100 * tol)
        assert moved > 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_is_the_run_that_it_would_be_by_itself(variant: str) -> None:
    trainer = ReplicaTrainer(runs(variant))
    trainer.advance(20)
    assert trainer.failed() == [None, None, None]
    assert_as_alone(trainer, tol=1e-5, idle=1e-3)


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("SA", {"model__init": "shared-slot", "data__train_size": None}),
        ("SA-SH", {"optim__clip": 0.05, "optim__warmup": 5, "optim__cosine": False}),
        ("SA-EMD", {"data__seed": 3, "model__init": "learned-slots"}),
        ("SA-MESH", {"model__init": "gaussian", "model__implicit": False, "optim__half_life": 7}),
        ("SA-MESH", {"relative_loss": True, **dict.fromkeys(BEYOND, True), "model__slot_dim": 9}),
        ("SA-EMD", {"transport__combine": "detached", "transport__approximate": 0.1}),
    ],
)
def test_in_double_precision(
    monkeypatch: pytest.MonkeyPatch, variant: str, changes: dict[str, Any]
) -> None:
    make = RandomObjects.make
    monkeypatch.setattr(
        RandomObjects,
        "make",
        lambda self, i: make(self, i)._map(lambda x: x.double() if x.is_floating_point() else x),
    )
    for place in (data, module):
        monkeypatch.setattr(place, "BLOCK", 7)
    torch.set_default_dtype(torch.float64)
    try:
        trainer = ReplicaTrainer(runs(variant, steps=12, **changes))
        trainer.advance(5)
        trainer.advance(12)
        assert_as_alone(trainer, tol=1e-10, idle=1e-10)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("train_size", [18, None])
def test_batches_are_those_of_a_single_run(train_size: int | None) -> None:
    made: list[Any] = runs(data__train_size=train_size)
    # Two of one world, and one with another dataset.
    made += [experiment(change(made[1].settings, seed=7)), experiment(made[0].settings)]
    made[4] = experiment(change(made[0].settings, data__seed=5))
    batches = data.Batches(made, torch.device("cpu"))
    for step, count in ((0, 3), (3, 100), (150, 2)):
        batches.prepare(step, count)
        for row in {0, 1, count // 2, count - 1}:
            inputs, targets = batches.at(torch.tensor(row))
            for r, one in enumerate(made):
                source, n = one.source("train", torch.device("cpu"))
                order = Order(n, batch_size=4, seed=one.settings.seed)
                sample = source.sample(order.batch(step + row))
                assert torch.equal(inputs[r], sample.inputs)
                assert torch.equal(targets[r], sample.targets)


def test_the_loss_is_that_of_the_experiment() -> None:
    slots, targets = torch.randn(2, 3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    made = runs()[0]
    for r, loss in enumerate(module.losses_of(slots, targets)):
        sample: Any = type("Sample", (), {"inputs": slots[r], "targets": targets[r]})
        expected = made.losses(lambda x, generator: Slots(x), sample, None)["loss"]  # pyright: ignore
        torch.testing.assert_close(loss, expected)


class Slots:
    def __init__(self, slots: torch.Tensor) -> None:
        self.slots = slots


@pytest.mark.parametrize("spoilt", ["loss", "gradient"])
def test_a_replica_that_fails_stands_still_and_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    plain, before = ReplicaTrainer(runs(steps=8)), ReplicaTrainer(runs(steps=8))
    plain.advance(8)
    before.advance(3)
    old, calls = module.losses_of, []

    def losses_of(slots: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        loss = old(slots, targets)
        if len(calls) != 4:
            return loss
        bad = loss[1:2]
        bad = bad + float("inf") if spoilt == "loss" else bad.sub(bad.detach()).sqrt()
        return torch.cat((loss[:1], bad, loss[2:]))

    monkeypatch.setattr(module, "losses_of", losses_of)
    trainer = ReplicaTrainer(runs(steps=8))
    trainer.advance(8)
    assert trainer.failed() == [None, 3, None]
    assert trainer.losses()[:, 1].isfinite().tolist() == [True] * 3 + [False] * 5
    for r, expected in enumerate((plain, before, plain)):
        steps = 3 if r == 1 else 8
        assert torch.equal(trainer.losses()[:steps, r], expected.losses()[:steps, r])
        assert_same(dict(trainer.replica(r).state_dict()), dict(expected.replica(r).state_dict()))


@pytest.mark.parametrize("variant", ["SA", "SA-SH", "SA-MESH"])
@pytest.mark.parametrize("bad", [float("nan"), 1e30])
def test_weights_that_overflow(variant: str, bad: float) -> None:
    plain, trainer = ReplicaTrainer(runs(variant, steps=6)), ReplicaTrainer(runs(variant, steps=6))
    plain.advance(6)
    with torch.no_grad():
        trainer.model.get_parameter("attention.mlp.3.weight")[2] = bad
    trainer.advance(6)
    assert trainer.failed() == [None, None, 0]
    assert trainer.losses()[:, 2].isnan().all()
    for r in (0, 1):
        assert_same(dict(trainer.replica(r).state_dict()), dict(plain.replica(r).state_dict()))
    assert _checks._mode == "auto"
    errors = evaluate_replicas(trainer.model, trainer.experiments, "val")
    assert errors.isfinite().tolist() == [True, True, False]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e25])
def test_no_match_is_looked_for_where_there_is_none(bad: float) -> None:
    slots = torch.ones(3, 2, 4, 5)
    slots[1, 0, 0, 0] = bad
    slots.requires_grad_()
    loss = module.losses_of(slots, torch.zeros_like(slots))
    assert loss.isfinite().tolist() == [True, False, True]
    loss.sum().backward()
    assert slots.grad is not None
    assert slots.grad[[0, 2]].isfinite().all()
    assert loss[0] == 1


def test_it_is_repeatable_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second = (ReplicaTrainer(runs(steps=3)) for _ in range(2))
    for trainer in (first, second):
        trainer.advance(3)
    assert torch.equal(before, torch.get_rng_state())
    assert_same(first.state_dict(), second.state_dict())


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_errors_are_those_of_a_single_run(
    monkeypatch: pytest.MonkeyPatch, split: Any, at_once: int
) -> None:
    monkeypatch.setattr(evaluate, "_AT_ONCE", {"cpu": at_once})
    made = runs(steps=10, data__test_size=11, data__val_size=8)
    trainer = ReplicaTrainer(made)
    trainer.advance(10)
    found = evaluate_replicas(trainer.model, made, split)
    for r, one in enumerate(made):
        source, n = one.source(split, torch.device("cpu"))
        assert n is not None
        batches, metrics = EvalBatches(source, n, batch_size=4), one.metrics()
        model = trainer.replica(r)
        with torch.inference_mode():
            for i, sample in enumerate(batches):
                noise = one.noise(split, i, total=batches.totals[i])
                one.judge(model, sample, noise, metrics)
        assert float(found[r]) == pytest.approx(float(metrics["nrmse"].compute()), rel=1e-5)
    assert found.unique().numel() == 3
    fewer = evaluate_replicas(trainer.model, made, split, n=4, batch_size=2)
    assert not torch.allclose(fewer, found, rtol=1e-3)


def test_evaluating_endless_sets() -> None:
    trainer = ReplicaTrainer(runs(data__train_size=None))
    with pytest.raises(ValueError, match="The train sets are endless"):
        evaluate_replicas(trainer.model, trainer.experiments, "train")
    with pytest.raises(ValueError, match="--n is 0, expected at least 1"):
        evaluate_replicas(trainer.model, trainer.experiments, n=0)


class Killed(Exception):  # noqa: N818 (it says what happened)
    pass


@pytest.mark.parametrize("killed_at", [4, 8])
def test_what_was_stopped_goes_on_to_the_same_bits(tmp_path: Path, killed_at: int) -> None:
    whole = train_replicas(runs(steps=11))
    heard: list[int] = []

    def on_chunk(now: ReplicaTrainer) -> None:
        heard.append(now.step)
        if now.step == killed_at and heard.count(killed_at) == 1:
            raise Killed

    with pytest.raises(Killed):
        train_replicas(runs(steps=11), folder=tmp_path / "new", every=4, on_chunk=on_chunk)
    # What does not change the numbers may change.
    again = runs(steps=11, val_every=2, hardware__threads=2)
    resumed = train_replicas(again, folder=tmp_path / "new", every=4, on_chunk=on_chunk)
    assert heard == sorted([4, 8, 11, killed_at])
    assert_same(resumed.state_dict(), whole.state_dict())
    assert resumed.losses().shape == (11, 3)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["replicas.ckpt"]
    done = train_replicas(runs(steps=11), folder=tmp_path / "new", on_chunk=on_chunk)
    assert heard[-1] == 11
    assert heard.count(11) == 1
    assert_same(done.state_dict(), whole.state_dict())


def test_a_failure_is_remembered(tmp_path: Path) -> None:
    spoilt = ReplicaTrainer(runs(steps=6))
    with torch.no_grad():
        spoilt.model.get_parameter("attention.mlp.3.weight")[0] = float("nan")
    spoilt.advance(2)
    other = ReplicaTrainer(runs(steps=6))
    other.load_state_dict(spoilt.state_dict())
    other.advance(6)
    assert other.failed() == [0, None, None]
    assert other.losses().isnan()[:, 0].all()


def test_checkpoints_of_others(tmp_path: Path) -> None:
    train_replicas(runs(steps=2), folder=tmp_path)
    for changed, said in (
        (runs(steps=3), r"holds run 0 with --steps 2, but got 3. Choose another folder"),
        (runs(steps=2)[:2], "holds 3 runs, expected 2"),
        (runs(steps=2)[::-1], "holds run 0 with --seed 0, but got 2"),
    ):
        with pytest.raises(ValueError, match=said):
            train_replicas(changed, folder=tmp_path)
    torch.save({"state_dict": {}}, tmp_path / "replicas.ckpt")
    with pytest.raises(ValueError, match="not a checkpoint of runs that were trained together"):
        train_replicas(runs(steps=2), folder=tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optim__lr": 0.1}, r"--optim.lr is 0.1 in experiment 1 and 0.003 in the first"),
        ({"steps": 9}, "--steps is 9 in experiment 1 and 20 in the first"),
        ({"data__n_objects": 4}, "--data.n-objects is 4 in experiment 1 and 5"),
        ({"transport__noise": 0.0}, "--transport.noise is 0.0 in experiment 1 and 0.001"),
    ],
)
def test_runs_that_differ_in_more(changes: dict[str, Any], said: str) -> None:
    first, second, _ = runs()
    with pytest.raises(ValueError, match=said):
        ReplicaTrainer([first, experiment(change(second.settings, **changes))])


def test_what_cannot_be_trained_together() -> None:
    with pytest.raises(ValueError, match="Got no experiments"):
        ReplicaTrainer([])
    with pytest.raises(ValueError, match="Got an experiment of clevrtex, expected random-objects"):
        ReplicaTrainer([experiment(preset("clevrtex"))])
    with pytest.raises(ValueError, match=r"--hardware.precision is bf16, expected 32"):
        ReplicaTrainer(runs(hardware__precision="bf16"))
    with pytest.raises(ValueError, match="The device is cpu, expected cuda with capture=True"):
        ReplicaTrainer(runs(), capture=True)
    with pytest.raises(ValueError, match="until is 21, expected at most 20 steps"):
        ReplicaTrainer(runs()).advance(21)
    with pytest.raises(ValueError, match="--every is 0, expected at least 1"):
        train_replicas(runs(), every=0)


def test_the_bar_shows_losses_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    old = module.losses_of
    nan = torch.tensor([0.0, float("nan"), 0.0])
    monkeypatch.setattr(module, "losses_of", lambda *args: old(*args) + nan)
    console = Console(file=StringIO(), force_terminal=True, width=120)
    train_replicas(runs("SA", steps=4), every=2, console=console)
    shown = console.file.getvalue()  # pyright: ignore
    assert "SA, 3 runs" in shown
    assert "4/4" in shown
    assert "1 failed" in shown
    console = Console(file=StringIO())
    train_replicas(runs("SA", steps=1), console=console)
    assert not console.file.getvalue().strip()  # pyright: ignore


# ---- on a CUDA device ----


def on_gpu(
    variant: str, some: Callable[[list[Experiment]], list[Experiment]], **given: Any
) -> ReplicaTrainer:
    trainer = ReplicaTrainer(some(runs(variant)), device="cuda", **given)
    trainer.advance(20)
    return trainer


def assert_near(one: ReplicaTrainer, other: ReplicaTrainer, ours: int, theirs: int) -> None:
    torch.testing.assert_close(
        one.losses()[:, ours], other.losses()[:, theirs], rtol=1e-5, atol=0.0
    )
    expected = other.replica(theirs).state_dict()
    for name, value in one.replica(ours).state_dict().items():
        least = 1e-3 if name.endswith(IDLE) else 1e-5
        torch.testing.assert_close(value, expected[name], rtol=0.0, atol=least)


@pytest.mark.parametrize("variant", [pytest.param(v, marks=gpu) for v in VARIANTS])
def test_recorded_steps_are_plain_steps(variant: str) -> None:
    recorded = on_gpu(variant, lambda made: made)
    plain = on_gpu(variant, lambda made: made, capture=False)
    for r in range(3):
        assert_near(recorded, plain, r, r)


@pytest.mark.parametrize("variant", [pytest.param(v, marks=gpu) for v in VARIANTS])
def test_one_alone_is_one_of_three(variant: str) -> None:
    three = on_gpu(variant, lambda made: made)
    for r in range(3):
        assert_near(on_gpu(variant, lambda made, r=r: made[r : r + 1]), three, 0, r)


@pytest.mark.parametrize("variant", [pytest.param(v, marks=gpu) for v in VARIANTS])
@pytest.mark.parametrize("train_size", [18, None])
def test_nothing_waits(variant: str, train_size: int | None, no_waiting: Any) -> None:
    trainer = ReplicaTrainer(runs(variant, data__train_size=train_size), device="cuda")
    trainer.advance(2)
    seen: list[torch.Tensor | None] = []
    with no_waiting():
        trainer.advance(20, lambda now: seen.append(now.latest()))
    assert len(seen) == 1
    assert trainer.losses().isfinite().all()


@pytest.mark.parametrize("variant", [pytest.param("SA-MESH", marks=gpu)])
def test_going_on_and_judging_on_a_gpu(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    whole = train_replicas(runs(variant, steps=8), device="cuda")
    half = ReplicaTrainer(runs(variant, steps=8), device="cuda")
    half.advance(5)
    resumed = ReplicaTrainer(runs(variant, steps=8), device="cuda")
    resumed.load_state_dict(half.state_dict())
    resumed.advance(8)
    assert_same(resumed.state_dict(), whole.state_dict())
    found = evaluate_replicas(whole.model, whole.experiments, n=11)
    monkeypatch.setattr(evaluate, "_AT_ONCE", {"cuda": 1})
    one_by_one = evaluate_replicas(resumed.model, whole.experiments, n=11)
    torch.testing.assert_close(found, one_by_one, rtol=1e-5, atol=0.0)
