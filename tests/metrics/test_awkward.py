"""Arguments that do not fit: each is right, or one clear ValueError."""

import numpy as np
import pytest
import torch

from slotmesh import metrics
from slotmesh.worlds import Clevr

OF_MASKS = ("fg_ari", "ari", "fg_miou", "mbo", "miou", "match_objects")
NAN = float("nan")


@pytest.fixture
def masks() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    return (
        torch.randint(0, 4, (2, 8, 8), generator=numbers),
        torch.randint(0, 3, (2, 8, 8), generator=numbers),
    )


@pytest.mark.parametrize("name", OF_MASKS)
def test_arrays_of_another_byte_order(name, masks):
    """As ``np.frombuffer`` and many file formats return them."""
    predicted, truth = masks
    score = getattr(metrics, name)
    found = score(
        predicted.numpy().astype(">i4"), truth.numpy().astype(">u2"), n_slots=4, n_objects=2
    )
    torch.testing.assert_close(found, score(predicted, truth, n_slots=4, n_objects=2))


@pytest.mark.parametrize("dtype", [object, str])
@pytest.mark.parametrize("name", OF_MASKS)
def test_arrays_that_hold_no_numbers(name, dtype, masks):
    predicted, truth = masks
    with pytest.raises(
        ValueError, match=f"^{name}: predicted is a NumPy array of dtype .*integers"
    ):
        getattr(metrics, name)(predicted.numpy().astype(dtype), truth, n_slots=4, n_objects=2)


@pytest.mark.parametrize(
    ("truth", "classes", "said"),
    [
        (torch.tensor([[0.0, 1.7]]), torch.tensor([3]), "truth has dtype torch.float32"),
        (torch.tensor([[False, True]]), torch.tensor([3]), "truth has dtype torch.bool"),
        (torch.tensor([[0, 1]]), torch.tensor([1.5]), "classes has dtype torch.float32"),
        (torch.tensor([[0, 1]]), torch.tensor([NAN]), "classes has dtype torch.float32"),
        (torch.tensor([[0, 1]]), [3], "classes is a list"),
        (None, torch.tensor([3]), "truth is a NoneType"),
    ],
)
def test_classes_are_integers(truth, classes, said):
    """Fractions would be cut off without a word."""
    with pytest.raises(ValueError, match=f"^class_mask: {said}"):
        metrics.class_mask(truth, classes)


@pytest.mark.parametrize(
    ("name", "counts", "said"),
    [
        ("ForegroundARI", (0, 2), "n_slots is 0"),
        ("ForegroundMIoU", (4, -1), "n_objects is -1"),
        ("AdjustedRandIndex", ("a", 2), "n_slots is 'a'"),
        ("MeanIoU", (4, 2.0), "n_objects is 2.0"),
        ("MeanBestOverlap", (True, 2), "n_slots is True"),
        ("TemporalConsistency", (0,), "n_slots is 0"),
    ],
)
def test_counts_are_checked_when_a_metric_is_made(name, counts, said):
    """Not at the first batch, which may be after hours of training."""
    with pytest.raises(ValueError, match=f"^{name}: {said}, expected a whole number"):
        getattr(metrics, name)(*counts)


@pytest.mark.parametrize("thresholds", [1.0, None, "abc", [None], [], [NAN], [0.0]])
def test_thresholds_are_distances(thresholds):
    table = torch.zeros(2, 3, 19)
    with pytest.raises(ValueError, match=r"^average_precision: thresholds is .* above 0"):
        metrics.average_precision(table, table, thresholds=thresholds)


@pytest.mark.parametrize("mode", ["pooled", "idspn"])
def test_precision_without_rows(mode):
    """No rows for objects is as no real object; no detections find nothing."""
    table = torch.ones(2, 3, 19)
    none = table[:, :0]
    assert metrics.average_precision(table, none, mode=mode).isnan().all()
    assert metrics.average_precision_per_image(table, none, mode=mode).isnan().all()
    assert not metrics.average_precision(none, table, mode=mode).any()
    assert not metrics.average_precision_per_image(none, table, mode=mode).any()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"masks": [[[0.5]]]}, "masks is a list"),
        ({"masks": None}, "masks is a NoneType"),
        ({"masks": torch.rand(0, 4, 4)}, "masks has shape"),
        ({"masks": torch.rand(3, 0, 4)}, "masks has shape"),
        ({"slots": [1]}, "slots is a list"),
        ({"least": "a"}, "least is 'a'"),
        ({"least": NAN}, "least is nan"),
    ],
)
def test_usage_of_what_are_no_masks(given, said):
    with pytest.raises(ValueError, match=f"^slot_usage: {said}"):
        metrics.slot_usage(**{"masks": torch.full((3, 4, 4), 1 / 3), **given})


def test_least_may_be_a_number_of_numpy():
    masks = torch.full((3, 4, 4), 1 / 3)
    assert metrics.slot_usage(masks, least=np.float32(0.5)).n_used == 1


def test_tables_of_what_are_no_tensors_of_labels():
    sample = Clevr(size=16).sample([0])
    halves = {**sample.objects, "color": sample.objects["color"] + 0.5}
    with pytest.raises(ValueError, match=r"^encode_objects: column color has dtype .*integers"):
        # All its one-hot vectors would be zero.
        metrics.encode_objects(halves, sample.present)
    with pytest.raises(ValueError, match=r"^encode_objects: present is a list"):
        metrics.encode_objects(sample.objects, sample.present.tolist())
    arrays = {name: column.numpy() for name, column in sample.objects.items()}
    with pytest.raises(ValueError, match=r"^encode_objects: column position is a ndarray"):
        metrics.encode_objects(arrays, sample.present)
