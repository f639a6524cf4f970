"""The README that is written beside exported weights."""

from typing import Any

from slotmesh.nn.pretrained import CARD_HEAD
from slotmesh.training.export import weights_name
from slotmesh.training.runs import Run, steps_done

_CARD = """{head}
# {variant} on {title}

`slotmesh.models.{model}` with the slot attention of {variant}: {n_slots} slots, images of
{size} x {size} pixels.

- Training data: {train:,} samples of slotmesh's own procedural world for {title}, seed
  {data_seed}; no images of the dataset itself.
- Training: seed {seed}, {steps:,} steps with batches of {batch}. The weights are those of step
  {best:,}, which had the lowest loss on {val:,} validation samples.
- Test, on {n:,} held-out samples of the world: {results}.
- Licence: MIT, like slotmesh.

```python
from slotmesh.models import {model}

model = {model}.from_pretrained("checkpoints/{folder}")
found = model(image)  # uint8 (batch, {frames}3, {size}, {size}); found.{output}, found.slots, ...
```

Made by `{command}`; all settings are in `settings.json`.
"""


def card(run: Run, tested: dict[str, Any], command: str) -> str:
    """Return the README for the weights of a run.

    Args:
        run: The run whose weights are exported.
        tested: Its evaluation on test samples.
        command: The command that trained it.
    """
    # Imports matplotlib, which is slow.
    from slotmesh.training.report.compare import in_words

    s: Any = run.settings
    results = (
        in_words(name, value) for name, value in tested["metrics"].items() if value is not None
    )
    return _CARD.format(
        head=CARD_HEAD,
        variant=s.variant,
        title=run.experiment.title,
        model=type(run.experiment.build()).__name__,
        n_slots=s.model.n_slots,
        size=s.data.size,
        train=s.data.train_size,
        data_seed=s.data.seed,
        seed=s.seed,
        steps=s.steps,
        batch=s.data.batch_size,
        best=steps_done(run.checkpoint),
        val=s.data.val_size,
        n=tested["n"],
        results=", ".join(results),
        folder=weights_name(s.task, s.variant),
        frames="frames, " if s.task.startswith("clevrer") else "",
        output="properties" if s.task == "clevr-properties" else "masks",
        command=command,
    )
