"""Any folder of images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from slotmesh.ops import checks
from slotmesh.readers import photos
from slotmesh.readers._table import ArrayRecord, stack
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.listing import SPLITS, check_folder, describe, find_files, split_names
from slotmesh.readers.reader import Reader, Split, check_range
from slotmesh.worlds.sample import Sample

Square = Literal["crop", "squeeze"]


class ImageReader(Reader):
    """A folder of PNG, JPEG, WebP, BMP, TIFF or GIF images, nested folders included.

    Images are sorted by name; other files and hidden folders are ignored. They are rotated
    according to their EXIF orientation, transparent pixels are laid over white, and grey, palette,
    CMYK and 16-bit images are converted to RGB.

    Masks are optional PNG files with the names and sizes of the images: ``masks/a/b.png`` is the
    mask of ``a/b.jpg``. 0 (or black) is the background; every other index, grey level or colour is
    an object. An image without a mask gets a mask of zeros.

    Args:
        root: The folder.
        split: ``"train"``, ``"val"`` and ``"test"`` are about 80%, 10% and 10% of the images,
            chosen by a hash of their names, so that adding images moves none of the others.
            ``"all"``; or a range of all images.
        size: Width and height of the images.
        square: ``"crop"`` keeps the central square, ``"squeeze"`` the whole image.
        masks: Folder of the masks; default ``root/masks`` if it exists.
        seed: Seed of the split: another seed divides the images differently.

    Example:
        >>> from slotmesh.readers import ImageReader
        >>> reader = ImageReader("photos", split="val", size=64)  # doctest: +SKIP
        >>> reader.sample([0, 1]).image.shape  # doctest: +SKIP
        torch.Size([2, 3, 64, 64])
    """

    name: ClassVar[str] = "images"
    splits: ClassVar[Mapping[str, range]] = {}
    max_objects = photos.MOST_OBJECTS

    def __init__(
        self,
        root: Path | str,
        split: Split = "train",
        *,
        size: int = 64,
        square: Square = "crop",
        masks: Path | str | None = None,
        seed: int = 0,
    ) -> None:
        self.size = check_options("ImageReader", size, square)
        self.root = Path(root)
        self.square = square
        self.split = split
        self.masks = find_masks("ImageReader", self.root, masks)
        self.has_masks = self.masks is not None
        everything = find_images(self.root, self.masks)
        self._masked = _pair_masks(self.masks, everything)
        self.names = chosen("ImageReader", self.root, everything, split, "images", seed)
        """Names of the split's images, relative to the root."""

    def __len__(self) -> int:
        return len(self.names)

    def make(self, index: Sequence[int]) -> Sample:
        """Read the records of these indices, all of them within the split."""
        return stack([self._record(self.names[i]) for i in index], index, str(self.root))

    def forget_masks(self) -> None:
        """Stop reading masks: training does not need them."""
        self._masked = {}

    def check_masks(self) -> None:
        """Compare the sizes of the split's masks and images, from their headers.

        Raises:
            BadRecord: If the size of a mask differs from that of its image; names the mask.
        """
        for name in self.names:
            if name in self._masked:
                try:
                    size = photos.photo_size(self.root / name)
                except BadRecord:
                    # An unreadable image is skipped when it is read, together with its mask.
                    continue
                mask = self._masked[name]
                _check_size(photos.photo_size(mask), size, mask)

    def _record(self, name: str) -> ArrayRecord:
        path = self.root / name
        has_mask = name in self._masked
        # The mask must have the size of the whole image.
        pixels = photos.load_photo(path, None if has_mask else 2 * self.size)
        crop = self.square == "crop"
        image = photos.to_square(pixels, self.size, crop=crop)
        labels = np.zeros((self.size, self.size), np.uint8)
        if has_mask:
            at = self._masked[name]
            codes = photos.load_codes(at)
            _check_size(codes.shape, pixels.shape[:2], at)
            labels = photos.to_square(photos.to_labels(codes, at), self.size, crop=crop)
        present = np.isin(np.arange(1, self.max_objects + 1), labels)
        return ArrayRecord(image, labels, {}, present)


def check_options(reader: str, size: int, square: str) -> int:
    """Check the options that all readers of folders have; returns the size."""
    if square not in ("crop", "squeeze"):
        raise ValueError(f"{reader}: square is {square!r}, expected 'crop' or 'squeeze'.")
    return checks.as_count(reader, "size", size, 1)


def find_masks(reader: str, root: Path, masks: Path | str | None) -> Path | None:
    """The folder of masks: the given one, or ``masks`` in the root if it exists."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise ValueError(f"{reader}: {root} {what}, expected a folder.")
    check_folder(root)
    if masks is None:
        return root / "masks" if (root / "masks").is_dir() else None
    if not Path(masks).is_dir():
        raise ValueError(f"{reader}: {masks}, the folder of the masks, does not exist.")
    return Path(masks)


def find_mask_files(masks: Path) -> list[str]:
    """Names of all masks in their folder, sorted.

    Raises:
        ValueError: If there is none, or one of another format than PNG.
    """
    found = find_files(masks, photos.ENDINGS)
    for name in found:
        if not name.lower().endswith(".png"):
            reason = "it is in the folder of masks, expected PNG: other formats can change labels"
            raise BadRecord(masks / name, None, reason)
    if not found:
        raise ValueError(
            f"{masks}, the folder of the masks, has no PNG files: {describe(masks)}. Put masks "
            "there, or take the folder away."
        )
    return found


def find_images(root: Path, masks: Path | None) -> list[str]:
    """Names of all images, sorted.

    Raises:
        ValueError: If there are none; says what the folder contains instead.
    """
    found = find_files(root, photos.ENDINGS, skip=masks)
    if not found:
        raise ValueError(
            f"ImageReader: {root} has no {photos.KINDS} images: {describe(root, masks)}. Pass the "
            "folder that they are in."
        )
    return found


def chosen(
    reader: str, root: Path, names: list[str], split: Split, what: str, seed: int = 0
) -> list[str]:
    """The names in a split, or in a range of all names."""
    if isinstance(split, range):
        check_range(reader, split)
        return names[split.start : split.stop : split.step]
    if split not in SPLITS:
        known = ", ".join(map(repr, SPLITS))
        raise ValueError(f"{reader}: split is {split!r}, expected one of {known}, or a range.")
    try:
        return split_names(names, split, seed)
    except ValueError as error:
        raise ValueError(f"{reader}: {root} has too few {what}: {error}.") from None


def _pair_masks(masks: Path | None, names: list[str]) -> dict[str, Path]:
    """The mask of each image that has one."""
    if masks is None:
        return {}
    of = {name.rpartition(".")[0]: masks / name for name in find_mask_files(masks)}
    pairs = {name: of[stem] for name in names if (stem := name.rpartition(".")[0]) in of}
    alone = sorted(set(of.values()) - set(pairs.values()))
    if alone:
        wanted = alone[0].relative_to(masks).with_suffix("")
        reason = f"it is a mask without its image, expected an image named {wanted}"
        raise BadRecord(alone[0], None, reason)
    return pairs


def _check_size(mask: tuple[int, ...], image: tuple[int, ...], path: Path) -> None:
    if tuple(mask) != tuple(image):
        raise BadRecord(
            path,
            None,
            f"the mask has {mask[1]} x {mask[0]} pixels, its image {image[1]} x {image[0]}, "
            "expected the same",
        )
