"""Small training runs, and processes of their own in which they can be killed.

A process runs ``_inside.py``, and there the function of the job's name.
"""

import contextlib
import csv
import dataclasses
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slotmesh.training.runs import load_checkpoint, prepare
from slotmesh.training.settings import Hardware, Settings, plain
from slotmesh.training.stream import Cached
from slotmesh.training.tasks import TASKS, experiment, preset

from ..processes import Script

INSIDE = Path(__file__).with_name("_inside.py")
WORLD_TASKS = {name: task for name, task in TASKS.items() if task.has_world}
"""Tasks that need no data of one's own."""


def tiny(task: str, variant: str, out: Path, **changes: Any) -> Settings:
    """The quick preset with next to no data: 12 steps, epochs of 4, validation at 5, 10 and 12."""
    start = preset(task, variant)
    data = {"batch_size": 4, "val_size": 6, "test_size": 8, "train_size": 18}
    model: dict[str, Any] = {}
    if task == "random-objects":
        data |= {"n_background": 12, "dim": 8}
        model |= {"mlp_dim": 8}
    elif task == "features":
        data |= {"size": 32}
        model |= {"hidden": 8, "slot_dim": 8, "mlp_dim": 8}
    else:
        data |= {"size": 32}
        model |= {"channels": 8, "slot_dim": 8, "mlp_dim": 8}
        model |= {"start": None} if hasattr(start.model, "start") else {}
    if getattr(start.data, "easy", False):
        data |= {"easy": False}
        model |= {"n_slots": preset(task, variant, "paper").model.n_slots}
    start = dataclasses.replace(
        start,
        out=out,
        steps=12,
        val_every=5,
        save_every=3,
        log_every=2,
        data=dataclasses.replace(start.data, **data),
        model=dataclasses.replace(start.model, **model),
        hardware=Hardware(accelerator="cpu", threads=1),
    )
    return change(start, **changes)


def change(settings: Settings, **changes: Any) -> Settings:
    """Settings with some changed; ``data__val_size`` is ``data.val_size``."""
    for name, value in changes.items():
        head, _, rest = name.partition("__")
        if rest:
            value = dataclasses.replace(getattr(settings, head), **{rest: value})
        settings = dataclasses.replace(settings, **{head: value})
    return settings


def flags(settings: Settings) -> list[str]:
    """The words of the command line for :func:`tiny` settings."""
    start = preset(settings.task, settings.variant, settings.preset)
    words = ["train", settings.task, "--variant", settings.variant, "--preset", settings.preset]

    def differ(new: Any, old: Any, prefix: str) -> None:
        for field in dataclasses.fields(new):
            a, b = getattr(new, field.name), getattr(old, field.name)
            if a == b or (not prefix and field.name in ("task", "variant", "preset")):
                continue
            if dataclasses.is_dataclass(a):
                differ(a, b, f"{prefix}{field.name}.")
            elif isinstance(a, bool):
                words.append(f"--{prefix}{'' if a else 'no-'}{field.name}".replace("_", "-"))
            else:
                words.extend([f"--{prefix}{field.name}".replace("_", "-"), str(a)])

    differ(settings, start, "")
    return words


def fake_run(settings: Settings, *, trained: bool = False) -> None:
    """The folder of a run that was saved before its first step, or with weights as if later."""
    prepare(settings)
    model = experiment(settings).fresh_model()
    if trained:
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn(weight.shape, generator=rng))
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    content = {"state_dict": weights, "settings": json.dumps(plain(settings)), "global_step": 0}
    torch.save(content, settings.folder / "checkpoints" / "last.ckpt")


class Job(Script):
    """A process that runs one of the functions of ``_inside.py``, and what it wrote."""

    def __init__(
        self, log: Path, name: str, env: dict[str, str] | None = None, **args: Any
    ) -> None:
        super().__init__(INSIDE, log, env=env, JOB=(name, args))


def run_job(log: Path, name: str, **args: Any) -> tuple[int, str]:
    """Exit code and output of a job."""
    job = Job(log, name, **args)
    return job.wait(), job.output


def two_processes(log: Path, name: str, **args: Any) -> list[tuple[int, str]]:
    """The same job as ranks 0 and 1, as Lightning's launcher would start them."""
    port = free_port()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    jobs = [
        Job(log.with_suffix(f".{rank}"), name, {**shared, "LOCAL_RANK": str(rank)}, **args)
        for rank in (0, 1)
    ]
    return [(job.wait(), job.output) for job in jobs]


def free_port() -> int:
    """A port below those that systems give out by themselves, so that none takes it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def state(folder: Path, name: str = "last") -> dict[str, Any]:
    """All of a checkpoint that must not depend on how often a run was stopped."""
    found = load_checkpoint(folder / "checkpoints" / f"{name}.ckpt")
    keys = ("global_step", "state_dict", "optimizer_states", "best_loss")
    return {key: found[key] for key in keys}


def metrics(folder: Path, *, seconds: bool = False) -> list[dict[str, str]]:
    """The rows of metrics.csv, without the time that they took."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return rows if seconds else [{k: v for k, v in r.items() if k != "seconds"} for r in rows]


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Equal to the last bit, all the way down."""
    assert type(found) is type(expected), where
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), where
        for key in found:
            assert_same(found[key], expected[key], f"{where}.{key}")
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected), where
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(found, torch.Tensor):
        assert torch.equal(found, expected), where
    else:
        assert found == expected, where


def count_sets(
    monkeypatch: pytest.MonkeyPatch, also: Callable[[], object] = lambda: None
) -> list[int]:
    """The size of each set that is made from now on."""
    made: list[int] = []
    before = Cached.__init__

    def init(self: Any, source: Any, n: int, *args: Any) -> None:
        also()
        before(self, source, n, *args)
        made.append(n)

    monkeypatch.setattr(Cached, "__init__", init)
    return made
