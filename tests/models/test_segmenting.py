"""Segmenting: what comes back can be used, and the model is left as it was."""

import numpy as np
import pytest
import torch

from slotmesh.models.segmentation import Segmentation, read_image
from slotmesh.nn import Softmax


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
