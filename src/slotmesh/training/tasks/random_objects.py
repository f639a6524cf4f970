"""Random objects (section 5.1, Table 1): copy k random vectors out of zeros into k slots."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slotmesh.models import SetCopier
from slotmesh.training.published import Row
from slotmesh.training.settings import (
    Data,
    Hardware,
    InitName,
    Optim,
    Settings,
    at_least,
    positive,
)
from slotmesh.training.tasks.blind import Constant
from slotmesh.training.tasks.experiment import INITIALIZERS, Experiment, Goal, Source, Split
from slotmesh.training.tasks.matching import match
from slotmesh.training.tasks.sources import world_seed
from slotmesh.training.variants import VARIANTS, MeshSettings, TransportSettings
from slotmesh.worlds import RandomObjects, VectorSample

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchmetrics import Metric

    from slotmesh.report.mosaic import Mosaic


@dataclass(frozen=True)
class VectorData(Data):
    """The data to train and evaluate on."""

    sigma: float = 1.0
    """Standard deviation of the objects: 1, 0.1 and 0.01 in the paper."""
    n_objects: int = 5
    """Number of vectors to copy, and of slots."""
    n_background: int = 100
    """Number of zero vectors among them."""
    dim: int = 32
    """Size of a vector, and of a slot."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        super().check()
        positive("data.sigma", self.sigma)
        at_least("data.n_objects", self.n_objects, 1)
        at_least("data.n_background", self.n_background, 0)
        at_least("data.dim", self.dim, 1)


