"""How slots are used, on cases whose answer is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from slotmesh.metrics import slot_usage


@given(seed=st.integers(0, 10**6), m=st.integers(1, 7))
def test_against_scipy(seed: int, m: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    masks = torch.rand(2, m, 5, 6, generator=rng).softmax(1)
    trace = torch.rand(2, 3, m, 30, generator=rng)
    found = slot_usage(masks, trace=trace)
    for i in range(2):
        share = [float((masks[i].argmax(0) == k).float().mean()) for k in range(m)]
        assert found.n_used[i].item() == sum(part >= 0.01 for part in share)
        mass = masks[i].double().mean((1, 2)).numpy()
        expected = entropy(mass) / math.log(m) if m > 1 else 0.0
        assert found.evenness[i].item() == pytest.approx(expected, abs=1e-9)
        assert found.attention_entropy is not None
        for step in range(3):
            weights = trace[i, step].double().sum(0).numpy()
            each = entropy(trace[i, step].double().numpy(), axis=0)
            expected = (each * weights).sum() / weights.sum() / math.log(m) if m > 1 else 0.0
            assert found.attention_entropy[i, step].item() == pytest.approx(expected, abs=1e-9)


@given(seed=st.integers(0, 10**6))
def test_slots_have_no_order(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    masks = torch.rand(5, 6, 6, generator=rng).softmax(0)
    slots = torch.randn(5, 3, generator=rng)
    slots[2] = slots[4]
    order = torch.randperm(5, generator=rng)
    one, other = slot_usage(masks, slots=slots), slot_usage(masks[order], slots=slots[order])
    assert torch.equal(one.n_used, other.n_used)
    assert torch.equal(one.mass[order], other.mass)
    assert torch.equal(one.duplicates[order][:, order], other.duplicates)
    assert one.duplicates[2, 4]
    assert one.duplicates.sum() >= 2


def test_decided_undecided_and_split() -> None:
    masks = torch.zeros(4, 4, 4)
    masks[0, :, :2], masks[1, 0, 2:], masks[2, 1:, 2:] = 1.0, 1.0, 1.0
    truth = torch.zeros(4, 4).long()
    truth[:, :2] = 1
    sharp = masks.flatten(1)[None]
    even = torch.ones(1, 4, 16)
    found = slot_usage(masks, trace=torch.cat([even, sharp]), truth=truth)
    assert found.n_used.item() == 3
    assert found.n_background is not None
    assert found.n_background.item() == 2
    assert found.attention_entropy is not None
    assert found.attention_entropy.tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    # The empty slot is like no other that has something.
    assert not found.duplicates.any()


def test_all_slots_alike() -> None:
    found = slot_usage(torch.full((3, 2, 2), 1 / 3), slots=torch.ones(3, 8))
    assert found.evenness.item() == pytest.approx(1.0)
    assert found.duplicates.sum().item() == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"masks": torch.ones(4, 4)}, "masks has shape"),
        ({"masks": torch.ones(2, 4, 4).long()}, "masks has shape"),
        ({"slots": torch.ones(3, 4)}, r"slots has shape \(3, 4\), expected \(2, d\)"),
        ({"trace": torch.ones(2, 16)}, "trace has shape"),
        ({"truth": torch.ones(5, 4).long()}, "truth has shape"),
        ({"least": 0.0}, "least is 0.0"),
    ],
)
def test_bad_input(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        slot_usage(**{"masks": torch.ones(2, 4, 4), **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "masks",
    [
        torch.linspace(-3.0, 3.0, 48).reshape(3, 4, 4),
        torch.full((3, 4, 4), torch.nan),
        torch.full((3, 4, 4), 1.5),
        torch.tensor([1.5, -0.25, -0.25])[:, None, None].expand(3, 4, 4),
    ],
    ids=["logits", "NaN", "large", "negative"],
)
def test_what_is_no_mask_is_named(masks):
    with pytest.raises(ValueError, match=r"masks has values from .* expected 0 to 1\. Pass logits"):
        slot_usage(masks)


def test_masks_may_be_rounded():
    slot_usage(torch.randn(2, 11, 4, 4).softmax(-3).bfloat16())
