"""Object discovery on your own images: any folder, with or without masks."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from slotmesh.readers import photos
from slotmesh.readers.images import chosen, find_images
from slotmesh.training.tasks.defaults import (
    most_objects,
    size_of,
    spread,
    suited_to,
    suited_to_file,
    with_schedule,
)
from slotmesh.training.tasks.discovery import Discovery, DiscoverySettings
from slotmesh.training.tasks.experiment import S
from slotmesh.training.tasks.folder_task import (
    FolderData,
    FolderTask,
    is_file,
    masks_of,
    run_folder,
)
from slotmesh.training.tasks.image_model import OwnImageModel
from slotmesh.training.variants import VARIANTS, MeshSettings

# What ``quick`` starts from: weights for Multi-dSprites, which already find plain shapes.
_WEIGHTS = {"SA": "multi-dsprites-sa"}
_OTHER_WEIGHTS = "multi-dsprites-sa-mesh"
_SLOTS = 7


@dataclass(frozen=True)
class ImagesSettings(DiscoverySettings):
    """Find the objects in a folder of your own images."""

    preset: Literal["quick", "paper"] = "quick"
    """Defaults of all other settings: quick adapts weights that come with slotmesh to your images,
    in minutes on 2 CPU cores; paper trains from scratch, as in the paper on Multi-dSprites, in
    hours on a GPU."""
    data: FolderData = field(default_factory=FolderData)  # pyright: ignore
    """The data to train and evaluate on."""
    model: OwnImageModel = field(default_factory=OwnImageModel)  # pyright: ignore
    """The network: encoder, slot attention, decoder or head."""

    @property
    def folder(self) -> Path:
        """The folder of the run, with the name of the images' folder in it."""
        return run_folder(self) if self.out is None else self.out


class Images(FolderTask, Discovery):
    """A folder of images."""

    name = "images"
    title = "Images"
    settings: ImagesSettings  # pyright: ignore[reportIncompatibleVariableOverride]
    settings_type = ImagesSettings
    max_objects = photos.MOST_OBJECTS

    def __init__(self, settings: ImagesSettings) -> None:
        super().__init__(settings)
        self._begin("images")

    @classmethod
    def preset(cls, variant: str, preset: str) -> ImagesSettings:
        """Settings for 1,000 images, which :meth:`suited` adapts."""
        quick = preset == "quick"
        transport = VARIANTS[variant].transport()
        if isinstance(transport, MeshSettings):
            transport = replace(transport, grad="implicit")
        weights = _WEIGHTS.get(variant, _OTHER_WEIGHTS) if quick else None
        start = ImagesSettings(
            task=cls.name,
            variant=variant,
            preset="quick" if quick else "paper",
            log_every=10 if quick else 100,
            data=FolderData(batch_size=8 if quick else 64, size=64),
            model=OwnImageModel(n_slots=_SLOTS, start=weights),
            transport=transport,
        )
        return with_schedule(start, 1000)

    @classmethod
    def suited(cls, start: S, root: Path, size: int | None = None, masks: Path | None = None) -> S:
        """Adapt steps, size and shape to the images, and the number of slots to the masks."""
        if is_file(root):
            return suited_to_file(start, root)
        masks = masks_of(root, masks)
        names = find_images(root, masks)
        shapes = [shape for name in spread(names) if (shape := size_of(root / name))]
        objects = most_objects(sorted(masks.rglob("*.png"))) if masks else None
        n = len(chosen("--data.root", root, names, "train", "images"))
        return suited_to(start, n, shapes, objects, size)
