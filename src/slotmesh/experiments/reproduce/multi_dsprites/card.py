"""What stands beside exported weights, so that they say what they are."""

from typing import Any

from slotmesh.experiments.runs import Run, steps_done

_CARD = """---
library_name: slotmesh
license: mit
tags: [object-centric-learning, slot-attention, optimal-transport]
---

# {variant} on Multi-dSprites

`slotmesh.models.ObjectDiscovery` with the slot attention of {variant}: {n_slots} slots, images of
{size} x {size} pixels. Trained on slotmesh's Multi-dSprites world, seed {seed}, for {steps:,} steps
of {batch}; the weights are those of step {best:,}, which had the lowest validation loss. On {n:,}
test scenes: FG-ARI {ari:.1f} %, FG-mIoU {miou:.1f} %.

```python
from slotmesh.models import ObjectDiscovery

model = ObjectDiscovery.from_pretrained("{folder}")
found = model(image)  # uint8 (batch, 3, {size}, {size}); found.masks, found.slots, ...
```

Made by `{command}`. `settings.json` has all settings.
"""


def weights_name(variant: str) -> str:
    """The folder of a variant's weights."""
    return f"multi-dsprites-{variant.lower()}"


def card(run: Run, tested: dict[str, Any], command: str) -> str:
    """A page about a run's weights, for their folder."""
    settings: Any = run.settings
    return _CARD.format(
        variant=settings.variant,
        n_slots=settings.model.n_slots,
        size=settings.data.size,
        seed=settings.seed,
        steps=settings.steps,
        batch=settings.data.batch_size,
        best=steps_done(run.checkpoint),
        n=tested["n"],
        ari=100 * tested["metrics"]["fg_ari"],
        miou=100 * tested["metrics"]["fg_miou"],
        folder=f"checkpoints/{weights_name(settings.variant)}",
        command=command,
    )
