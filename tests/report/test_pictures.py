"""Pictures of what models found: every part is on the sheet, at its place."""

from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from slotmesh.report.pictures import (
    MOST_SAMPLES,
    attention_sheet,
    discovery_blocks,
    discovery_sheet,
    vectors,
)
from slotmesh.report.sheet import colour_mask

Pixels = NDArray[np.uint8]


class Out(NamedTuple):
    reconstruction: Tensor
    masks: Tensor
    attention: Tensor
    trace: Tensor | None


def make(
    b: int, m: int, size: int, grid: tuple[int, int], iters: int | None = None, t: int | None = None
) -> tuple[Tensor, Out, Tensor]:
    """A random image, what could have been found in it, and the truth."""
    dice = torch.Generator().manual_seed(0)
    lead = (b,) if t is None else (b, t)
    image = torch.randint(0, 256, (*lead, 3, size, size), generator=dice, dtype=torch.uint8)
    masks = torch.rand(*lead, m, size, size, generator=dice).softmax(-3)
    n = grid[0] * grid[1]
    trace = torch.rand(*lead, iters or 1, m, n, generator=dice)
    other = torch.rand(*lead, 3, size, size, generator=dice) * 2 - 1
    truth = torch.randint(0, 4, (*lead, size, size), generator=dice, dtype=torch.uint8)
    out = Out(other, masks, trace[..., -1, :, :], trace if iters else None)
    return image, out, truth


def places(sheet: Image, tile: Pixels, zoom: int) -> list[tuple[int, int]]:
    """All (x, y) where the sheet shows the tile exactly, enlarged."""
    small = code(tile.repeat(zoom, 0).repeat(zoom, 1))
    whole = code(np.asarray(sheet))
    h, w = small.shape
    ys, xs = np.nonzero(whole[: whole.shape[0] - h + 1, : whole.shape[1] - w + 1] == small[0, 0])
    # A few pixels first: comparing all of them everywhere takes long.
    for dy, dx in np.random.default_rng(0).integers(0, (h, w), (12, 2)):
        fits = whole[ys + dy, xs + dx] == small[dy, dx]
        ys, xs = ys[fits], xs[fits]
    return [
        (int(x), int(y))
        for y, x in zip(ys, xs, strict=True)
        if (whole[y : y + h, x : x + w] == small).all()
    ]


def code(pixels: Pixels) -> NDArray[np.int64]:
    """One number a pixel."""
    return pixels.astype(np.int64) @ np.array([65536, 256, 1])


def place(sheet: Image, tile: Pixels, zoom: int) -> tuple[int, int]:
    found = places(sheet, tile, zoom)
    assert len(found) == 1
    return found[0]


def as_pixels(image: Tensor) -> Pixels:
    return image.movedim(0, -1).numpy()


