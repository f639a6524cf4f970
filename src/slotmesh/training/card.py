"""The README of exported weights: what they are, what they were trained on, how to load them."""

from pathlib import Path
from typing import Any

from slotmesh.nn.pretrained import CARD_HEAD
from slotmesh.training.reading import read_json
from slotmesh.training.runs import Run, steps_done


def model_card(run: Run, model: str, out: Path) -> str:
    """A page about a run's weights, in Markdown.

    Args:
        run: Where the weights come from. If it is itself an export, its page is kept.
        model: Name of the model's class.
        out: The folder that the weights go to.
    """
    kept = run.folder / "README.md"
    if run.checkpoint.suffix == ".safetensors" and kept.is_file():
        return kept.read_text(encoding="utf-8")
    s: Any = run.settings
    lines = [f"- Training data: {_data(run)}."]
    encoder: Any = getattr(run.experiment, "encoder", None)
    if encoder is not None:
        # A folder's name, not its path.
        name = Path(encoder.name).name if Path(encoder.name).is_dir() else encoder.name
        lines.append(
            f"- Features: those of `{name}`, frozen. Its weights are not included; loading reads "
            f"them from the same place and checks their hash, {encoder.hash[:16]}."
        )
    if (start := getattr(s.model, "start", None)) is not None:
        # Only the name: a path is of no use on another machine.
        lines.append(f"- Start: the weights `{Path(start).name}`.")
    step = run.stopped_at
    steps = (
        f"{s.steps:,} steps" if step is None else f"stopped at step {step:,} of {s.steps:,}, each"
    )
    lines.append(f"- Training: seed {s.seed}, {steps} of {s.data.batch_size} samples.{_best(run)}")
    tested = _tested(run)
    if tested:
        lines.append(f"- Test: {tested}.")
    n_slots = s.model.n_slots if hasattr(s.model, "n_slots") else s.data.n_objects
    side = getattr(run.experiment, "size", getattr(s.data, "size", None))
    size = "" if side is None else f", images of {side} x {side} pixels"
    return (
        f"{CARD_HEAD}\n# {s.variant} on {_name(run)}\n\n"
        f"`slotmesh.models.{model}` with the slot attention of {s.variant}: {n_slots} slots"
        f"{size}.\n\n"
        + "\n".join(lines)
        + f"\n\n```python\nfrom slotmesh.models import {model}\n\n"
        f'model = {model}.from_pretrained("{out}")\n```\n\n'
        "`settings.json` has all settings of the run.\n"
    )


def _name(run: Run) -> str:
    title = run.experiment.title
    return title if run.experiment.has_world else title[:1].lower() + title[1:]


def _data(run: Run) -> str:
    s: Any = run.settings
    root = getattr(s.data, "root", None)
    if root is None:
        n = "samples" if s.data.train_size is None else f"{s.data.train_size:,} samples"
        of = getattr(s.data, "world", None) or run.experiment.title
        world = f"slotmesh's own procedural world for {of}, seed {s.data.seed}"
        easy = ", its easy version" if getattr(s.data, "easy", False) else ""
        return f"{n} of {world}{easy}; no real dataset"
    # The folder's name, not its path: the page may be shared.
    name = Path(root).resolve().name
    if getattr(s.data, "world", None):
        return f"{s.data.world}, read from `{name}`"
    if run.experiment.has_world:
        return f"{run.experiment.title}, read from `{name}`"
    kind = "videos" if s.task == "video" else "images"
    return f"the {kind} in a folder named `{name}`, without labels"


def _best(run: Run) -> str:
    if run.checkpoint.suffix != ".ckpt":
        return ""
    step = steps_done(run.checkpoint)
    why = ", which had the lowest validation loss" if run.checkpoint.stem == "best" else ""
    return f" The weights are those of step {step:,}{why}."


def _tested(run: Run) -> str:
    """What ``slotmesh evaluate`` found for these weights, if it was run."""
    path = run.folder / "evaluation.json"
    if not path.is_file():
        return ""
    from slotmesh.training.report.compare import in_words
    from slotmesh.training.report.evaluation import checked

    try:
        found = checked(read_json(path), path)
    except ValueError:
        return ""
    if found.get("checkpoint") != run.checkpoint.name:
        return ""
    values = found["metrics"] or {"loss": found["loss"]}
    words = [in_words(name, value) for name, value in values.items()]
    return f"{', '.join(words)}, on {found['n']:,} held-out samples"
