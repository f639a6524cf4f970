"""One LightningModule for all experiments."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchmetrics import MeanMetric

from slotmesh.training.failure import NonFinite
from slotmesh.training.gradient import FastGradient, compiles
from slotmesh.training.tasks.experiment import Experiment


class Learner(LightningModule):
    """Trains and validates the model of an experiment.

    All randomness of a step is a pure function of (seed, step), so a resumed run needs no state of
    a random generator, and several processes draw what one would.

    Args:
        experiment: What to learn.
    """

    def __init__(self, experiment: Experiment) -> None:
        super().__init__()
        self.experiment = experiment
        self.model = experiment.fresh_model()
        self.average: nn.Module | None = None
        """The moving average of the model's weights, if the settings ask for one."""
        if experiment.settings.optim.ema is not None:
            self.average = experiment.fresh_model().requires_grad_(False)
        self.metrics = nn.ModuleDict(experiment.metrics())
        self.val_loss = MeanMetric()
        self.latest: dict[str, Any] = {}
        """Losses, gradient norm and learning rate of the last step; read late."""
        self.failed_at = torch.tensor(-1)
        """First step whose loss or gradient was not finite; -1 for none."""
        self._fast: FastGradient | None = None

    @property
    def judged(self) -> nn.Module:
        """The model that is validated: the average where there is one."""
        return self.model if self.average is None else self.average

    def on_fit_start(self) -> None:
        """Choose how gradients are computed, and where convolutions are fastest."""
        settings = self.experiment.settings
        precision = settings.hardware.precision
        if self.device.type == "cuda" and precision != "32":
            for model in {self.model, self.judged}:
                model.to(memory_format=torch.channels_last)  # pyright: ignore
        if compiles(settings, self.device, self.trainer.world_size):
            self._fast = FastGradient(self.experiment, self.model, half=precision == "bf16")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        if self._fast is not None:
            losses = self._fast(batch, self.global_step)
            # The next step writes into the same memory.
            self.latest = {name: value.clone() for name, value in losses.items()}
            return self.latest["loss"]
        noise = self._noise("train", self.global_step, self.experiment.settings.data.batch_size)
        try:
            losses = self.experiment.losses(self.model, batch, noise)
        except ValueError as error:
            # On the CPU the library's own checks speak first. Other processes wait for a gradient.
            if "not finite" not in str(error):
                raise
            weights = [p.sum() for p in self.model.parameters()]
            losses = {"loss": float("nan") * torch.stack(weights).sum()}
        self.latest = {name: value.detach() for name, value in losses.items()}
        return losses["loss"]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Nothing where the gradient came with the loss."""
        if self._fast is None:
            loss.backward(*args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Nothing where every step writes the whole gradient anew."""
        if self._fast is None:
            optimizer.zero_grad()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Clip the gradient, and let no step change the weights that is not finite."""
        clip = self.experiment.settings.optim.clip
        limit = float("inf") if clip is None else clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit).detach()
        self.latest |= {"gradient_norm": norm, "lr": optimizer.param_groups[0]["lr"]}
        finite = torch.isfinite(norm) & torch.isfinite(self.latest["loss"])
        if self.trainer.world_size > 1:
            whole = finite.to(torch.float32)
            torch.distributed.all_reduce(whole, torch.distributed.ReduceOp.MIN)
            finite = whole > 0
        if self.device.type != "cuda":
            if not finite:
                raise NonFinite(self.global_step)
            return
        # Waiting for the device at every step would cost more than a few steps that do nothing.
        self.failed_at = self.failed_at.to(self.device)
        new = ~finite & (self.failed_at < 0)
        self.failed_at = torch.where(new, self.global_step, self.failed_at)
        optimizer.found_inf = (self.failed_at >= 0).to(torch.float32)
        optimizer.grad_scale = None

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Change the weights, and then their average: what is saved next has both."""
        step = self.global_step
        super().optimizer_step(*args, **kwargs)
        decay = self.experiment.settings.optim.ema
        if self.average is None or decay is None:
            return
        # The first weights should not weigh on it for long.
        decay = min(decay, (1 + step) / (10 + step))
        kept, new = (tuple(m.parameters()) for m in (self.average, self.model))
        get_ema_multi_avg_fn(decay)(kept, new, step)

    def check_finite(self) -> None:
        """Raise :class:`NonFinite` if a step failed. Waits for the device."""
        step = int(self.failed_at)
        if step >= 0:
            raise NonFinite(step)

    def on_train_end(self) -> None:
        """Validate at the last step too, unless that was just done."""
        if self.global_step % self.experiment.settings.val_every:
            self.trainer.validating = True
            self.trainer.fit_loop.epoch_loop.val_loop.run()
            self.trainer.training = True

    def on_validation_epoch_start(self) -> None:
        """Begin anew: a validation that was cut short leaves nothing behind."""
        for metric in (*self.metrics.values(), self.val_loss):
            metric.reset()  # pyright: ignore

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Update the metrics."""
        total = self.trainer.val_dataloaders.totals[batch_idx]  # pyright: ignore
        noise = self._noise("val", batch_idx, total)
        metrics: Any = dict(self.metrics.items())
        rows = self.experiment.judge(self.judged, batch, noise, metrics)
        self.val_loss.update(rows["loss"])

    def results(self) -> dict[str, Any]:
        """Loss and metrics over the validation set, of all processes together."""
        found: dict[str, Any] = {"loss": self.val_loss.compute()}
        for name, metric in self.metrics.items():
            value = metric.compute()  # pyright: ignore
            found |= value if isinstance(value, dict) else {name: value}
        return found

    def configure_optimizers(self) -> Any:
        """Adam, with the learning rate of the settings."""
        settings = self.experiment.settings
        # The fused one can be told on the device to leave the weights alone.
        fused = self.device.type == "cuda"
        adam = torch.optim.Adam(self.model.parameters(), lr=settings.optim.lr, fused=fused)
        rate = torch.optim.lr_scheduler.LambdaLR(
            adam, lambda step: settings.optim.factor(step, settings.steps)
        )
        return {"optimizer": adam, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def _noise(self, purpose: str, step: int, total: int) -> torch.Generator:
        return self.experiment.noise(
            purpose,
            step,
            total=total,
            device=self.device,
            rank=self.global_rank,
            n_ranks=self.trainer.world_size,
        )