def times(image: Tensor, one: Tensor) -> Pixels:
    """An image and a map of whole cells, by hand in float64."""
    h, w = image.shape[-2:]
    up = one.repeat_interleave(h // one.shape[0], 0).repeat_interleave(w // one.shape[1], 1)
    # As numpy rounds: the map is float32.
    product = as_pixels(image) * up.float().numpy()[..., None]
    return product.round().astype(np.uint8)


def seen(masks: Tensor) -> Tensor:
    """Masks as they are shown: the largest value, or an equal share, as 1."""
    return masks / masks.amax((-2, -1), keepdim=True).clamp(min=1 / len(masks))


def test_masks_that_say_nothing_show_the_image() -> None:
    """As those of a model that was not trained: equal shares are not black squares."""
    image, out, _ = make(1, 4, 16, (8, 8))
    equal = out._replace(masks=torch.full_like(out.masks, 0.25))
    [block] = discovery_blocks(image, equal, (8, 8))
    for picture in block.lines[-1][1]:
        assert (picture == as_pixels(image[0])).all()
    # A slot that has next to nothing stays dark.
    unused = out.masks * 0
    unused[:, 0], unused[:, 1] = 0.99, 0.01
    [block] = discovery_blocks(image, out._replace(masks=unused), (8, 8))
    assert block.lines[-1][1][1].max() < 16


def test_everything_found_is_on_the_sheet() -> None:
    image, out, truth = make(2, 3, 16, (8, 8), iters=3)
    sheet = discovery_sheet(image, out, (8, 8), truth)
    assert out.trace is not None
    zoom = 8
    for i in range(2):
        left = place(sheet, as_pixels(image[i]), zoom)
        again = ((out.reconstruction[i] + 1) * 127.5).round().to(torch.uint8)
        right = place(sheet, as_pixels(again), zoom)
        segments = place(sheet, colour_mask(out.masks[i].argmax(0) + 1), zoom)
        below = place(sheet, colour_mask(truth[i]), zoom)
        assert left[1] == right[1] < below[1] == segments[1]
        assert left[0] == below[0] < right[0] == segments[0]
        corners = np.zeros((4, 3, 2), int)
        for k in range(3):
            for step in range(3):
                one = out.trace[i, step, k].view(8, 8)
                corners[step, k] = place(sheet, times(image[i], one / one.max()), zoom)
            corners[3, k] = place(sheet, times(image[i], seen(out.masks[i])[k]), zoom)
        # Slots from left to right, iterations down, masks last.
        assert (np.diff(corners[..., 0], axis=1) > 16 * zoom).all()
        assert (np.diff(corners[..., 1], axis=0) > 16 * zoom).all()
        assert (corners[..., 0] > right[0]).all()


def test_without_a_trace_there_is_the_last_attention() -> None:
    image, out, _ = make(1, 2, 16, (16, 16))
    sheet = discovery_sheet(image, out, (16, 16))
    one = out.attention[0, 1].view(16, 16)
    x, y = place(sheet, times(image[0], one / one.max()), 8)
    assert place(sheet, times(image[0], seen(out.masks[0])[1]), 8)[0] == x
    assert y < place(sheet, times(image[0], seen(out.masks[0])[1]), 8)[1]


def test_frames_of_a_video_come_below_one_another() -> None:
    image, out, truth = make(2, 3, 16, (8, 8), t=2)
    sheet = discovery_sheet(image, out, (8, 8), truth)
    corners = [place(sheet, as_pixels(image[i, t]), 8) for i in range(2) for t in range(2)]
    assert len({x for x, _ in corners}) == 1
    assert sorted(y for _, y in corners) == [y for _, y in corners]
    place(sheet, times(image[1, 1], seen(out.masks[1, 1])[2]), 8)


def test_a_sheet_has_a_few_samples() -> None:
    image, out, _ = make(MOST_SAMPLES + 2, 2, 8, (8, 8))
    sheet = discovery_sheet(image, out, (8, 8))
    shown = [len(places(sheet, as_pixels(one), 16)) for one in image]
    assert shown == [1] * MOST_SAMPLES + [0, 0]


@pytest.mark.parametrize(("size", "m", "zoom"), [(32, 6, 4), (64, 6, 2), (64, 11, 1), (128, 10, 1)])
def test_images_are_enlarged_by_whole_numbers_as_far_as_a_page_is_wide(
    size: int, m: int, zoom: int
) -> None:
    image, out, truth = make(1, m, size, (size, size))
    sheet = discovery_sheet(image, out, (size, size), truth)
    place(sheet, as_pixels(image[0]), zoom)
    assert sheet.width <= 1180 or zoom == 1


def test_attention_is_scaled_by_its_largest_value() -> None:
    image, _, _ = make(1, 2, 16, (4, 4))
    uniform = torch.full((1, 2, 16), 1e-4)
    uniform[0, 1, 1:] = 0
    sheet = attention_sheet(image, uniform, (4, 4))
    # The image itself, and the first slot that sees all of it; the second sees a corner.
    assert len(places(sheet, as_pixels(image[0]), 8)) == 2
    corner = as_pixels(image[0]).copy()
    corner[4:] = 0
    corner[:, 4:] = 0
    place(sheet, corner, 8)


def test_attention_of_every_iteration() -> None:
    image, out, _ = make(1, 2, 16, (8, 8), iters=3)
    assert out.trace is not None
    sheet = attention_sheet(image, out.trace, (8, 8))
    ys = []
    for one in out.trace[0, :, 0]:
        ys.append(place(sheet, times(image[0], (one / one.max()).view(8, 8)), 8)[1])
    assert ys == sorted(ys)


def test_nothing_taken_is_black() -> None:
    image, _, _ = make(1, 1, 16, (4, 4))
    sheet = attention_sheet(image, torch.zeros(1, 1, 16), (4, 4))
    assert places(sheet, np.zeros((16, 16, 3), np.uint8), 8)


def test_gradients_and_half_precision_do_not_matter() -> None:
    image, out, _ = make(1, 2, 16, (8, 8), iters=2)
    assert out.trace is not None
    parts = [x.bfloat16().requires_grad_() for x in (*out[:3], out.trace)]
    sheet = discovery_sheet(image, Out(*parts), (8, 8))
    place(sheet, as_pixels(image[0]), 8)


def test_copies_stand_below_their_targets() -> None:
    dice = torch.Generator().manual_seed(0)
    targets, copied = torch.randn(2, 2, 3, 8, generator=dice).unbind()
    sheet = vectors(targets, copied, most=3.0)
    colours = mpl.colormaps["RdBu"]

    def shown(rows: Tensor) -> Pixels:
        values = colours(((rows + 3) / 6).clamp(0, 1).numpy())
        return (values[..., :3] * 255).round().astype(np.uint8)

    for i in range(2):
        x, y = place(sheet, shown(targets[i]), 10)
        assert place(sheet, shown(copied[i]), 10)[0] == x
        assert place(sheet, shown(copied[i]), 10)[1] > y


def test_vectors_beyond_the_most_have_its_colour() -> None:
    one = torch.ones(1, 2, 8)
    assert vectors(5 * one, one, most=1.0) == vectors(one, one, most=1.0)
    assert vectors(-one, one, most=1.0) != vectors(one, one, most=1.0)
    many = vectors(torch.zeros(20, 2, 8), torch.zeros(20, 2, 8), most=1.0)
    assert many == vectors(torch.zeros(6, 2, 8), torch.zeros(6, 2, 8), most=1.0)
