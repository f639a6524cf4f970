"""``slotmesh segment``: what a trained model finds in your images."""

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import tyro
from PIL import Image, ImageDraw
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from slotmesh.files import make_folder, write_whole
from slotmesh.models import FeatureDiscovery, ObjectDiscovery, Segmentation, VideoObjectDiscovery
from slotmesh.models.merging import check_tolerance
from slotmesh.progress import Count
from slotmesh.readers import BadRecord, clips, photos
from slotmesh.readers.errors import one_line
from slotmesh.readers.listing import describe, find_files
from slotmesh.readers.videos import CLIPS, left_out
from slotmesh.report.drawing import write
from slotmesh.training.places import place_of
from slotmesh.training.runs import open_run
from slotmesh.training.settings import at_least, at_most
from slotmesh.training.weights import locate

_MOST_ROWS = 40
# Fewest frames of a video on the sheet, if there are many videos.
_FEWEST_FRAMES = 4
# Largest width of an overlay in pixels: many browsers and viewers refuse wider images.
_WIDEST = 16384
# Most frames of a clip: the masks of all of them are in memory at once.
_MOST_FRAMES = 64
# The value of pixels outside the square that the model saw; slots count from 0.
_OUTSIDE = 255
_CAPTION = 20
_GAP = 8


@dataclass(frozen=True)
class Segment:
    """Find objects in your images: masks, overlays, slots, and a sheet to look at."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run, a checkpoint, an export, or the name of weights that come with slotmesh, such as
    multi-dsprites-sa-mesh."""
    images: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        tyro.conf.arg(metavar="IMAGE [IMAGE ...]", help_behavior_hint="(required)"),
    ]
    """PNG, JPEG, WebP, BMP, TIFF or GIF files, or folders of them; for a video model, mp4 clips, or
    images, of which those of one folder are the frames of a video, in order."""
    out: Path = Path("segments")
    """Folder to write to: NAME-mask.png, NAME-overlay.png and NAME.npz per image, and sheet.png,
    which shows the first 40 (of a video, 4 to 40 frames)."""
    seed: int = 0
    """Seed of the initial slots."""
    n_slots: int | None = None
    """Number of slots; by default, as in training."""
    merge: float | None = None
    """Merge slots whose pictures differ by at most this, on a scale from 0 to 1, such as 0.05: a
    background that several slots share becomes one segment. This also merges objects of the same
    colour."""
    square: Literal["auto", "crop", "squeeze"] = "auto"
    """How to make images square: crop keeps the centre, squeeze the whole image; auto: as in
    training. Masks have the size of the image, and are transparent outside the crop."""
    device: str = "auto"
    """cpu, cuda, or auto."""


