"""Object discovery on video (section 5.4, Table 5): slots are passed from frame to frame."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from slotmesh.models import VideoObjectDiscovery, to_unit
from slotmesh.training.published import Row, percent
from slotmesh.training.settings import ImageData
from slotmesh.training.tasks.discovery import Discovery, DiscoverySettings, with_lr
from slotmesh.training.tasks.experiment import Source, Split
from slotmesh.training.tasks.image_model import ImageModel
from slotmesh.training.tasks.sources import open_source
from slotmesh.training.variants import (
    VARIANTS,
    LearnedNoiseSettings,
    SinkhornSettings,
    TransitionSettings,
)
from slotmesh.worlds import Sample

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True)
class VideoDiscoverySettings(DiscoverySettings):
    """Find and follow the objects in two frames of a video (Table 5)."""

    transition: TransitionSettings = field(default_factory=TransitionSettings)

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        super().check()
        self.transition.build()


class VideoDiscovery(Discovery):
    """Reconstruct every frame; measured by masks, and by whether objects keep their slots.

    Subclasses choose the frames.
    """

    settings: VideoDiscoverySettings  # pyright: ignore[reportIncompatibleVariableOverride]
    settings_type = VideoDiscoverySettings
    # Two frames of a real video may show this many different detections.
    max_objects = 14
    data = ImageData(train_size=9998, test_size=5000)
    model = ImageModel(n_slots=8)
    quick = (2000, 1024)
    # With 3 iterations, fewer runs find objects in as many steps.
    easy = ImageModel(n_slots=5, n_iters=2, channels=16, slot_dim=32, mlp_dim=64, he_init=True)
    frames: ClassVar[tuple[int, int]]
    """The frames that are used, of 128."""

    @classmethod
    def preset(cls, variant: str, preset: str) -> VideoDiscoverySettings:
        """``paper`` is the authors' code: cosine cost times 6, total mass 18, 8 slots."""
        start: Any = super().preset(variant, preset)
        transport = start.transport
        if isinstance(transport, SinkhornSettings):
            transport = replace(transport, cost="cosine", cost_scale=6.0, mass=18.0)
        transition = VARIANTS[variant].transition or TransitionSettings()
        start = replace(start, transport=transport, transition=transition)
        if preset == "paper":
            return replace(start, val_every=5 * start.val_every)
        return replace(
            start,
            data=replace(start.data, batch_size=8, test_size=128),
            transport=with_lr(transport, 4.0),
        )

    def build(self) -> nn.Module:
        """A video object discovery network."""
        s = self.settings
        return s.model.started(
            VideoObjectDiscovery(
                s.model.n_slots,
                s.transport.build(),
                transition=s.transition.build(),
                **s.model.options(s.data.size),
            )
        )

    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """The CLEVRER world, or CLEVRER."""
        data, frames = self.settings.data, self.frames
        return open_source(data, split, device, world=self.name, reader="clevrer", frames=frames)

    def losses(self, model: nn.Module, sample: Sample, noise: torch.Generator) -> dict[str, Tensor]:
        """Mean squared error of the frames, and the KL term of a learned transition."""
        video = to_unit(sample.image)
        out = model(sample.image, generator=noise)
        error = (out.reconstruction - video).square().mean()
        if not isinstance(self.settings.transition, LearnedNoiseSettings):
            return {"loss": error}
        kl = out.kl.mean()
        weight = self.settings.transition.kl_weight
        return {"loss": error + weight * kl, "reconstruction": error, "kl": kl}

    def reads(self, split: Split) -> frozenset[str]:
        """Masks, and which objects are present, are needed for metrics only."""
        return frozenset({"image"} if split == "train" else {"image", "mask", "present"})

    def metrics(self) -> "dict[str, Metric]":
        """Foreground ARI and mIoU over all frames, and temporal consistency."""
        from slotmesh.metrics import TemporalConsistency

        return super().metrics() | {"tc": TemporalConsistency(self.settings.model.n_slots)}

    def judge(
        self, model: nn.Module, sample: Sample, noise: torch.Generator, metrics: "dict[str, Metric]"
    ) -> dict[str, Tensor]:
        """Update the metrics; return loss and metrics of each video, averaged over frames."""
        video = to_unit(sample.image)
        out = model(sample.image, generator=noise)
        predicted = out.masks.argmax(2)
        rows = {"loss": (out.reconstruction - video).square().mean((1, 2, 3, 4))}
        for name, metric in metrics.items():
            # TC compares frames; the other metrics judge each frame.
            truth = (sample.mask, sample.present) if name == "tc" else (sample.mask,)
            metric.update(predicted, *truth)
            values = metric.per_image(predicted, *truth)  # pyright: ignore
            rows[name] = values if name == "tc" else values.nanmean(-1)
        return rows


def _rows(task: str, **results: tuple[Any, Any, Any]) -> tuple[Row, ...]:
    """Rows of Table 5: FG-ARI, FG-mIoU and temporal consistency by variant."""
    return tuple(
        Row(
            "Table 5",
            variant.replace("-fixed-", " fixed ").replace("-learned-", " learned "),
            task,
            variant,
            {},
            percent(fg_ari=ari, fg_miou=miou, tc=tc),
        )
        for variant, (ari, miou, tc) in results.items()
    )


class ClevrerShortDiscovery(VideoDiscovery):
    """CLEVRER-S, Table 5."""

    name = "clevrer-s"
    title = "CLEVRER-S"
    about = (
        "Objects found in two frames of a video, a short time apart (section 5.4, Table 5). TC: "
        "the share of objects that keep their slot."
    )
    frames = (0, 16)
    published = (
        *_rows(
            "clevrer-s",
            **{
                "SA": ((78.1, 14.0), (16.8, 9.8), (26.3, 22.5)),
                "SA-fixed-noise": ((71.0, 34.0), (17.1, 11.4), (42.8, 19.3)),
                "SA-learned-noise": ((80.2, 14.1), (13.2, 4.9), (21.3, 13.5)),
                "SA-SH": ((89.3, 2.3), (10.0, 2.8), (89.7, 2.4)),
                "SA-MESH": ((93.8, 1.0), (44.1, 7.1), (80.2, 10.1)),
            },
        ),
        Row(
            "Section 5.4",
            "SA-MESH, smaller MESH learning rate",
            "clevrer-s",
            "SA-MESH",
            # A quarter of the usual value, as the paper does not give it.
            {"transport.lr": 2.0},
            percent(fg_ari=(90.0, None), fg_miou=(22.7, None), tc=(95.1, None)),
        ),
    )


class ClevrerLongDiscovery(VideoDiscovery):
    """CLEVRER-L, Table 5."""

    name = "clevrer-l"
    title = "CLEVRER-L"
    about = (
        "Objects found in two frames of a video, a long time apart (section 5.4, Table 5). TC: "
        "the share of objects that keep their slot."
    )
    frames = (0, 127)
    published = _rows(
        "clevrer-l",
        **{
            "SA": ((69.6, 14.9), (12.2, 6.6), (12.8, 8.7)),
            "SA-fixed-noise": ((79.4, 5.9), (11.9, 6.2), (18.5, 13.0)),
            "SA-learned-noise": ((84.7, 5.7), (10.2, 1.2), (19.4, 7.7)),
            "SA-SH": ((82.9, 1.5), (7.0, 0.2), (26.8, 0.5)),
            "SA-MESH": ((92.9, 2.2), (54.4, 8.9), (55.4, 5.7)),
        },
    )
