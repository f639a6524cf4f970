"""The decoder of features: its shortcuts against the plain MLP, and what masks have to satisfy."""

import pytest
import torch
from torch import nn

from slotmesh.nn import FeatureDecoder


def plain(decoder: FeatureDecoder, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As DINOSAUR describes it: every slot at every position, an MLP, a softmax over slots."""
    every = slots.unsqueeze(-2) + decoder.position
    hidden = decoder.between(decoder.first(every))
    features, logits = decoder.to_feature(hidden), decoder.to_logit(hidden)
    shares = torch.softmax(logits, -3)
    return (shares * features).sum(-3), shares.squeeze(-1)


@pytest.mark.parametrize("hidden", [(7,), (5, 6, 7)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_the_shortcuts_equal_the_plain_mlp_with_their_gradients(
    hidden: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    decoder = FeatureDecoder(4, 3, (2, 5), hidden).double()
    slots = torch.randn(*batch, 3, 4, dtype=torch.float64, requires_grad=True)
    found = decoder(slots)
    features, masks = plain(decoder, slots)
    torch.testing.assert_close(found.features, features)
    torch.testing.assert_close(found.masks, masks.unflatten(-1, (2, 5)))
    weights = [slots, *decoder.parameters()]
    loss, expected = found.features.square().sum(), features.square().sum()
    # A constant added to all logits cancels, so that its gradient is rounding on both sides.
    for one, other in zip(
        torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)


def test_masks_are_shares_also_under_autocast() -> None:
    decoder = FeatureDecoder(8, 6, (3, 4), (16, 16))
    with torch.autocast("cpu", torch.bfloat16):
        found = decoder(torch.randn(2, 5, 8))
    assert found.masks.dtype == torch.float32
    torch.testing.assert_close(found.masks.sum(1), torch.ones(2, 3, 4))


def test_features_stay_in_float32_under_autocast() -> None:
    decoder = FeatureDecoder(6, 5, (2, 3), (8,))
    slots = torch.randn(2, 3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert decoder(slots).features.dtype == torch.float32
    assert decoder.bfloat16()(slots.bfloat16()).features.dtype == torch.bfloat16


def test_the_usual_size() -> None:
    with torch.device("meta"):
        decoder = FeatureDecoder(256, 384, (16, 16))
    widths = [m.out_features for m in decoder.modules() if isinstance(m, nn.Linear)]
    assert widths == [2048, 2048, 2048, 384, 1]
    assert decoder.position.shape == (256, 256)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="hidden is empty"):
        FeatureDecoder(4, 4, (2, 2), ())
    with pytest.raises(ValueError, match="hidden is 0"):
        FeatureDecoder(4, 4, (2, 2), (0,))
    with pytest.raises(ValueError, match="out_dim is 0"):
        FeatureDecoder(4, 0, (2, 2))
    with pytest.raises(ValueError, match=r"expected \(\.\.\., m, 4\)"):
        FeatureDecoder(4, 4, (2, 2), (3,))(torch.randn(2, 3, 5))
