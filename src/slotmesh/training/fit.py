"""``slotmesh.fit``: from images to a model, in one call."""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from rich.console import Console
from torch import Tensor

from slotmesh.models import FeatureDiscovery, ObjectDiscovery
from slotmesh.models.segmentation import read_image
from slotmesh.ops import checks
from slotmesh.readers.images import Square
from slotmesh.training.loop import run_train
from slotmesh.training.places import place_of
from slotmesh.training.tasks import preset

# Images are resized when they are read, so the files need not be larger.
_MOST_SIDE = 1024
# The arguments of fit by the flags of the command, which errors name.
_NAMES = {
    "--data.root": "images",
    "--model.n-slots": "n_slots",
    "--steps": "steps",
    "--data.size": "size",
    "--data.batch-size": "batch_size",
    "--variant": "variant",
    "--model.backbone": "backbone",
    "--preset": "start",
    "--data.masks": "masks",
    "--seed": "seed",
    "--out": "out",
    "--device": "device",
}


def fit(
    images: Any,
    n_slots: int = 7,
    *,
    steps: int | None = None,
    size: int | None = None,
    batch_size: int | None = None,
    variant: str = "SA-MESH",
    backbone: Path | str | None = None,
    start: Literal["quick", "paper"] = "quick",
    square: Square | None = None,
    masks: Path | str | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    device: str = "auto",
    progress: bool = True,
) -> ObjectDiscovery | FeatureDiscovery:
    """Train a model that finds the objects in your images, without labels.

    The same as ``slotmesh train images`` (with a backbone, ``slotmesh train features``) in a
    temporary folder. The defaults of steps, size and shape depend on the images.

    Args:
        images: A folder; a list of paths, Pillow images or arrays; a tensor ``(N, 3, H, W)`` or an
            array ``(N, H, W, 3)``, of uint8 or of floats from 0 to 1; or a ``torch`` dataset whose
            items are images, tuples that begin with one, or dicts with an ``"image"``. Pass at
            least three images: some are held out.
        n_slots: Number of slots: the largest number of objects, plus one for the background.
        steps: Number of training steps; the default depends on the number of images.
        size: Width and height to which images are resized. Default: 64, or less with ``"paper"`` if
            the images are smaller; with a backbone, that of the backbone.
        batch_size: Images per step.
        variant: Variant of slot attention: SA, SA-SH, SA-EMD or SA-MESH.
        backbone: Reconstruct the features of this frozen vision model instead of pixels, which
            photographs need: its folder, or a name such as ``facebook/dinov2-small``.
        start: Preset with the defaults of all other settings: ``"quick"`` adapts weights that come
            with slotmesh, in minutes on a CPU; ``"paper"`` trains from scratch as in the paper, for
            hours on a GPU.
        square: How to make images square: ``"crop"`` keeps the centre, ``"squeeze"`` the whole
            image; the default depends on their shape.
        masks: Folder of masks for metrics, if ``images`` is a folder; by default its subfolder
            ``masks``.
        seed: Seed of the initial weights, the order of the images and all noise.
        out: Folder for the run, to evaluate or report on it later; default a temporary one.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        progress: Whether to show progress.

    Returns:
        The trained model, in evaluation mode. ``model.segment(image)`` shows what it finds.

    Raises:
        ValueError: If there are no images, or a setting is wrong.

    Example:
        >>> import slotmesh, torch
        >>> images = torch.rand(8, 3, 16, 16)
        >>> model = slotmesh.fit(images, n_slots=3, steps=2, progress=False)
        >>> model.segment(images[0]).masks.shape
        torch.Size([3, 16, 16])
    """
    if backbone is not None and not isinstance(backbone, str | Path):  # pyright: ignore
        raise ValueError(
            f"fit: backbone is a {type(backbone).__name__}, expected the folder or the name of a "
            "model. For a module, train FeatureDiscovery(FrozenFeatures(module, resolution=...)) "
            "in your own loop."
        )
    with tempfile.TemporaryDirectory(prefix="slotmesh-") as temporary, _names(temporary):
        place = place_of(device)
        accelerator = "cpu" if place.type == "cpu" else "gpu"
        folder = Path(temporary) / "run" if out is None else Path(out)
        if isinstance(images, str | Path):
            root = Path(images)
        else:
            beside = folder.with_name(f"{folder.name}-images")
            root = _write(images, beside, max(_MOST_SIDE, 2 * (size or 0)))
        task = "images" if backbone is None else "features"
        truth = None if masks is None else Path(masks)
        settings: Any = preset(task, variant, start, root=root, size=size, masks=truth)
        data: dict[str, Any] = {"root": root, "masks": truth}
        model: dict[str, Any] = {"n_slots": n_slots}
        if backbone is not None:
            model["backbone"] = str(backbone)
            data |= {"size": size, "cache": folder.with_name(f"{folder.name}-features")}
        data |= {"square": square} if square is not None else {}
        data |= {"batch_size": batch_size} if batch_size is not None else {}
        changes: dict[str, Any] = {"seed": seed, "out": folder}
        if steps is not None:
            steps = checks.as_count("fit", "steps", steps, 1)
            every = max(1, steps // 5)
            changes |= {"steps": steps, "val_every": every, "save_every": every}
            changes["optim"] = replace(
                settings.optim, warmup=min(settings.optim.warmup, steps // 5)
            )
        settings = replace(
            settings,
            data=replace(settings.data, **data),
            model=replace(settings.model, **model),
            hardware=replace(settings.hardware, accelerator=accelerator),
            **changes,
        )
        run = run_train(settings, _Screen(hidden=str(temporary), quiet=not progress))
        found = run.load_model(place)
    assert isinstance(found, ObjectDiscovery | FeatureDiscovery)
    return found


@contextlib.contextmanager
def _names(temporary: str) -> Iterator[None]:
    """Let errors name the arguments of fit instead of flags and a temporary folder."""
    try:
        yield
    except ValueError as error:
        said = str(error).replace(str(Path(temporary) / "run-images"), "images")
        for flag, name in _NAMES.items():
            said = said.replace(flag, name)
        said = said.replace(", or pass --overwrite", "")
        if said == str(error):
            raise
        raise ValueError(f"fit: {said}") from error


class _Screen(Console):
    """Shows everything except lines about a temporary folder, which is deleted afterwards."""

    def __init__(self, *, hidden: str, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._hidden = hidden

    def print(self, *objects: Any, **options: Any) -> None:
        """Print unless a line names the folder."""
        if not any(self._hidden in str(one) for one in objects):
            super().print(*objects, **options)


def _write(images: Any, folder: Path, most: int) -> Path:
    """Write images to a folder, which training reads like any other."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(
            f"fit: {folder}, where the images of the run go, is not empty. Choose another out."
        )
    n = 0
    for n, image in enumerate(_items(images), 1):
        shown = Image.fromarray(np.ascontiguousarray(read_image("fit", image).movedim(0, -1)))
        shown.thumbnail((most, most))
        shown.save(folder / f"{n:07d}.png", compress_level=1)
    if n < 3:
        with contextlib.suppress(OSError):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        raise ValueError(f"fit: got {n} images, expected at least 3: some are held out.")
    return folder


def _items(images: Any) -> Iterator[Any]:
    """Iterate over the images of any kind of collection."""
    if isinstance(images, Tensor | np.ndarray):
        if images.ndim != 4:
            expected = "(N, 3, H, W)" if isinstance(images, Tensor) else "(N, H, W, 3)"
            raise ValueError(
                f"fit: images have shape {tuple(images.shape)}, expected {expected}: several "
                "images of one size."
            )
        yield from images
        return
    if isinstance(images, Mapping):
        raise ValueError("fit: images is a dict, expected a list of them: pass its values.")
    if hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        # A dataset need not be iterable, nor raise an IndexError at its end.
        found: Iterable[Any] = (images[i] for i in range(len(images)))
    elif isinstance(images, Iterable):
        found = images
    else:
        raise ValueError(
            f"fit: images is a {type(images).__name__}, expected a folder, a list of paths, a "
            "tensor (N, 3, H, W) or a dataset."
        )
    for item in found:
        if isinstance(item, dict):
            if "image" not in item:
                raise ValueError(f"fit: an item has {', '.join(map(str, item))}, expected 'image'.")
            yield item["image"]
        else:
            yield item[0] if isinstance(item, tuple | list) and len(item) else item
