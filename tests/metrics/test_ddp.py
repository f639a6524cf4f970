"""Two processes with uneven shares of a dataset compute what one does with all of it."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ..processes import Script
from ._data import masks, tables
from .ddp_worker import SHARES, feed, make_metrics, result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo"),
]

WORKER = Path(__file__).with_name("ddp_worker.py")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run both processes; the data, and what each computed."""
    folder = tmp_path_factory.mktemp("ddp")
    predicted, truth = masks(0, 11, 2)
    truth[[2, 9]] = 0  # undefined, one in each share
    detections, objects = tables(0, 11, ties=True)
    objects[[3, 8]] = 0
    rng = torch.Generator().manual_seed(0)
    data = {
        "predicted": predicted,
        "truth": truth,
        "present": torch.rand(11, 2, 3, generator=rng) < 0.9,
        "detections": detections,
        "objects": objects,
        "vectors": torch.randn(11, 5, 4, generator=rng),
        "targets": torch.randn(11, 5, 4, generator=rng),
    }
    torch.save(data, folder / "data.pt")
    processes = [Script(WORKER, folder / f"log-{rank}", folder, rank, 2) for rank in range(2)]
    codes = [process.wait() for process in processes]
    assert codes == [0, 0], [process.output for process in processes]
    return data, [torch.load(folder / f"results-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", SHARES)
@pytest.mark.parametrize("key", make_metrics())
def test_two_processes_compute_what_one_does(case, key, run):
    data, results = run
    metric, names = make_metrics()[key]
    for turn in range(len(SHARES[case][0])):
        # All that both have seen by then, in another order than theirs.
        for share in reversed(SHARES[case]):
            for batch in share[turn]:
                feed(metric, names, data, batch)
        value, undefined = result(metric)
        for found in results:
            there, left_out = found[case, key][turn]
            if key == "rmse":
                # Sums of any numbers are exact but for the order of adding: 220 roundings at most.
                eps = torch.finfo(torch.float64).eps
                torch.testing.assert_close(there, value, rtol=220 * eps, atol=0)
                continue
            torch.testing.assert_close(there, value, rtol=0, atol=0, equal_nan=True)
            assert left_out == undefined
    if key != "rmse":
        expected = {"ari": 4, "ari empty": 4, "tc": 2, "ap": 0, "ap idspn": 2}
        assert undefined == expected.get(key, undefined)
        assert undefined >= expected.get(key, 4)
