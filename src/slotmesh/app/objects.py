"""Objects: what each slot of a model represents of an image, iteration by iteration."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slotmesh.app.pictures import ShownImage, as_image, data_uri, to_square
from slotmesh.metrics import fg_ari
from slotmesh.models import ObjectDiscovery
from slotmesh.models.segmentation import to_bytes
from slotmesh.palette import object_colour
from slotmesh.report.drawing import rgb
from slotmesh.report.side_by_side import label_slots

MOST_SLOTS = 12
"""Most slots that can be requested."""
# Most slots in a row; more slots are divided into rows of about the same length.
_MOST_COLUMNS = 6


@dataclass(frozen=True)
class Binding:
    """The objects that a model found in an image, at the resolution of the model."""

    image: Tensor
    """uint8 ``(3, h, w)``."""
    pictures: Tensor
    """uint8 ``(m, 3, h, w)``: the image that each slot paints."""
    masks: Tensor
    """``(m, h, w)``: the share of each slot in each pixel; sums to 1 over slots."""
    trace: Tensor
    """``(n_iters, m, rows, columns)``: the attention of every iteration."""
    labels: list[int]
    """Which object each slot matches, in ascending order: objects, new numbers for slots without a
    match, and 0 for the background at the end. Without a truth, 1, 2, ..."""
    score: float | None
    """FG-ARI, if the true objects are known."""

    def reconstruction(self, off: Collection[int] = ()) -> Tensor:
        """Reconstruct the image without some slots, uint8 ``(3, h, w)``: the others fill the gap.

        Args:
            off: Slots to leave out, from 0.

        Example:
            >>> import torch
            >>> from slotmesh.app.objects import bind
            >>> from slotmesh.app.pictures import world_scene
            >>> from slotmesh.models import ObjectDiscovery
            >>> model = ObjectDiscovery(3, resolution=(16, 16), channels=8).eval()
            >>> found = bind(model, world_scene("multi-dsprites", 0), n_slots=3, seed=0)
            >>> torch.equal(found.reconstruction({0, 1}), found.pictures[2])
            True
        """
        on = [slot for slot in range(len(self.masks)) if slot not in off]
        if not on:
            return torch.zeros_like(self.image)
        # Softmax over the slots that are left.
        shares = self.masks[on] / self.masks[on].sum(0).clamp(min=torch.finfo(torch.float32).tiny)
        mixed = (shares.unsqueeze(1) * self.pictures[on].float()).sum(0)
        return mixed.round().clamp(0, 255).to(torch.uint8)

    def segments(self, off: Collection[int] = ()) -> Tensor:
        """Each pixel in the colour of its slot, uint8 ``(3, h, w)``; black where that is off."""
        colours = torch.tensor([rgb(object_colour(label)) for label in self.labels])
        for slot in off:
            colours[slot] = 0
        return colours[self.masks.argmax(0)].movedim(-1, 0).to(torch.uint8)


@torch.inference_mode()
def bind(
    model: ObjectDiscovery, shown: ShownImage, *, n_slots: int, seed: int, crop: bool = False
) -> Binding:
    """Find the objects of an image.

    Args:
        model: A trained model, in evaluation mode.
        shown: The image, of any size.
        n_slots: Number of slots, which may differ from training.
        seed: Seed of the initial slots and of MESH's noise.
        crop: Whether to keep the central square; otherwise, the whole image is squeezed.

    Example:
        >>> from slotmesh.app.objects import bind
        >>> from slotmesh.app.pictures import world_scene
        >>> from slotmesh.models import ObjectDiscovery
        >>> model = ObjectDiscovery(4, resolution=(16, 16), channels=8).eval()
        >>> found = bind(model, world_scene("multi-dsprites", 0), n_slots=5, seed=0)
        >>> found.masks.shape, found.trace.shape
        (torch.Size([5, 16, 16]), torch.Size([3, 5, 16, 16]))
    """
    image = to_square(shown.pixels, model.encoder.resolution, crop=crop)
    place = next(model.parameters()).device
    out = model(image[None].to(place), seed=seed, n_slots=n_slots, trace=True)
    assert out.trace is not None
    masks = out.masks[0].float().cpu()
    truth = shown.truth
    labels, score = list(range(1, n_slots + 1)), None
    if truth is not None:
        small = torch.nn.functional.interpolate(truth[None, None].float(), tuple(masks.shape[-2:]))
        small = small[0, 0].to(torch.int64)
        labels = label_slots(masks, small)
        found = fg_ari(masks.argmax(0), small, n_slots=n_slots, n_objects=int(truth.max()))
        score = None if bool(found.isnan()) else float(found)
    # Objects in their order, then the background, so that models can be compared.
    order = sorted(range(n_slots), key=lambda slot: (labels[slot] == 0, labels[slot]))
    trace = out.trace[0].float().cpu().unflatten(-1, model.encoder.out_grid)
    return Binding(
        image=image,
        pictures=to_bytes(out.rgb[0].float().cpu())[order],
        masks=masks[order],
        trace=trace[:, order],
        labels=[labels[slot] for slot in order],
        score=score,
    )


def panel(
    name: str, found: Binding, *, iteration: int, off: Collection[int], trained: int
) -> dict[str, Any]:
    """The content of the page for a model: text, and pictures as data URIs.

    Args:
        name: Name of the model.
        found: By :func:`bind`.
        iteration: The iteration whose attention is shown, from 1; the last if there are fewer.
        off: Slots that are switched off, from 0.
        trained: Slots in training.
    """
    m = len(found.masks)
    attention = found.trace[min(iteration, len(found.trace)) - 1]
    # Each map is scaled so that its largest value is 1.
    attention = attention / attention.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    size = tuple(found.image.shape[-2:])
    attention = torch.nn.functional.interpolate(attention[None], size)[0]
    owner = found.masks.argmax(0)
    slots = [
        {
            "number": slot + 1,
            "colour": object_colour(found.labels[slot]),
            "off": slot in off,
            "share": round(100 * float((owner == slot).float().mean())),
            "pictures": [
                ("attention", data_uri(as_image(_lit(found, slot, attention[slot])))),
                ("mask", data_uri(as_image(_through(found.image, found.masks[slot])))),
                ("painted", data_uri(as_image(found.pictures[slot]))),
            ],
        }
        for slot in range(m)
    ]
    return {
        "name": name,
        "score": found.score,
        "iteration": min(iteration, len(found.trace)),
        "n_iters": len(found.trace),
        "n_slots": m,
        "trained": trained,
        "columns": -(-m // -(-m // _MOST_COLUMNS)),
        "n_off": sum(slot["off"] for slot in slots),
        "segments": data_uri(as_image(found.segments(off))),
        "reconstruction": data_uri(as_image(found.reconstruction(off))),
        "slots": slots,
    }


def _lit(found: Binding, slot: int, attention: Tensor) -> Tensor:
    """Darken the image, and tint it in the colour of the slot where it attends."""
    label = found.labels[slot]
    colour = torch.tensor((255, 255, 255) if label == 0 else rgb(object_colour(label)))
    # The root, since a slot that covers much has little attention at each place.
    strength = attention.clamp(0, 1).sqrt()
    mixed = 0.3 * (1 - strength) * found.image + strength * colour[:, None, None]
    return mixed.round().to(torch.uint8)


def _through(image: Tensor, share: Tensor) -> Tensor:
    return (image * share.clamp(0, 1)).round().to(torch.uint8)
