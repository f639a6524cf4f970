"""Runs that diverge: report the step, and save what is needed to repeat it."""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from slotmesh.files import write_whole
from slotmesh.training.checkpoint import packed
from slotmesh.training.runs import Run, open_run
from slotmesh.training.settings import plain
from slotmesh.training.stream import Order
from slotmesh.training.tasks.experiment import Experiment, mix


class NonFinite(Exception):  # noqa: N818 (it says what happened)
    """The loss or the gradient of a step is not finite."""

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step}")
        self.step = step


def save_failure(folder: Path, experiment: Experiment, model: nn.Module, step: int) -> str:
    """Save the weights before a failed step and what repeats it; return a message."""
    settings = experiment.settings
    _, n = experiment.source("train", torch.device("cpu"))
    index = Order(n, batch_size=settings.data.batch_size, seed=settings.seed).batch(step)
    state = {f"model.{k}": v.cpu() for k, v in model.state_dict().items()}
    content = packed({"state_dict": state, "settings": json.dumps(plain(settings))})
    seed = mix(settings.seed, "train", step)
    found = {"step": step, "seed": seed, "samples": index}
    kept = (
        f"The weights before it and the numbers of its samples are in {folder}; "
        f"slotmesh.training.failure.replay({str(folder)!r}) computes it again."
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "before.ckpt", content)
        write_whole(folder / "failure.json", json.dumps(found, indent=2) + "\n")
    except OSError as error:
        kept = f"The weights before it could not be written to {folder}: {error.strerror}."
    return (
        f"The loss or the gradient of step {step} is not finite (noise seed {seed}, samples "
        f"{index[0]}, {index[1] if len(index) > 1 else ''}...). {kept} Lower --optim.lr, or set "
        "--optim.clip."
    )


def replay(folder: Path | str, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Recompute the losses of a failed step and the norm of its gradient.

    Args:
        folder: ``failure`` in the run's folder.
        device: Where to compute.

    Raises:
        ValueError: If a check of the library finds a number that is not finite; says where.
    """
    folder = Path(folder)
    found = json.loads((folder / "failure.json").read_text(encoding="utf-8"))
    run: Run = open_run(folder / "before.ckpt")
    model = run.load_model(device).train()
    device = torch.device(device)
    source, _ = run.experiment.source("train", device)
    batch = source.sample(found["samples"]).to(device)
    total = len(found["samples"])
    noise = run.experiment.noise("train", found["step"], total=total, device=device)
    losses = run.experiment.losses(model, batch, noise)
    losses["loss"].backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    return {k: v.detach() for k, v in losses.items()} | {"gradient_norm": norm}
