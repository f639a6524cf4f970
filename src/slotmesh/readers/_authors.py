"""The layout of the MESH authors' HDF5 files."""

import numpy as np
import torch
from numpy.typing import NDArray

from slotmesh.readers._h5 import H5File, Rows
from slotmesh.readers._identity import Detection, Kind, join, visible
from slotmesh.readers._images import flatten_layers
from slotmesh.readers.labels import (
    AUTHORS_COLORS,
    AUTHORS_MATERIALS,
    AUTHORS_SHAPES,
    COLORS,
    MATERIALS,
    SHAPES,
)
from slotmesh.worlds.sample import Sample

_CODES = (
    [COLORS.index(c) if c else -1 for c in AUTHORS_COLORS],
    [MATERIALS.index(m) if m else -1 for m in AUTHORS_MATERIALS],
    [SHAPES.index(s) if s else -1 for s in AUTHORS_SHAPES],
)


def without_masks(images: NDArray[np.uint8], which: NDArray[np.int64]) -> Sample:
    """Make samples of images or videos without labels."""
    lead = images.shape[:-3]
    return Sample(
        image=torch.from_numpy(images),
        mask=torch.zeros(*lead, *images.shape[-2:], dtype=torch.uint8),
        objects={},
        present=torch.zeros(*lead, 1, dtype=torch.bool),
        index=torch.from_numpy(which),
    )


class AuthorsLayout:
    """``images``, perhaps ``masks`` (one image per object), ``num_objects`` and ``attributes``."""

    def __init__(self, file: H5File) -> None:
        images = file.dataset("images", np.uint8)
        video = images.ndim == 5
        if images.ndim not in (4, 5) or images.shape[-3] != 3 or 0 in images.shape[1:]:
            raise file.bad(
                f"images has shape {images.shape}, expected (N, 3, H, W) or (N, T, 3, H, W)"
            )
        self.n = images.shape[0]
        self.has_masks = bool({"masks", "num_objects"} & {*file.names()})
        if not self.has_masks:
            # An unsupervised method needs none.
            self.dataset, self._attributes, self._k, self.max_objects = "", False, 0, 1
            return
        masks = file.dataset("masks", np.uint8, images.ndim + 1)
        lead, size = images.shape[:-3], images.shape[-2:]
        k = masks.shape[-4]
        if masks.shape != (*lead, k, 1, *size):
            raise file.bad(f"masks has shape {masks.shape}, expected {(*lead, 'K', 1, *size)}")
        counts = file.dataset("num_objects")
        if counts.shape != lead or counts.dtype.kind not in "iu":
            raise file.bad(
                f"num_objects is {counts.dtype} {counts.shape}, expected whole numbers {lead}"
            )
        self._attributes = video and "attributes" in file.names()
        if self._attributes:
            attributes = file.dataset("attributes", np.uint8, 4)
            if attributes.shape != (*lead, k, 3):
                raise file.bad(f"attributes has shape {attributes.shape}, expected {(*lead, k, 3)}")
        self._k = k
        self.max_objects = k * images.shape[1] if self._attributes else k
        if not 1 <= self.max_objects <= 255:
            raise file.bad(f"masks has {k} objects in a frame, expected 1 to 255 in all")
        self.dataset = _dataset(self.n, images.shape[1] if video else None, k)

    def read(self, file: H5File, rows: Rows, which: NDArray[np.int64]) -> Sample:
        """Read some rows, in the order of the file; ``which`` are their indices."""
        record = int(which[0]) if len(which) == 1 else None
        if not self.has_masks:
            return without_masks(file.read("images", rows, record), which)
        images, masks, counts = (
            file.read(name, rows, record) for name in ("images", "masks", "num_objects")
        )
        layers = masks[..., 0, :, :] > 0
        counts = counts.astype(np.int64)
        for number, count in zip(which.tolist(), counts, strict=True):
            if count.min() < 0 or count.max() > self._k:
                reason = f"num_objects is {count.tolist()}, expected 0 to {self._k}"
                raise file.bad(reason, number)
        real = np.arange(self._k) < counts[..., None]
        objects: dict[str, torch.Tensor] = {}
        if self._attributes:
            attributes = file.read("attributes", rows, record)
            mask, kinds = self._same_rows(file, layers, attributes, counts, which)
            present = np.stack([visible(m, self.max_objects) for m in mask])
            for i, name in enumerate(("color", "material", "shape")):
                objects[name] = torch.from_numpy(kinds[..., i].copy())
        else:
            mask, present = flatten_layers(layers & real[..., None, None]), real
        return Sample(
            image=torch.from_numpy(images),
            mask=torch.from_numpy(mask),
            objects=objects,
            present=torch.from_numpy(present),
            index=torch.from_numpy(which),
        )

    def _same_rows(
        self,
        file: H5File,
        layers: NDArray[np.bool_],
        attributes: NDArray[np.uint8],
        counts: NDArray[np.int64],
        which: NDArray[np.int64],
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Give an object the same row in every frame; return masks, and the kind of each row."""
        n, size = len(which), (layers.shape[-2], layers.shape[-1])
        mask = np.zeros((n, layers.shape[1], *size), dtype=np.uint8)
        kinds = np.zeros((n, self.max_objects, 3), dtype=np.int64)
        for b in range(n):
            frames: list[list[Detection]] = []
            for t, count in enumerate(counts[b].tolist()):
                codes = attributes[b, t, :count].tolist()
                looks = [_kind(c, file, int(which[b])) for c in codes]
                frames.append(
                    [
                        Detection(kind, layers[b, t, i].astype(np.uint8), 0.0)
                        for i, kind in enumerate(looks)
                    ]
                )
            rows, mask[b] = join(frames, [], size)
            if rows:
                kinds[b, : len(rows)] = rows
        return mask, kinds


def _dataset(n: int, n_frames: int | None, k: int) -> str:
    """Which of the authors' files this is, by its shapes; empty for any other file.

    They do not name their dataset. How many rows their Multi-dSprites has is not known, but the
    last split ends at 63,200.
    """
    if (n, n_frames, k) == (50_000, None, 10):
        return "clevrtex"
    if (n, n_frames, k) == (20_000, 2, 7):
        return "clevrer"
    return "multi-dsprites" if n >= 63_200 and (n_frames, k) == (None, 5) else ""


def _kind(codes: list[int], file: H5File, number: int) -> Kind:
    if any(not 0 < c < len(table) for c, table in zip(codes, _CODES, strict=True)):
        raise file.bad(f"attributes has the codes {codes}, expected 1-8, 1-2 and 1-3", number)
    return _CODES[0][codes[0]], _CODES[1][codes[1]], _CODES[2][codes[2]]