@dataclass(frozen=True)
class CopierModel:
    """The network: slot attention alone."""

    n_iters: int = 3
    """Number of iterations of slot attention."""
    mlp_dim: int = 64
    """Width of the hidden layers."""
    init: InitName = "fixed-gaussian"
    """How slots are initialised."""
    implicit: bool = True
    """Differentiate slots implicitly, as the paper does here."""
    raw_values: bool = False
    """Not in the paper: slots receive the vectors without normalisation."""
    rescale: bool = False
    """Not in the paper: divide each set by its root mean square, and multiply the slots by it."""
    head: bool = False
    """Not in the paper: add a linear layer on the slots."""
    slot_dim: int | None = None
    """Size of a slot, with --model.head; by default, that of a vector."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        at_least("model.n_iters", self.n_iters, 1)
        at_least("model.mlp_dim", self.mlp_dim, 1)
        if self.slot_dim is not None:
            at_least("model.slot_dim", self.slot_dim, 1)
            if not self.head:
                raise ValueError(
                    f"--model.slot-dim is {self.slot_dim}, which needs --model.head: without it, "
                    "slots are the prediction. Pass --model.head, or leave the size out."
                )


@dataclass(frozen=True)
class RandomObjectsSettings(Settings):
    """Copy random vectors, hidden among zeros, into slots (Table 1)."""

    data: VectorData = field(default_factory=VectorData)
    model: CopierModel = field(default_factory=CopierModel)
    transport: TransportSettings = field(default_factory=MeshSettings)
    relative_loss: bool = False
    """Not in the paper: measure the loss in units of sigma, so that its scale does not depend on
    sigma."""


# RESULTS.md says how they were chosen.
_OPTIM = {
    "SA": Optim(lr=3e-3, cosine=True),
    "SA-SH": Optim(lr=1e-3),
    "SA-EMD": Optim(lr=1e-3),
    "SA-MESH": Optim(lr=3e-3, cosine=True),
}
_MESH: dict[str, Any] = {"lr": 2.0, "potentials": "reuse"}


class RandomObjectsTask(Experiment):
    """Copying random vectors; the error is in units of their standard deviation."""

    name = "random-objects"
    title = "Random objects"
    about = (
        "Copy random vectors, hidden among zeros, into slots, one vector per slot (section 5.1, "
        "Table 1)."
    )
    how_to_read = "Rows are vectors, columns are dimensions; blue is above 0, red below."
    published = (
        *(
            Row(
                "Table 1",
                f"{variant}, sigma {sigma}",
                "random-objects",
                variant,
                {"data.sigma": sigma},
                {"nrmse": (error, None)},
            )
            for variant, errors in (
                ("SA", (0.44, 0.53, 0.65)),
                ("SA-SH", (0.27, 0.32, 0.41)),
                ("SA-EMD", (0.23, 0.52, 1.04)),
                ("SA-MESH", (0.24, 0.27, 0.31)),
            )
            for sigma, error in zip((1.0, 0.1, 0.01), errors, strict=True)
        ),
        Row(
            "Appendix, objective",
            "SA-MESH, learned objective",
            "random-objects",
            "SA-MESH",
            # The paper does not name the task: this is the shortest.
            {"transport.objective": "learned"},
        ),
    )
    settings: RandomObjectsSettings
    settings_type = RandomObjectsSettings
    goal = Goal("nrmse", higher=False)

    @classmethod
    def preset(cls, variant: str, preset: str) -> RandomObjectsSettings:
        """``paper`` has our learning rates, hidden width and lambda, as the paper gives none."""
        transport = VARIANTS[variant].transport()
        if isinstance(transport, MeshSettings):
            # Larger learning rates fail at small sigma.
            transport = replace(transport, lr=1.0)
        if preset == "paper" and isinstance(transport, MeshSettings):
            transport = replace(transport, **_MESH)
        paper = RandomObjectsSettings(
            task=cls.name,
            variant=variant,
            preset="paper",
            steps=20_000,
            val_every=1000,
            save_every=1000,
            data=VectorData(train_size=64_000, val_size=1024, test_size=10_000),
            transport=transport,
            optim=_OPTIM.get(variant, Optim(lr=1e-3)),
            hardware=Hardware(threads=1),
        )
        if preset == "paper":
            return paper
        return replace(
            paper,
            preset="quick",
            steps=800,
            val_every=100,
            save_every=100,
            log_every=20,
            data=replace(paper.data, train_size=None, val_size=512, test_size=2048),
            optim=Optim(lr=3e-3, cosine=True),
        )

    def build(self) -> nn.Module:
        """A set copier."""
        s = self.settings
        return SetCopier(
            s.data.dim,
            s.data.n_objects,
            s.transport.build(),
            n_iters=s.model.n_iters,
            mlp_dim=s.model.mlp_dim,
            init=INITIALIZERS[s.model.init](),
            implicit=s.model.implicit,
            raw_values=s.model.raw_values,
            rescale=s.model.rescale,
            head=s.model.head,
            slot_dim=s.model.slot_dim,
        )

    @property
    def loss_scale(self) -> float:
        """Factor of the squared error in the loss."""
        return self.settings.data.sigma**-2 if self.settings.relative_loss else 1.0

    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """The world; each split has its own sets."""
        d = self.settings.data
        n = {"train": d.train_size, "val": d.val_size, "test": d.test_size}[split]
        world = RandomObjects(
            seed=world_seed(d.seed, split),
            device=device,
            sigma=d.sigma,
            n_objects=d.n_objects,
            n_background=d.n_background,
            dim=d.dim,
        )
        return world, n

    def losses(
        self, model: nn.Module, sample: VectorSample, noise: torch.Generator
    ) -> dict[str, Tensor]:
        """Mean squared error of the best one-to-one match."""
        slots = model(sample.inputs, generator=noise).slots
        return {"loss": self.loss_scale * match(slots, sample.targets).cost.mean()}

    def metrics(self) -> "dict[str, Metric]":
        """RMSE over sigma."""
        from slotmesh.metrics import NormalisedRMSE

        return {"nrmse": NormalisedRMSE(self.settings.data.sigma)}

    def judge(
        self,
        model: nn.Module,
        sample: VectorSample,
        noise: torch.Generator,
        metrics: "dict[str, Metric]",
    ) -> dict[str, Tensor]:
        """Update the metrics; loss and error of each set."""
        slots = model(sample.inputs, generator=noise).slots
        metrics["nrmse"].update(slots, sample.targets)
        return {
            "loss": self.loss_scale * match(slots, sample.targets).cost,
            "nrmse": metrics["nrmse"].per_image(slots, sample.targets),  # pyright: ignore
        }

    def blind(self, sample: VectorSample) -> nn.Module:
        """Zeros, the mean of the objects."""
        return Constant(slots=torch.zeros_like(sample.targets[0]))

    def picture(self, model: nn.Module, sample: VectorSample, noise: torch.Generator) -> "Image":
        """Targets and what was copied, as rows of numbers in colour."""
        from slotmesh.report.pictures import vectors

        copied = self._copied(model, sample, noise)
        return vectors(sample.targets, copied, most=3 * self.settings.data.sigma)

    def mosaic(self, model: nn.Module, sample: VectorSample, noise: torch.Generator) -> "Mosaic":
        """A picture of one set, for reports."""
        from slotmesh.report.mosaic import vector_mosaic

        [copied] = self._copied(model, sample, noise)
        return vector_mosaic(sample.targets[0], copied, most=3 * self.settings.data.sigma)

    def _copied(self, model: nn.Module, sample: VectorSample, noise: torch.Generator) -> Tensor:
        """The copies, in the order of the targets."""
        slots = model(sample.inputs, generator=noise).slots
        order = match(sample.targets, slots).partner
        return slots.gather(-2, order.unsqueeze(-1).expand_as(slots))
