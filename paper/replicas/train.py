"""Train replicas to the end, from their first weights or from a checkpoint."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console

from paper.recorded import by_flag, difference
from paper.replicas.trainer import ReplicaTrainer
from slotmesh.files import write_whole
from slotmesh.progress import Count
from slotmesh.training.checkpoint import load_checkpoint, packed
from slotmesh.training.processes import Lock
from slotmesh.training.settings import INCIDENTAL, at_least, flag, plain
from slotmesh.training.tasks import from_plain
from slotmesh.training.tasks.experiment import Experiment

CHECKPOINT = "replicas.ckpt"
# Settings that may change when training resumes: they do not change what it computes.
_FREE = (*INCIDENTAL, "val_every")


def train_replicas(
    experiments: Sequence[Experiment],
    *,
    device: torch.device | str = "cpu",
    folder: Path | None = None,
    every: int | None = None,
    on_chunk: Callable[[ReplicaTrainer], None] = lambda trainer: None,
    console: Console | None = None,
) -> ReplicaTrainer:
    """Train experiments that differ in seed, data seed and sigma at the same time.

    Args:
        experiments: Experiments of random objects.
        device: Device to train on.
        folder: Folder for the checkpoint, from which stopped training resumes bit for bit.
        every: Steps between two checkpoints; ``save_every`` of the settings by default.
        on_chunk: Called with the trainer every ``every`` steps and at the end, before the
            checkpoint is written. After a kill it can be called for the same step again.
        console: Shows progress, if given.

    Returns:
        The trained replicas; ``failed()`` tells which ones failed.

    Raises:
        ValueError: If the experiments cannot be trained together, or the folder holds others.

    Example:
        >>> from dataclasses import replace
        >>> from paper.replicas import evaluate_replicas, train_replicas
        >>> from slotmesh.training.tasks import experiment, preset
        >>> start = replace(preset("random-objects", "SA"), steps=4)
        >>> runs = [experiment(replace(start, seed=seed)) for seed in range(2)]
        >>> found = train_replicas(runs, every=2, on_chunk=lambda now: print(now.step))
        2
        4
        >>> evaluate_replicas(found.model, runs, n=8).shape
        torch.Size([2])
    """
    trainer = ReplicaTrainer(experiments, device=device)
    settings = trainer.experiments[0].settings
    every = settings.save_every if every is None else every
    at_least("every", every, 1)
    if folder is None:
        _train(trainer, None, every, on_chunk, console)
        return trainer
    lock = Lock(folder)
    lock.acquire()
    try:
        path = folder / CHECKPOINT
        if path.is_file():
            load(path, trainer)
        _train(trainer, path, every, on_chunk, console)
    finally:
        lock.release()
    return trainer


def _train(
    trainer: ReplicaTrainer,
    path: Path | None,
    every: int,
    on_chunk: Callable[[ReplicaTrainer], None],
    console: Console | None,
) -> None:
    """Take the remaining steps."""
    settings = trainer.experiments[0].settings
    title = f"{settings.variant}, {len(trainer.experiments)} runs"
    with Count(console, title, settings.steps, done=trainer.step, transient=False) as count:

        def show(now: ReplicaTrainer) -> None:
            count.update(now.step, note=_numbers(now))

        show(trainer)
        while trainer.step < settings.steps:
            until = (trainer.step // every + 1) * every
            trainer.advance(min(until, settings.steps), show)
            on_chunk(trainer)
            if path is not None:
                save(path, trainer)


def save(path: Path, trainer: ReplicaTrainer) -> None:
    """Write a checkpoint; the previous one stays until the new one is complete."""
    settings = [json.dumps(plain(made.settings)) for made in trainer.experiments]
    write_whole(path, packed(trainer.state_dict() | {"settings": settings}))


def load(path: Path, trainer: ReplicaTrainer) -> None:
    """Resume from a checkpoint.

    Raises:
        ValueError: If it is damaged or belongs to other experiments.
    """
    state = load_checkpoint(path)
    fix = "Choose another folder, or remove it."
    texts = state.get("settings")
    if not isinstance(texts, list) or "optimizer" not in state:
        raise ValueError(f"{path} is not a checkpoint of runs that were trained together. {fix}")
    if len(texts) != len(trainer.experiments):
        raise ValueError(
            f"{path} holds {len(texts)} runs, expected {len(trainer.experiments)}. {fix}"
        )
    for i, (text, made) in enumerate(zip(texts, trainer.experiments, strict=True)):
        old = from_plain(json.loads(text), str(path))
        other = difference(by_flag(old), by_flag(made.settings), ignore=_FREE)
        if other is not None:
            name, before, after = other
            raise ValueError(
                f"{path} holds run {i} with {flag(name)} {before}, but got {after}. {fix}"
            )
    trainer.load_state_dict(state)


def _numbers(trainer: ReplicaTrainer) -> str:
    """Return the range of losses, and how many replicas have failed."""
    latest = trainer.latest()
    if latest is None:
        return ""
    known = latest[latest.isfinite()]
    lost = len(latest) - len(known)
    said = [f"loss {float(known.min()):.3g} to {float(known.max()):.3g}"] if len(known) else []
    return ", ".join([*said, f"{lost} failed"] if lost else said)
