"""Training together from first weights, or from where it stopped, to the end."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paper.replicas.group import difference
from paper.replicas.together import Together
from slotmesh.training.checkpoint import load_checkpoint, packed, replace_file
from slotmesh.training.lock import Lock
from slotmesh.training.settings import at_least, flag, plain
from slotmesh.training.tasks import from_plain
from slotmesh.training.tasks.experiment import Experiment

CHECKPOINT = "replicas.ckpt"
# What may change between two parts of a training without changing what it computes.
_FREE = ("out", "overwrite", "val_every", "save_every", "log_every", "hardware")


def train_together(
    experiments: Sequence[Experiment],
    *,
    device: torch.device | str = "cpu",
    folder: Path | None = None,
    every: int | None = None,
    on_chunk: Callable[[Together], None] = lambda together: None,
    console: Console | None = None,
) -> Together:
    """Train experiments that differ in seed, data seed and sigma, all at once.

    Args:
        experiments: Of random objects.
        device: Where to train.
        folder: For the checkpoint. Training that was stopped resumes from it, to the same bits.
        every: Steps between two checkpoints; ``save_every`` of the settings by default.
        on_chunk: Called after so many steps, before the checkpoint, and at the end: to judge, and
            to write what was found. After a kill it can be called for the same step again.
        console: Shows the progress, if given.

    Returns:
        The trained replicas; ``failed()`` says which did not get there.

    Raises:
        ValueError: If the experiments cannot be trained together, or the folder holds others.

    Example:
        >>> from dataclasses import replace
        >>> from paper.replicas import judge_together, train_together
        >>> from slotmesh.training.tasks import experiment, preset
        >>> start = replace(preset("random-objects", "SA"), steps=4)
        >>> runs = [experiment(replace(start, seed=seed)) for seed in range(2)]
        >>> found = train_together(runs, every=2, on_chunk=lambda now: print(now.step))
        2
        4
        >>> judge_together(found.model, runs, n=8).shape
        torch.Size([2])
    """
    together = Together(experiments, device=device)
    settings = together.experiments[0].settings
    every = settings.save_every if every is None else every
    at_least("every", every, 1)
    if folder is None:
        _train(together, None, every, on_chunk, console)
        return together
    lock = Lock(folder)
    lock.acquire()
    try:
        path = folder / CHECKPOINT
        if path.is_file():
            load(path, together)
        _train(together, path, every, on_chunk, console)
    finally:
        lock.release()
    return together


def _train(
    together: Together,
    path: Path | None,
    every: int,
    on_chunk: Callable[[Together], None],
    console: Console | None,
) -> None:
    """The rest of the steps."""
    settings = together.experiments[0].settings
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
    )
    quiet = console is None or not console.is_terminal
    with Progress(*columns, console=console, disable=quiet) as progress:
        title = f"{settings.variant}, {len(together.experiments)} runs"
        bar = progress.add_task(
            title, total=settings.steps, completed=together.step, numbers=_numbers(together)
        )

        def show(now: Together) -> None:
            progress.update(bar, completed=now.step, numbers=_numbers(now))

        while together.step < settings.steps:
            until = (together.step // every + 1) * every
            together.advance(min(until, settings.steps), show)
            on_chunk(together)
            if path is not None:
                save(path, together)


def save(path: Path, together: Together) -> None:
    """Write a checkpoint; the one before stays until the new one is whole."""
    settings = [json.dumps(plain(made.settings)) for made in together.experiments]
    replace_file(path, packed(together.state_dict() | {"settings": settings}))


def load(path: Path, together: Together) -> None:
    """Go on from a checkpoint.

    Raises:
        ValueError: If it is damaged, or of other experiments.
    """
    state = load_checkpoint(path)
    mend = "Choose another folder, or remove it."
    texts = state.get("settings")
    if not isinstance(texts, list) or "optimizer" not in state:
        raise ValueError(f"{path} is not a checkpoint of runs that were trained together. {mend}")
    if len(texts) != len(together.experiments):
        raise ValueError(
            f"{path} holds {len(texts)} runs, expected {len(together.experiments)}. {mend}"
        )
    for i, (text, made) in enumerate(zip(texts, together.experiments, strict=True)):
        old = from_plain(json.loads(text), str(path))
        differ = difference(old, made.settings, _FREE)
        if differ is not None:
            name, before, after = differ
            raise ValueError(
                f"{path} holds run {i} with {flag(name)} {before}, but {after} came. {mend}"
            )
    together.load_state_dict(state)


def _numbers(together: Together) -> str:
    """The range of losses, and how many have failed."""
    latest = together.latest()
    if latest is None:
        return ""
    known = latest[latest.isfinite()]
    lost = len(latest) - len(known)
    said = [f"loss {float(known.min()):.3g} to {float(known.max()):.3g}"] if len(known) else []
    return ", ".join([*said, f"{lost} failed"] if lost else said)
