"""Segmenting: what comes back can be used, and the model is left as it was."""

import numpy as np
import pytest
import torch

from slotmesh.models.segmentation import Segmentation, read_image
from slotmesh.nn import Softmax
from slotmesh.palette import slot_colour


def test_what_was_found_can_be_trained_on(build):
    found = build("discovery", Softmax()).segment(torch.rand(3, 20, 30))
    for value in (found.masks, found.slots, found.attention):
        assert not value.is_inference()
        assert not value.requires_grad
        weight = torch.ones(value.shape[-1], requires_grad=True)
        (value * weight).sum().backward()
        assert weight.grad is not None


def test_parts_keep_their_modes(build):
    model = build("discovery", Softmax()).train()
    model.encoder.eval()
    before = [part.training for part in model.modules()]
    model.segment(torch.rand(3, 20, 30))
    assert [part.training for part in model.modules()] == before
    assert True in before
    assert False in before


def test_labels_that_do_not_fit_a_palette_are_named():
    masks = torch.zeros(300, 2, 2)
    masks[299] = 1.0
    image = torch.zeros(3, 2, 2, dtype=torch.uint8)
    found = Segmentation(image, masks, torch.zeros(300, 4), masks, image)
    with pytest.raises(ValueError, match="labels up to 299, expected at most 255"):
        found.indexed()
    few = Segmentation(image, masks[44:], torch.zeros(256, 4), masks[44:], image)
    assert np.asarray(few.indexed()[0]).tolist() == [[255, 255], [255, 255]]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int32])
def test_pixels_of_other_integers_are_named(dtype):
    pixels = torch.full((3, 4, 4), 300).to(dtype)
    with pytest.raises(ValueError, match=f"{dtype} with values from 300 to 300, expected uint8"):
        read_image("segment", pixels)


@pytest.mark.parametrize("size", [(64, 48), (300, 500), (7, 900)])
def test_a_picture_of_a_large_image_is_that_of_the_image_made_small(size):
    """What falls together is averaged before it is multiplied: no row of pixels is skipped."""
    height, width = size
    image = torch.full((3, height, width), 200, dtype=torch.uint8)
    masks = torch.full((4, height, width), 0.1)
    masks[0, :, : width // 2], masks[1, :, width // 2 :] = 0.7, 0.7
    found = Segmentation(image, masks, torch.zeros(4, 2), masks, image)
    picture = np.asarray(found.picture()).astype(int)
    side = round(192 * width / max(size))
    for k, (left, right) in enumerate([(200, 29), (29, 200)]):
        tile = picture[:, (side + 4) * (k + 2) :][:, :side]
        # The middle, where both halves mix, apart.
        assert abs(tile[:, : side // 2 - 2] - left).max() <= 1
        assert abs(tile[:, side // 2 + 2 :] - right).max() <= 1


def test_an_overlay_is_half_the_image_and_half_the_colour_of_the_slot():
    image = torch.randint(256, (3, 5, 7), dtype=torch.uint8)
    masks = torch.rand(3, 5, 7)
    found = Segmentation(image, masks, torch.zeros(3, 2), masks, image)
    colours = torch.tensor([slot_colour(k) for k in range(3)])[masks.argmax(0)]
    expected = (image.movedim(0, -1).float() + colours) / 2
    assert np.abs(np.asarray(found.overlay()) - expected.numpy()).max() <= 0.5
