"""Slots that show the same picture become one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from slotmesh.models import ObjectDiscovery, VideoObjectDiscovery, same_picture
from slotmesh.models.merging import merged


def flat(*colours: float) -> Tensor:
    """One plain picture per slot, from -1 to 1: ``(m, 3, 4, 4)``."""
    return torch.tensor(colours)[:, None, None, None].expand(-1, 3, 4, 4).clone()


def equal(m: int) -> Tensor:
    return torch.full((m, 4, 4), 1 / m)


def test_groups() -> None:
    rgb = flat(0.0, 0.9, 0.02, -0.5, 0.88)
    assert same_picture(rgb, equal(5), 0.02).tolist() == [0, 1, 0, 2, 1]
    assert same_picture(rgb, equal(5), 0.001).tolist() == [0, 1, 2, 3, 4]
    assert same_picture(rgb, equal(5), 1.0).tolist() == [0] * 5


def test_chains_of_any_length_belong_together() -> None:
    """Each is near its neighbours only; the order does not matter."""
    colours = torch.linspace(-0.9, 0.9, 19)
    assert same_picture(flat(*colours.tolist()), equal(19), 0.06).tolist() == [0] * 19
    apart = [0, *range(1, 19)]
    assert same_picture(flat(*colours.tolist()), equal(19), 0.04).tolist() == apart


def test_pixels_count_where_a_slot_has_them() -> None:
    """Both pictures have to agree in both places: one alone says nothing about the other's."""
    rgb = flat(0.0, 0.0)
    masks = torch.zeros(2, 4, 4)
    masks[0, :2], masks[1, 2:] = 1.0, 1.0
    assert same_picture(rgb, masks, 0.05).tolist() == [0, 0]
    rgb[1, :, :2] = 0.9  # what the second slot shows in the place of the first
    assert same_picture(rgb, masks, 0.05).tolist() == [0, 1]
    rgb[0, :, :2] = 0.9
    rgb[:, :, 3:] = torch.tensor([0.9, -0.9])[:, None, None, None]
    masks[:, 3] = 0.0  # nobody has it
    assert same_picture(rgb, masks, 0.05).tolist() == [0, 0]


def test_images_of_a_batch_are_grouped_on_their_own() -> None:
    rgb = torch.stack((flat(0.0, 0.0, 0.9), flat(0.9, 0.0, 0.9)))
    found = same_picture(rgb, equal(3).expand(2, 3, 4, 4), 0.05)
    assert found.tolist() == [[0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1.5, float("nan")])
def test_a_tolerance_out_of_range(tolerance: float) -> None:
    with pytest.raises(ValueError, match="expected above 0 and at most 1"):
        same_picture(flat(0.0), equal(1), tolerance)
    with pytest.raises(ValueError, match="segment: merge is"):
        ObjectDiscovery(2, resolution=(16, 16), channels=4).segment(
            torch.rand(3, 16, 16), merge=tolerance
        )


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"rgb has shape .* and masks \(3, 4, 4\)"):
        same_picture(flat(0.0, 1.0), equal(3), 0.1)


@pytest.mark.parametrize("video", [False, True])
def test_a_segmentation_with_fewer_slots(video: bool) -> None:
    """An untrained decoder shows nearly the same for all slots: they become one."""
    torch.manual_seed(0)
    kind = VideoObjectDiscovery if video else ObjectDiscovery
    model = kind(4, resolution=(16, 16), channels=4)
    image = torch.rand(*((2,) if video else ()), 3, 20, 24)
    apart, together = model.segment(image), model.segment(image, merge=1.0)
    assert together.masks.shape == (*apart.masks.shape[:-3], 1, 20, 24)
    torch.testing.assert_close(together.masks, torch.ones_like(together.masks))
    assert together.slots.shape[-2] == together.attention.shape[-3] == 1
    torch.testing.assert_close(together.attention, apart.attention.sum(-3, keepdim=True))
    same = model.segment(image, merge=1e-9)
    torch.testing.assert_close(same.masks, apart.masks)
    torch.testing.assert_close(same.slots, apart.slots)
    # The picture is still drawn.
    assert together.picture().width < apart.picture().width


def test_masks_of_a_group_add_up() -> None:
    masks = torch.rand(2, 3, 4, 4)
    found = merged(masks, torch.tensor([0, 1, 0]))
    torch.testing.assert_close(found[:, 0], masks[:, 0] + masks[:, 2])
    torch.testing.assert_close(found[:, 1], masks[:, 1])


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from slotmesh.cli import main

    from ..training._jobs import fake_run, tiny

    fake_run(tiny("multi-dsprites", "SA", tmp_path / "run"))
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "a.png")
    words = ["segment", str(tmp_path / "run"), str(tmp_path / "a.png"), "--device", "cpu"]
    main([*words, "--out", str(tmp_path / "out"), "--merge", "1"])
    with np.load(tmp_path / "out" / "a.npz") as found:
        assert found["masks"].shape == (1, 16, 16)
        assert found["labels"].max() == 0
    with pytest.raises(SystemExit):
        main([*words, "--merge", "2"])
    assert "--merge is 2.0, expected above 0 and at most 1" in capsys.readouterr().err
