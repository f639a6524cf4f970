"""What the processes of ``_jobs.py`` do: train, and die or be told to stop where a test says."""

import atexit
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from slotmesh.training.loop import run_train
from slotmesh.training.settings import Settings


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
    registered = atexit._ncallbacks()
    make_fabric(settings)
    assert atexit._ncallbacks() == registered
    atexit._run_exitfuncs()  # a forked process leaves without
    print(f"before: {before}, after: {torch.distributed.is_initialized()}")  # noqa: T201


def choose_a_precision() -> None:
    """Choose the precision of products in each of torch's ways, and another within."""
    from slotmesh.training.arithmetic import chosen
    from slotmesh.training.tasks import preset

    kernels: Any = torch.backends
    rooms = (kernels.cuda.matmul, kernels.mkldnn.matmul, kernels.cudnn.conv, kernels.cudnn.rnn)

    def precision() -> list[Any]:
        found: list[Any] = [room.fp32_precision for room in rooms]
        for read in (torch.get_float32_matmul_precision, lambda: kernels.cudnn.allow_tf32):
            try:
                found.append(read())
            except RuntimeError:
                found.append("set in both ways")
        return found

    for choose in (
        lambda: None,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: setattr(kernels.cudnn, "allow_tf32", False),
        lambda: setattr(kernels.cuda.matmul, "fp32_precision", "ieee"),
        lambda: setattr(kernels.cudnn.conv, "fp32_precision", "tf32"),
    ):
        choose()
        before = precision()
        with chosen(preset("random-objects", "SA")):
            within = (torch.get_float32_matmul_precision(), kernels.cudnn.allow_tf32)
        right = within == ("highest", False) and precision() == before
        print("kept" if right else f"changed from {before} to {precision()}")  # noqa: T201


def make_lightning_speak() -> None:
    """What it says of a precision where nobody has told it to be silent."""
    from lightning.fabric import Fabric

    Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    job_name, job_args = globals()["JOB"]
    try:
        globals()[job_name](**job_args)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        sys.exit(99)
