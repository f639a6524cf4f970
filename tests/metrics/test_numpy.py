"""NumPy arrays from anybody's model: the same numbers as tensors."""

import numpy as np
import pytest
import torch

from slotmesh import metrics


def labels(dtype: type, seed: int, high: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, (2, 3, 6, 7)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("name", ["ari", "fg_ari", "mbo", "miou", "fg_miou", "match_objects"])
def test_masks(name: str, dtype: type) -> None:
    metric = getattr(metrics, name)
    predicted, truth = labels(dtype, 0, 5), labels(dtype, 1, 4)
    sizes = {"n_slots": 5, "n_objects": 3}
    found = metric(predicted, truth, **sizes)
    tensors = [torch.from_numpy(x.astype(np.int64)) for x in (predicted, truth)]
    expected = metric(*tensors, **sizes)
    for a, b in zip(
        *((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True
    ):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="predicted is a list, expected a tensor or array"):
        metric(predicted.tolist(), truth, **sizes)


def test_others() -> None:
    truth, predicted = labels(np.uint8, 0, 4), labels(np.uint8, 1, 4)
    classes = np.array([[[0, 1, 0]] * 3] * 2)
    found = metrics.class_mask(truth, classes)
    expected = metrics.class_mask(torch.from_numpy(truth), torch.from_numpy(classes))
    assert torch.equal(found, expected)
    present = np.ones((2, 3, 3), dtype=bool)
    found = metrics.temporal_consistency(predicted, truth, present, n_slots=4)
    tensors = [torch.from_numpy(x) for x in (predicted, truth, present)]
    assert torch.equal(found, metrics.temporal_consistency(*tensors, n_slots=4))
    masks = np.random.default_rng(0).random((2, 3, 6, 7))
    usage = metrics.slot_usage(masks, truth=truth[:, 0])
    assert torch.equal(usage.n_used, metrics.slot_usage(torch.from_numpy(masks)).n_used)


def test_an_array_that_cannot_be_written_to() -> None:
    mask = labels(np.uint8, 0, 3)
    mask.flags.writeable = False
    assert float(metrics.ari(mask, mask, n_slots=3, n_objects=2).min()) == 1.0


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_large_unsigned_tensors_are_labels_too(dtype) -> None:
    truth = torch.tensor([[0, 1], [2, 2]])
    expected = metrics.fg_ari(truth, truth, n_slots=3, n_objects=2)
    assert torch.equal(
        metrics.fg_ari(truth.to(dtype), truth.to(dtype), n_slots=3, n_objects=2), expected
    )


def test_numbers_of_numpy_are_numbers() -> None:
    truth = torch.tensor([[0, 1], [2, 2]])
    sizes = {"n_slots": np.int64(3), "n_objects": np.int64(2)}
    for name in ("ari", "fg_ari", "mbo", "miou", "fg_miou"):
        found = getattr(metrics, name)(truth, truth, **sizes)
        expected = getattr(metrics, name)(truth, truth, n_slots=3, n_objects=2)
        assert torch.equal(found, expected), name
    vectors = torch.randn(2, 3, 4)
    metrics.normalised_rmse(vectors, vectors, sigma=np.float32(0.5))
    metrics.AveragePrecision(np.int64(3), np.int64(2))
