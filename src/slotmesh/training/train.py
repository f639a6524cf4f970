"""``slotmesh train``: one experiment, from first weights or from where it stopped."""

import atexit
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from slotmesh.training.checkpoint import last_sound, load_checkpoint
from slotmesh.training.lock import Lock
from slotmesh.training.memory import memory_checked
from slotmesh.training.places import NO_FLOAT64, gpu_count
from slotmesh.training.runs import Run, open_run, prepare, steps_done, unwritable
from slotmesh.training.settings import Hardware, Settings
from slotmesh.training.tasks import experiment
from slotmesh.training.tasks.experiment import Experiment


def run_train(settings: Settings, console: Console | None = None) -> Run:
    """Train, or go on with a run that stopped; the finished run.

    Raises:
        ValueError: If a setting is wrong, before any data is touched.
    """
    console = Console() if console is None else console
    made = experiment(settings)
    check_hardware(settings.hardware)
    first = fit(made, console)
    if first:
        folder = escape(str(settings.folder))
        console.print(
            f"Trained: [bold]{folder}[/bold]. Next: slotmesh evaluate {folder}",
            soft_wrap=True,
            highlight=False,
        )
    return open_run(settings.folder)


def fit(made: Experiment, console: Console) -> bool:
    """Train an experiment; whether this is the first of all processes."""
    from slotmesh.training.arithmetic import chosen

    lock = Lock(made.settings.folder)
    try:
        with chosen(made.settings), memory_checked():
            return _fit(made, lock, console)
    finally:
        lock.release()