def run_segment(settings: Segment, console: Console | None = None) -> Path:
    """Segment all images, write the files, and return the path of the sheet.

    Raises:
        ValueError: If the model cannot segment, or no image can be read.
    """
    console = Console() if console is None else console
    if not settings.images:
        raise ValueError("Got no image, expected at least one: slotmesh segment MODEL IMAGE...")
    at_least("seed", settings.seed, 0)
    if settings.n_slots is not None:
        at_least("n_slots", settings.n_slots, 1)
        at_most("n_slots", settings.n_slots, _OUTSIDE)
    if settings.merge is not None:
        check_tolerance("--merge", settings.merge)
    run = open_run(locate(settings.model))
    model: Any = run.load_model(place_of(settings.device))
    if not isinstance(model, ObjectDiscovery | FeatureDiscovery | VideoObjectDiscovery):
        raise ValueError(
            f"{settings.model} is a {run.settings.task} model, which produces no masks; expected "
            "an object discovery model, such as one from `slotmesh train images`."
        )
    square = settings.square
    if square == "auto":
        square = getattr(run.settings.data, "square", "squeeze")
    options: dict[str, Any] = {"seed": settings.seed, "square": square}
    options |= {"n_slots": settings.n_slots}
    if settings.merge is not None:
        if isinstance(model, FeatureDiscovery):
            raise ValueError(
                f"--merge compares what slots look like, but {settings.model} reconstructs "
                "features, not pixels. Leave it out."
            )
        options |= {"merge": settings.merge}
    video = isinstance(model, VideoObjectDiscovery)
    endings = (*photos.ENDINGS, *CLIPS) if video else photos.ENDINGS
    paths, names = _expanded(settings.images, endings)
    _check_apart(settings.out, [*settings.images, *(path.parent for path in paths)])
    clip = next((path for path in paths if path.suffix.lower() in CLIPS), None)
    if clip is not None and not video:
        raise ValueError(
            f"{clip} is a clip, but {settings.model} is a model of images. Pass its frames as "
            "images, or a model that `slotmesh train video` made."
        )
    works = _works(paths, names, video=video)
    make_folder(settings.out)
    for folder in filter(Path.is_dir, settings.images):
        if said := left_out(folder, folder / "masks", video=video):
            console.print(said, markup=False, highlight=False, soft_wrap=True)
    # Pictures instead of masks, as those of 40 photographs would not fit into memory.
    shown: list[tuple[str, Image.Image]] = []
    bad: list[BadRecord] = []
    with Count(console, "segmenting", len(works)) as count:
        for work in works:
            count.advance()
            try:
                content, size, frames, said = work.load(getattr(run.settings.data, "stride", 1))
                one = model.segment(content if video else content[0], **options)
            except BadRecord as error:
                bad.append(error)
                console.print(f"Skipped {escape(str(error))}", highlight=False, soft_wrap=True)
                continue
            if said:
                console.print(said, markup=False, highlight=False, soft_wrap=True)
            _write(settings.out, work.name, one, names=frames, size=size)
            if len(shown) < _MOST_ROWS:
                few = _thinned(one, max(_FEWEST_FRAMES, _MOST_ROWS // len(works)))
                # Where its results are, with the ending of the image.
                caption = Path(work.name).with_name(work.paths[0].name).as_posix()
                shown.append((one_line(caption), few.picture()))
    what = "video" if clip is not None or (video and len(works) > 1) else "image"
    if not shown:
        raise ValueError(
            f"The {'video' if video else 'image'} cannot be read."
            if len(works) == 1
            else f"None of the {len(works)} {what}s can be read."
        )
    sheet = settings.out / "sheet.png"
    write_whole(sheet, _png(_sheet(shown)))
    n = len(works if what == "video" else paths) - len(bad)
    said = f"{n} {what}{'' if n == 1 else 's'}" + (f", skipped {len(bad)}" if bad else "")
    cut = f", with the first {len(shown)}" if len(shown) < len(works) - len(bad) else ""
    console.print(
        f"Segmented {said}. Written: [bold]{escape(str(sheet))}[/bold]{cut}",
        highlight=False,
        soft_wrap=True,
    )
    return sheet


class _Work(NamedTuple):
    """Images that are segmented together: a single one, the frames of a video, or a clip."""

    name: str
    paths: list[Path]
    frames: list[str]
    """The name of each image."""

    def load(self, stride: int) -> tuple[Any, tuple[int, int], list[str], str]:
        """Return the input of the model, its height and width, frame names, and what is left out.

        Args:
            stride: Distance between the frames that are read from a clip.
        """
        first = self.paths[0]
        if first.suffix.lower() not in CLIPS:
            sizes = {photos.photo_size(path): None for path in self.paths}
            if len(sizes) > 1:
                some = " and ".join(f"{width} x {height}" for height, width in [*sizes][:2])
                raise BadRecord(first.parent, None, f"its frames differ in size: {some}")
            return self.paths, next(iter(sizes)), self.frames, ""
        n = clips.count_frames(first)
        if n == 0:
            raise BadRecord(first, None, "it has no frames")
        numbers = range(0, n, stride)[:_MOST_FRAMES]
        rest = f"Of {first}, which has {n} frames, those after frame {numbers[-1]} are left out."
        frames = clips.load_frames(first, numbers)
        height, width = frames[0].shape[:2]
        cut = numbers.stop < n
        return frames, (height, width), [f"{self.name}/{k}" for k in numbers], rest if cut else ""


def _works(paths: Sequence[Path], names: Sequence[str], *, video: bool) -> list[_Work]:
    """One piece of work per image or clip; for a video model, a folder of images is one video."""
    found: dict[str | Path, _Work] = {}
    for path, name in zip(paths, names, strict=True):
        alone = not video or path.suffix.lower() in CLIPS
        work = found.setdefault(name if alone else path.parent, _Work(name, [], []))
        work.paths.append(path)
        work.frames.append(name)
    return list(found.values())


def _expanded(images: Sequence[Path], endings: Sequence[str]) -> tuple[list[Path], list[str]]:
    """All files, and the names of their results, which keep their subfolders."""
    found: list[Path] = []
    names: list[str] = []
    for path in images:
        if path.is_dir():
            # Where `slotmesh train images` looks for masks.
            masks = path / "masks"
            inside = find_files(path, endings, skip=masks)
            if not inside:
                said = describe(path, masks)
                clips_too = " and no mp4 clips" if ".mp4" in endings else ""
                raise ValueError(f"{path} has no {photos.KINDS} images{clips_too}: {said}.")
            found += [path / name for name in inside]
            names += [name.rpartition(".")[0] for name in inside]
        elif not path.exists():
            raise ValueError(f"{path} does not exist, expected an image or a folder of images.")
        else:
            found.append(path)
            names.append(path.stem)
    return found, _unique(names)


def _unique(names: Sequence[str]) -> list[str]:
    """Make names unique: a.jpg and a.png, or files of several folders, share a name."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}-{n}" for n in itertools.count(2))
        found[next(one for one in itertools.chain([name], numbered) if one not in found)] = None
    return list(found)


def _check_apart(out: Path, inputs: Sequence[Path]) -> None:
    """Refuse to write to the folder of the images: the next call would segment its results, too."""
    if out.resolve() in {path.resolve() for path in inputs}:
        raise ValueError(
            f"--out is {out}, which holds images to segment; expected another folder. Choose one "
            "with --out."
        )


def _write(
    out: Path, name: str, found: Segmentation, *, names: Sequence[str], size: tuple[int, int]
) -> None:
    """Write the mask of each frame under its own name, and the rest under that of the first."""
    rows, columns = found.image.shape[-2:]
    top, left = (size[0] - rows) // 2, (size[1] - columns) // 2
    for frame in names:
        (out / frame).parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        slots=found.slots.numpy(),
        masks=_rounded(found.masks).numpy(),
        attention=found.attention.numpy(),
        labels=found.labels.to(torch.uint8).numpy(),
        box=np.array([top, left, top + rows, left + columns]),
    )
    # Masks come last: an overlay beside its arrays says that they are no images, even after a kill.
    write_whole(out / f"{name}.npz", buffer.getvalue())
    overlay = found.overlay()
    if len(names) > 1:
        overlay.thumbnail((_WIDEST, overlay.height))
    write_whole(out / f"{name}-overlay.png", _png(overlay))
    for frame, mask in zip(names, found.indexed(), strict=True):
        content = _png(mask)
        if mask.size != (size[1], size[0]):
            whole = Image.new("P", (size[1], size[0]), _OUTSIDE)
            whole.putpalette(mask.getpalette() or [])
            whole.paste(mask, (left, top))
            content = _png(whole, transparency=_OUTSIDE)
        write_whole(out / f"{frame}-mask.png", content)


def _rounded(masks: Tensor) -> Tensor:
    """Round masks to 1 / 256 in float16: enlarged masks then compress to a fiftieth."""
    return masks.half().mul_(256).round_().div_(256)


def _thinned(found: Segmentation, most: int) -> Segmentation:
    """Keep at most this many frames of a video, evenly spaced; an image stays as it is."""
    if found.image.ndim == 3 or len(found.image) <= most:
        return found
    which = torch.linspace(0, len(found.image) - 1, most).round().long()
    return replace(found, image=found.image[which], masks=found.masks[which])


def _sheet(pictures: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """Arrange pictures below each other, each with its name."""
    width = max(picture.width for _, picture in pictures) + 2 * _GAP
    height = sum(picture.height + _CAPTION + _GAP for _, picture in pictures) + _GAP
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    y = _GAP
    for name, picture in pictures:
        write(pen, (_GAP, y), name, bold=True)
        sheet.paste(picture, (_GAP, y + _CAPTION))
        y += picture.height + _CAPTION + _GAP
    return sheet


def _png(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", **options)
    return buffer.getvalue()
