"""Small training runs, and processes of their own in which they can be killed.

A process is forked from a server that has imported everything, which takes milliseconds where a
fresh interpreter takes seconds. It runs this file, and in it the function of the job's name.
"""

import atexit
import contextlib
import csv
import dataclasses
import json
import multiprocessing
import os
import random
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from slotmesh.training.loop import run_train
from slotmesh.training.runs import load_checkpoint, prepare
from slotmesh.training.settings import Hardware, Settings, plain
from slotmesh.training.tasks import TASKS, experiment, preset

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "slotmesh.cli",
        "slotmesh.training.loop",
        "lightning.fabric",
        "slotmesh.report.pictures",
        "tensorboard.summary.writer.record_writer",
    ]
)
TIMEOUT = 600
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


class Job:
    """A process that runs one of the functions below, and what it wrote."""

    def __init__(
        self, log: Path, name: str, env: dict[str, str] | None = None, **args: Any
    ) -> None:
        self.log = log
        todo = {"JOB": (name, args, env or {}, str(log))}
        self.process = _SERVER.Process(
            target=runpy.run_path,
            args=(__file__,),
            kwargs={"init_globals": todo, "run_name": "job"},
        )
        self.process.start()

    def wait(self) -> int:
        """Its exit code; a negative one is the signal that killed it."""
        self.process.join(TIMEOUT)
        if self.process.is_alive():
            self.process.kill()
            raise AssertionError(f"still running after {TIMEOUT} s: {self.output}")
        code = self.process.exitcode
        assert code is not None
        return code

    @property
    def output(self) -> str:
        """What it printed."""
        return self.log.read_text()


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


# ---- jobs ----


def train(settings: Settings, kill: str = "") -> None:
    """Train; die where ``kill`` says, such as ``a_step 8``, or writing, or after a time."""
    where, *more = kill.split() if kill else [""]
    if where == "write":
        _die_writing(*more)
    elif where == "seconds":
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, float(more[0]))
    elif where:
        _die(where, *more)
    run_train(settings)


def main(
    words: list[str], stop: str = "", limit: int = 0, nan: str = "", report: bool = False
) -> None:
    """Run the command line; be signalled at a step, starve of disk, or fail at a step."""
    from slotmesh.cli import main as command_line

    if stop:
        _signal(*stop.split())
    if report:
        _report()
    if nan:
        _spoil(*nan.split())
    if limit:
        import resource

        # Without a handler of its own, a process dies of the signal before the write can fail.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.argv = ["slotmesh", *words]
    command_line(words)


def exit_in_a_group(settings: Settings) -> None:
    """Run what the interpreter runs when it exits, in a group of one process."""
    from slotmesh.training.processes import make_fabric

    store = torch.distributed.HashStore()  # pyright: ignore
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    before = torch.distributed.is_initialized()
    make_fabric(settings)
    atexit._run_exitfuncs()  # a forked process leaves without
    print(f"before: {before}, after: {torch.distributed.is_initialized()}")  # noqa: T201


def _report() -> None:
    """Print what Lightning found out about the processes."""
    from slotmesh.training import loop

    old = loop.agree

    def agree(fabric: Any, *args: Any) -> Any:
        found = old(fabric, *args)
        environment = fabric.strategy.cluster_environment
        print(  # noqa: T201
            f"{type(environment).__name__} rank {fabric.global_rank} of {fabric.world_size}, "
            f"node {fabric.node_rank}, local {fabric.local_rank}"
        )
        return found

    loop.agree = agree


def before_step(act: Callable[[Any], None]) -> Callable[[], None]:
    """Call a function with a run's ``Training`` before every step; call the result to end that."""
    from slotmesh.training.loop import Training

    old = Training.learn

    def learn(self: Any, batch: Any) -> None:
        act(self)
        old(self, batch)

    def undo() -> None:
        Training.learn = old

    Training.learn = learn
    return undo


def _die(where: str, step: str, rank: str = "") -> None:
    """Patch a method so that it ends the process, before it does anything, at a step."""
    from slotmesh.training.stream import EvalBatches

    def kill_at(step_now: int) -> None:
        if step_now == int(step) and rank in ("", os.environ.get("LOCAL_RANK")):
            os.kill(os.getpid(), signal.SIGKILL)

    if where == "a_step":
        before_step(lambda training: kill_at(training.step))
        return
    if where == "a_validation":
        old, running = EvalBatches.__iter__, []
        before_step(running.append)

        def batches(self: Any) -> Any:
            for i, batch in enumerate(old(self)):
                # At its second batch, when metrics are half full.
                if i == 1:
                    kill_at(running[-1].step)
                yield batch

        EvalBatches.__iter__ = batches
        return
    # Between two writes: the file beside the old one is whole, but has not taken its place.
    name, old_replace = f".{where}.", Path.replace

    def replace(self: Path, target: Any) -> Any:
        if self.name.startswith(name):
            kill_at(torch.load(self, weights_only=True)["global_step"])
        return old_replace(self, target)

    Path.replace = replace  # pyright: ignore


def _die_writing(name: str, n: str, part: str) -> None:
    """Die at the n-th file of a name: with a part of it written, or all and in its place."""
    old_replace, count = Path.replace, 0

    def replace(self: Path, target: Any) -> Any:
        nonlocal count
        count += Path(target).match(name)
        mine = Path(target).match(name) and count == int(n)
        if mine and part != "after":
            os.truncate(self, int(float(part) * self.stat().st_size))
            os.kill(os.getpid(), signal.SIGKILL)
        found = old_replace(self, target)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    Path.replace = replace  # pyright: ignore


def _signal(signum: str, step: str, rank: str = "", times: str = "1") -> None:
    """Send a signal when a step begins; -1 is when samples are first asked for.

    To this process; as a terminal does, to all that it started too where ``times`` is ``all``.
    """
    from slotmesh.training.stream import RunData

    def send() -> None:
        if rank in ("", os.environ.get("LOCAL_RANK", "0")):
            for _ in range(1 if times == "all" else int(times)):
                os.kill(0 if times == "all" else os.getpid(), int(signum))
                time.sleep(0.01)

    if times == "all":
        os.setpgrp()
    if int(step) >= 0:
        before_step(lambda training: send() if training.step == int(step) else None)
        return
    old = RunData.train

    def train(self: Any, step: int) -> Any:
        send()
        return old(self, step)

    RunData.train = train


def _spoil(step: str, rank: str) -> None:
    """Let the loss of one step be NaN, in one process."""
    from slotmesh.training.loop import Training

    old = Training.losses

    def losses(self: Any, batch: Any) -> Any:
        found = old(self, batch)
        mine = (self.step, self.fabric.global_rank) == (int(step), int(rank))
        return {"loss": float("nan") * found["loss"]} if mine else found

    Training.losses = losses


if __name__ == "job":
    job_name, job_args, job_env, job_log = globals()["JOB"]
    sys.stdout = sys.stderr = Path(job_log).open("w", buffering=1)  # noqa: SIM115
    for stream in (1, 2):
        os.dup2(sys.stdout.fileno(), stream)
    torch.set_num_threads(1)
    # What a process has that is started by hand; a script's & or nohup would let SIGINT be ignored.
    multiprocessing.set_start_method("fork", force=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(job_env)
    try:
        globals()[job_name](**job_args)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        sys.exit(99)