def _fit(made: Experiment, lock: Lock, console: Console) -> bool:
    from slotmesh.training.data import RunData
    from slotmesh.training.failure import NonFinite, save_failure
    from slotmesh.training.guard import Guard
    from slotmesh.training.journal import Journal
    from slotmesh.training.keeper import Keeper
    from slotmesh.training.learner import Learner
    from slotmesh.training.pictures import Pictures
    from slotmesh.training.processes import agree
    from slotmesh.training.progress import Bar
    from slotmesh.training.signals import Signals, Stopped
    from slotmesh.training.stream import Order

    settings = made.settings
    folder = settings.folder
    keeper = Keeper(folder / "checkpoints", settings.save_every)
    journal = Journal(folder, settings.log_every)
    # In this order: what belongs to a step is written before the checkpoint after which nobody does
    # that step again, and all of it before the bar shows it and a signal ends the run.
    callbacks = [
        Guard(lock),
        journal,
        Pictures(folder / "pictures"),
        keeper,
        Bar(console, journal, made.goal),
        Signals(keeper),
    ]
    trainer = make_trainer(settings, callbacks)
    resume = agree(trainer, lambda: _begin(settings, lock, trainer, console), keeper.last)
    if resume is not None and steps_done(resume) >= settings.steps:
        return trainer.is_global_zero
    learner = Learner(made)
    try:
        data = RunData(made, console)
        trainer.fit(learner, data, ckpt_path=None if resume is None else str(resume))
    except Stopped as stopped:
        if trainer.is_global_zero:
            console.print(
                f"Stopped at step {stopped.step}, and saved. The same command goes on from there.",
                highlight=False,
            )
        sys.exit(stopped.exit_code)
    except SystemExit as ended:
        # Lightning gives Ctrl-C, before the first step, the exit code of an error.
        if isinstance(ended.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from ended
        raise
    except NonFinite as failed:
        if not trainer.is_global_zero:
            sys.exit(1)
        _, n = made.source("train", torch.device("cpu"))
        order = Order(n, batch_size=settings.data.batch_size, seed=settings.seed)
        index = order.batch(failed.step)
        said = save_failure(folder / "failure", made, learner.model, index, failed.step)
        raise ValueError(said) from failed
    return trainer.is_global_zero


def _begin(settings: Settings, lock: Lock, trainer: Any, console: Console) -> Path | None:
    """Take the folder and make it ready, in the first process; the checkpoint to resume from."""

    def say(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    folder = settings.folder
    try:
        lock.acquire()
        prepare(settings)
        console.print(
            f"[bold]{settings.task}[/bold] {settings.variant}, preset {settings.preset}, seed "
            f"{settings.seed}: {settings.steps} steps of {settings.data.batch_size}, in "
            f"{escape(str(folder))}",
            highlight=False,
            soft_wrap=True,
        )
        resume = last_sound(folder / "checkpoints", say)
    except OSError as error:
        raise unwritable(folder, error) from error
    if resume is not None:
        say("Going on from its last checkpoint.")
        if steps_done(resume) < settings.steps:
            _compare(settings, resume, trainer, say)
    return resume


def _compare(settings: Settings, resume: Path, trainer: Any, say: Callable[[str], None]) -> None:
    """Say how a run is computed in another way than before; refuse it if it must not be."""
    from slotmesh.training.arithmetic import arithmetic, change

    now = arithmetic(settings, trainer.strategy.root_device, trainer.world_size)
    differs, fix = change(now, load_checkpoint(resume).get("arithmetic"))
    if not differs:
        return
    if settings.hardware.deterministic:
        raise ValueError(
            f"{settings.folder} would resume {differs} and end with other bits, which "
            f"--hardware.deterministic rules out. For the same bits, {fix}; or leave it out."
        )
    say(
        f"It resumes {differs}: the same up to rounding, not to the last bit. For the same bits, "
        f"{fix}."
    )


def check_hardware(hardware: Hardware) -> None:
    """Raise a ValueError that names the flag where this machine is not as the settings say."""
    gpus = gpu_count()
    if hardware.accelerator == "gpu" and not gpus:
        here = torch.backends.mps.is_available()
        found = f"here that is {NO_FLOAT64}" if here else "torch finds no GPU here"
        raise ValueError(f"--hardware.accelerator is gpu, but {found}. Pass cpu.")
    if hardware.accelerator != "cpu" and gpus and hardware.devices > gpus:
        raise ValueError(f"--hardware.devices is {hardware.devices}, but here are {gpus} GPUs.")
    several = hardware.devices * hardware.nodes > 1
    if hardware.compile == "yes" and (several or not gpus or hardware.accelerator == "cpu"):
        found = "there are several processes" if several else "it runs on the CPU"
        raise ValueError(
            f"--hardware.compile is yes, which is for one NVIDIA GPU, but {found}. Leave it out."
        )
    if hardware.deterministic and hardware.compile == "yes":
        raise ValueError(
            "--hardware.deterministic is on, but --hardware.compile is yes, which tries out which "
            "kernels are fastest. Leave one of them out."
        )
    # What torchrun and srun say; without this, each process would train for itself.
    started = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS"))
    expected = hardware.devices * hardware.nodes
    if started is not None and int(started) != expected:
        raise ValueError(
            f"{started} processes were started, but --hardware.devices {hardware.devices} times "
            f"--hardware.nodes {hardware.nodes} is {expected}."
        )


def make_trainer(settings: Settings, callbacks: list[Any]) -> Any:
    """Lightning's trainer with the settings of the hardware."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Trainer

    from slotmesh.training.keeper import PlainCheckpoints
    from slotmesh.training.processes import part

    hardware = settings.hardware
    # Lightning's own choice can be a device without float64, such as an Apple GPU.
    accelerator = "cuda" if hardware.accelerator != "cpu" and gpu_count() else "cpu"
    _quieten()
    several = hardware.devices * hardware.nodes > 1
    if several:
        atexit.register(part)
    try:
        return Trainer(
            accelerator=accelerator,
            devices=hardware.devices,
            num_nodes=hardware.nodes,
            strategy="ddp" if several else "auto",
            precision="bf16-mixed" if hardware.precision == "bf16" else "32-true",
            max_steps=settings.steps,
            max_epochs=-1,
            val_check_interval=settings.val_every,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            callbacks=callbacks,
            plugins=[PlainCheckpoints()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=settings.folder,
        )
    except (MisconfigurationException, RuntimeError) as error:
        raise ValueError(f"--hardware: {error}") from error


def _quieten() -> None:
    """Lightning's advice that does not apply to runs of this kind."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for text in (
        ".*does not have many workers.*",
        ".*GPU available but not used.*",
        ".*is not resumable.*",
        ".*treespec, LeafSpec.*",
    ):
        warnings.filterwarnings("ignore", text)
