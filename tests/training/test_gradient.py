"""The compiled and recorded gradient against the plain one."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.nn.noise import Drawing, Drawn
from slotmesh.training import gradient
from slotmesh.training.gradient import WORTH, FastGradient, compiles
from slotmesh.training.loop import Training, run_train
from slotmesh.training.tasks import experiment

from ._jobs import change, metrics, state, tiny

TASKS = ["random-objects", "clevr-properties", "multi-dsprites", "clevrer-s"]
HAS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def ready(task: str, variant: str, device: str = "cpu", **changes: Any) -> tuple[Any, Any, Any]:
    """An experiment, its model and a function that makes the batch of a step."""
    made = experiment(tiny(task, variant, Path("run"), **changes))
    source, _ = made.source("train", torch.device(device))
    return made, made.fresh_model().to(device), lambda i: source.sample(range(4 * i, 4 * i + 4))


@pytest.mark.parametrize("variant", ["SA", "SA-MESH"])
@pytest.mark.parametrize("task", TASKS)
def test_numbers_drawn_ahead_are_those_of_the_plain_step(task, variant):
    made, model, batch = ready(task, variant)
    plain = made.losses(model, batch(0), made.noise("train", 7, total=4))
    drawing = Drawing(made.noise("train", 7, total=4))
    assert made.losses(model, batch(0), drawing)["loss"] == plain["loss"]
    drawing.generator = made.noise("train", 7, total=4)
    drawn = Drawn(drawing.again())
    assert made.losses(model, batch(0), drawn)["loss"] == plain["loss"]
    assert drawn.taken == len(drawing.asked)
    other = Drawn(drawing.again())
    assert made.losses(model, batch(0), other)["loss"] != plain["loss"]


@pytest.mark.parametrize("task", TASKS)
def test_a_step_compiles_as_one_graph(task):
    # Every iteration is traced.
    made, model, batch = ready(task, "SA-SH", model__n_iters=1)
    sample, drawing = batch(0), Drawing(torch.Generator().manual_seed(0))
    expected = made.losses(model, sample, drawing)["loss"]
    drawing.generator.manual_seed(0)

    def losses(drawn: list[torch.Tensor]) -> Any:
        return made.losses(model, sample, Drawn(drawn))

    run = torch.compile(losses, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(run(drawing.again())["loss"], expected)


def test_a_process_can_compile_any_number_of_runs(monkeypatch):
    """torch allows 8 compiled versions of a function, and raises an error at the next."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(gradient, "Captured", OnCpu)
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=1, accumulated_recompile_limit=1):
        for width in (8, 9, 10):
            made, model, batch = ready(
                "random-objects", "SA-SH", model__n_iters=1, model__mlp_dim=width
            )
            found = FastGradient(made, model, half=False)(batch(0), 3)["loss"]
            plain = made.losses(model, batch(0), made.noise("train", 3, total=4))["loss"]
            torch.testing.assert_close(found, plain.detach())
    torch.compiler.reset()


class OnCpu:
    """A computation that is not recorded: without a GPU there are no CUDA graphs."""

    def __init__(self, run: Any, generators: Any, before: Any) -> None:
        self.run, self.before = run, before
        # The recording is the first call.
        self()

    def __call__(self) -> Any:
        self.before()
        return self.run()


def test_when_it_is_worth_it():
    start = tiny("random-objects", "SA", Path("run"))
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    long = change(start, steps=WORTH)
    assert compiles(long, cuda, 1)
    assert not compiles(change(long, steps=WORTH - 1), cuda, 1)
    assert not compiles(long, cpu, 1)
    assert not compiles(long, cuda, 2)
    assert compiles(change(start, hardware__compile="yes"), cuda, 1)
    assert not compiles(change(long, hardware__compile="no"), cuda, 1)


@pytest.mark.parametrize(
    ("task", "variant"),
    [("random-objects", "SA-MESH"), ("multi-dsprites", "SA-MESH"), ("clevr-properties", "SA-EMD")],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["recorded", "compiled"])
@pytest.mark.gpu
@HAS_GPU
def test_the_same_losses_and_gradients(task, variant, compiled):
    made, model, batch = ready(task, variant, "cuda")
    torch.backends.cudnn.allow_tf32 = False
    fast = FastGradient(made, model, half=False, compiled=compiled)
    kept: list[Any] = []
    for step in (3, 4, 5):
        losses = {k: v.clone() for k, v in fast(batch(step), step).items()}
        found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        kept = [p.grad for p in model.parameters()] if step == 3 else kept
        noise = made.noise("train", step, total=4, device="cuda")
        plain = made.losses(model, batch(step), noise)
        leaves = list(model.parameters())
        wanted = torch.autograd.grad(plain["loss"], leaves, allow_unused=True)
        torch.testing.assert_close(losses["loss"], plain["loss"], rtol=1e-4, atol=1e-6)
        size = torch.cat([w.flatten() for w in wanted if w is not None]).norm()
        for actual, expected in zip(found, wanted, strict=True):
            assert (actual is None) == (expected is None)
            if actual is not None:
                assert (actual - expected).norm() <= 2e-3 * size
        assert all(p.grad is g for p, g in zip(leaves, kept, strict=True))
        model.zero_grad(set_to_none=True)
        # New weights, which the recording has to see.
        with torch.no_grad():
            for p in leaves:
                p.add_(0.05 * torch.randn_like(p))


@pytest.mark.gpu
@HAS_GPU
def test_a_run_is_the_same_and_goes_on(tmp_path):
    """Through the trainer: losses, validation, checkpoints and learning rate."""
    rows = {}
    for name in ("no", "yes"):
        settings = tiny("multi-dsprites", "SA-MESH", tmp_path / name, hardware__accelerator="gpu")
        settings = change(settings, hardware__compile=name)
        with Path(os.devnull).open("w") as nowhere:
            if name == "yes":
                stop_after(settings, 7, nowhere)
            run_train(settings, Console(file=nowhere))
        rows[name] = metrics(tmp_path / name)
        assert state(tmp_path / name)["global_step"] == 12
    assert [r["step"] for r in rows["no"]] == [r["step"] for r in rows["yes"]]
    for plain, fast in zip(rows["no"], rows["yes"], strict=True):
        for name in ("train/loss", "train/lr", "val/loss"):
            if plain[name]:
                assert float(fast[name]) == pytest.approx(float(plain[name]), rel=2e-3)


def stop_after(settings: Any, step: int, nowhere: Any) -> None:
    """Run until a step, then fail."""
    old = Training.learn

    def learn(self: Training, batch: Any) -> None:
        if self.step == step:
            raise KeyError("stop")
        old(self, batch)

    Training.learn = learn
    try:
        with pytest.raises(KeyError, match="stop"):
            run_train(settings, Console(file=nowhere))
    finally:
        Training.learn = old
