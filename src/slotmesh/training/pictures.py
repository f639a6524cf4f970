"""What the model makes of a few validation samples, as training goes on."""

import io
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from slotmesh.training.keeper import replace_file
from slotmesh.training.learner import Learner

_SAMPLES = 4


class Pictures(Callback):
    """Draws the first validation samples at every validation.

    Args:
        folder: To write to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw them."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Learner)
        experiment = pl_module.experiment
        source, n = experiment.source("val", pl_module.device)
        count = min(_SAMPLES, n or _SAMPLES)
        sample = source.sample(range(count)).to(pl_module.device)
        noise = experiment.noise("picture", 0, total=count, device=pl_module.device)
        with torch.inference_mode():
            picture = experiment.picture(pl_module.judged, sample, noise)
        path = self._folder / f"step-{trainer.global_step:06d}.png"
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG")
        replace_file(path, buffer.getbuffer())
