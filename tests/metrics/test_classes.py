"""What all metrics have in common: means, undefined images, batches, bad input, devices."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torchmetrics import MetricCollection

from slotmesh.metrics import (
    AveragePrecision,
    ForegroundARI,
    ForegroundMIoU,
    NormalisedRMSE,
    TemporalConsistency,
    fg_ari,
    fg_miou,
    match_objects,
    temporal_consistency,
)
from slotmesh.ops import set_value_checks

from ._data import masks, tables

METRICS = {
    "ari": lambda: ForegroundARI(4, 3),
    "miou": lambda: ForegroundMIoU(4, 3),
    "tc": lambda: TemporalConsistency(4),
}


def videos(seed: int, n: int = 9) -> tuple[torch.Tensor, ...]:
    """Videos of two frames, some without an object: what each of the metrics takes."""
    predicted, truth = masks(seed, n, 2)
    truth[::4] = 0
    return predicted, truth, torch.ones(n, 2, 3).bool()


def arguments(name: str, data: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return data[:2] if name == "ari" else data


@pytest.mark.parametrize("name", METRICS)
@given(seed=st.integers(0, 10**6))
def test_the_mean_over_a_dataset_is_that_of_its_defined_images(name, seed):
    """To the bit, in any order and by any batches."""
    data = arguments(name, videos(seed))
    metric = METRICS[name]()
    each = metric.per_image(*data)
    metric.update(*data)
    value = metric.compute()
    defined = each[~each.isnan()]
    assert value.item() == pytest.approx(math.fsum(defined.tolist()) / len(defined), abs=2e-10)
    assert metric.n_undefined == each.isnan().sum() > 0
    other = METRICS[name]()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    for part in order.split(int(1 + seed % 5)):
        assert other.update(*(x[part] for x in data)) is None
    assert torch.equal(other.compute(), value)
    assert torch.equal(other.n_undefined, metric.n_undefined)


@pytest.mark.parametrize("name", METRICS)
def test_nothing_defined_is_not_a_number(name):
    data = arguments(name, tuple(x[:1] for x in videos(0)))
    metric = METRICS[name]()
    assert metric.n_undefined is None
    metric.update(*data)
    assert metric.compute().isnan()
    assert metric.n_undefined == (1 if name == "tc" else 2)
    metric.reset()
    assert metric.n_undefined is None


@pytest.mark.parametrize("name", METRICS)
def test_forward_gives_the_value_of_the_batch(name):
    data = arguments(name, videos(1))
    metric, whole = METRICS[name](), METRICS[name]()
    whole.update(*data)
    for part in torch.arange(9).split(4):
        alone = METRICS[name]()
        alone.update(*(x[part] for x in data))
        value = metric(*(x[part] for x in data))
        torch.testing.assert_close(value, alone.compute(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(metric.compute(), whole.compute())
    assert metric.n_undefined == whole.n_undefined


def test_a_collection_does_not_take_one_metric_for_another():
    """All are 1 after the first batch; torchmetrics merges metrics whose states are equal."""
    collection = MetricCollection(
        {
            "ari": ForegroundARI(4, 3),
            "ari_empty": ForegroundARI(4, 3, empty=1.0),
            "miou": ForegroundMIoU(4, 3),
            "tc": TemporalConsistency(4),
            "tc_zero": TemporalConsistency(4, zero_overlap=True),
        }
    )
    first = torch.tensor([[[[1, 2]], [[1, 2]]]])
    both = torch.ones(1, 2, 3).bool()
    collection.update(predicted=first, truth=first, present=both)
    assert {float(v) for v in collection.compute().values()} == {1.0}
    truth = torch.tensor([[[[1, 1, 1, 2]], [[1, 1, 1, 2]]], [[[0] * 4]] * 2])
    # One slot for both objects.
    collection.update(predicted=torch.ones_like(truth), truth=truth, present=both.expand(2, -1, -1))
    values = {k: float(v) for k, v in collection.compute().items()}
    expected = {"ari": 0.5, "ari_empty": 4 / 6, "miou": 0.6875, "tc": 0.75, "tc_zero": 1.0}
    assert values == pytest.approx(expected, abs=1e-9)


def test_one_collection_has_both_scores_of_detections():
    predicted, target = tables(0, 6)
    make = {m: (lambda m=m: AveragePrecision(6, 5, mode=m)) for m in ("pooled", "idspn")}
    both = MetricCollection({k: f() for k, f in make.items()}, prefix="")
    for part in torch.arange(6).split(2):
        both.update(predicted[part], target[part])
    values = both.compute()
    for mode, single in make.items():
        metric = single()
        metric.update(predicted, target)
        for key, value in metric.compute().items():
            assert values[f"{mode}_{key}"] == value


def everything() -> list:
    predicted, target = tables(0, 3)
    return [
        *((METRICS[name](), arguments(name, videos(0))) for name in METRICS),
        (AveragePrecision(6, 5), (predicted, target)),
        (NormalisedRMSE(1.0), (torch.randn(3, 5, 2), torch.randn(3, 5, 2))),
    ]


@pytest.mark.parametrize("i", range(5))
def test_metrics_can_be_copied_and_cast(i):
    """Precision of a model is none of their business."""
    metric, data = everything()[i]
    metric.update(*data)
    expected = metric.compute()
    holder = torch.nn.ModuleList([metric]).half()
    for twin in (holder[0], copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        twin._computed = None
        torch.testing.assert_close(twin.compute(), expected, rtol=0, atol=0, equal_nan=True)
    metric.reset()
    metric.update(*data)
    torch.testing.assert_close(metric.compute(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("i", range(5))
def test_metrics_run_in_inference_mode(i):
    metric, data = everything()[i]
    metric.update(*data)
    expected = metric.compute()
    metric.reset()
    with torch.inference_mode():
        metric.update(*data)
        torch.testing.assert_close(metric.compute(), expected, rtol=0, atol=0, equal_nan=True)


def test_no_value_is_read_on_the_way():
    """A tensor without values stands for a GPU's: reading one is an error."""
    data = videos(0)
    with FakeTensorMode() as mode:
        predicted, truth, present = (mode.from_tensor(x) for x in data)
        assert fg_ari(predicted, truth, n_slots=4, n_objects=3).shape == (9, 2)
        assert fg_miou(predicted, truth, n_slots=4, n_objects=3, present=present).shape == (9, 2)
        assert temporal_consistency(predicted, truth, present, n_slots=4).shape == (9,)
        with pytest.raises(Exception, match=r"data-dependent|aten"):
            bool(predicted.any())


@pytest.mark.parametrize("function", [fg_ari, fg_miou, match_objects])
def test_any_leading_dimensions(function):
    predicted, truth = masks(0, 2, 3)
    values = function(predicted, truth, n_slots=4, n_objects=3)
    one = function(predicted[1, 2], truth[1, 2], n_slots=4, n_objects=3)
    values, one = (x[1] if isinstance(x, tuple) else x for x in (values, one))
    np.testing.assert_equal(values[1, 2].numpy(), one.numpy())


@pytest.mark.parametrize("function", [fg_ari, fg_miou, match_objects])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predicted": torch.rand(2, 4, 4)}, "argmax"),
        ({"predicted": np.zeros((2, 4, 4))}, "predicted has dtype torch.float64"),
        ({"predicted": [[0, 1], [1, 0]]}, "predicted is a list"),
        ({"truth": torch.ones(2, 4, 4).bool()}, "truth has dtype torch.bool"),
        ({"truth": torch.ones(2, 4, 5).long()}, "expected the same"),
        ({"n_slots": 2}, "predicted has values from 0 to 2, expected 0 to 1"),
        ({"n_objects": 1}, "truth has values from 0 to 2, expected 0 to 1"),
        ({"predicted": torch.full((2, 4, 4), -1)}, "values from -1"),
        ({"n_slots": 0}, "n_slots is 0"),
        ({"n_objects": 2.0}, r"n_objects is 2\.0"),
    ],
)
def test_bad_masks(function, change, message):
    masks_ = torch.arange(32).reshape(2, 4, 4) % 3
    good = {"predicted": masks_, "truth": masks_, "n_slots": 3, "n_objects": 2}
    function(**good)
    with pytest.raises(ValueError, match=message):
        function(**good | change)


@pytest.mark.parametrize(("slot", "label"), [(3, 1), (0, 3), (1, -1), (-1, 2)])
def test_bad_values_never_count_for_another_pair(slot, label):
    """Also where they are not looked for, as on a GPU."""
    slots, labels = torch.tensor([[0, slot]]), torch.tensor([[1, label]])
    before = set_value_checks("never")
    try:
        with pytest.raises(RuntimeError, match="out of bounds"):
            fg_ari(slots, labels, n_slots=3, n_objects=2)
    finally:
        set_value_checks(before)


@pytest.mark.parametrize(
    ("present", "message"),
    [
        (torch.ones(2, 2), "present has dtype torch.float32"),
        (torch.ones(2, 3).bool(), r"expected \(\.\.\., 2\)"),
        (torch.ones(3, 2).bool(), r"expected \(2, 2\)"),
    ],
)
def test_bad_presence(present, message):
    truth = torch.ones(2, 4, 4).long()
    with pytest.raises(ValueError, match=message):
        fg_miou(truth, truth, n_slots=3, n_objects=2, present=present)


def test_bad_tables():
    predicted, target = tables(0, 2)
    metric = AveragePrecision(6, 5)
    with pytest.raises(ValueError, match=r"AveragePrecision\(n_slots=4, n_objects=5\)"):
        metric.update(predicted[:, :4], target)
    with pytest.raises(ValueError, match="expected a tensor"):
        metric.update(predicted[..., :18], target)
    with pytest.raises(ValueError, match="expected the same number"):
        metric.update(predicted[:1], target)
    with pytest.raises(ValueError, match="mode is 'mean'"):
        AveragePrecision(mode="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="distances above 0"):
        AveragePrecision(thresholds=(1.0, 0.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_same_on_the_gpu_without_waiting_for_it(no_waiting):
    data = videos(2)
    expected = [
        metric.per_image(*arguments(name, data))
        for name, metric in ((name, make()) for name, make in METRICS.items())
    ]
    moved = tuple(x.cuda() for x in data)
    for (name, make), here in zip(METRICS.items(), expected, strict=True):
        there = make().cuda().per_image(*arguments(name, moved))
        torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-12, equal_nan=True)
    metric = ForegroundARI(4, 3).cuda()
    with no_waiting():
        metric.update(*moved[:2])
    whole = ForegroundARI(4, 3)
    whole.update(*data[:2])
    assert metric.compute().item() == whole.compute().item()
