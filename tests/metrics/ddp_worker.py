"""One process of a distributed run: ``python ddp_worker.py FOLDER RANK WORLD``.

Feeds its share of ``FOLDER/data.pt`` to every metric, and writes what they compute to
``FOLDER/results-RANK.pt``.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

# What is imported of this while there is a group of processes keeps the group, and with it threads
# of gloo, which can abort the interpreter when it ends.
import torch._dynamo
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from slotmesh.metrics import (
    AveragePrecision,
    ForegroundARI,
    ForegroundMIoU,
    NormalisedRMSE,
    TemporalConsistency,
)

# Images of each process, in batches; after each list of batches comes a call of compute.
SHARES: dict[str, list[list[list[range]]]] = {
    "uneven": [[[range(0, 3), range(3, 7)], [range(7, 8)]], [[range(8, 10)], [range(10, 11)]]],
    "one has none": [[[range(0, 4), range(4, 11)]], [[]]],
}


def make_metrics() -> dict[str, tuple[Metric, tuple[str, ...]]]:
    """Each metric, and the names of the data it is updated with."""
    return {
        "ari": (ForegroundARI(4, 3), ("predicted", "truth")),
        "ari empty": (ForegroundARI(4, 3, empty=1.0), ("predicted", "truth")),
        "miou": (ForegroundMIoU(4, 3), ("predicted", "truth", "present")),
        "tc": (TemporalConsistency(4), ("predicted", "truth", "present")),
        "ap": (AveragePrecision(6, 5), ("detections", "objects")),
        "ap idspn": (AveragePrecision(6, 5, mode="idspn"), ("detections", "objects")),
        "rmse": (NormalisedRMSE(0.5), ("vectors", "targets")),
    }


def feed(metric: Metric, names: tuple[str, ...], data: dict[str, Tensor], batch: range) -> None:
    """Update a metric with these images."""
    metric.update(*(data[name][batch.start : batch.stop] for name in names))


def result(metric: Metric) -> tuple[Any, Tensor | None]:
    """What a metric computes, and how many images it left out."""
    return metric.compute(), getattr(metric, "n_undefined", None)


def main(folder: Path, rank: int, world: int) -> None:
    warnings.simplefilter("error")
    # Said of a process that has not seen an image; it still takes part.
    warnings.filterwarnings("ignore", message="The ``compute`` method of metric")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=(folder / "meeting").as_uri(), rank=rank, world_size=world
    )
    work(folder, rank)
    dist.destroy_process_group()
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not any("gloo" in name for name in threads), threads


def work(folder: Path, rank: int) -> None:
    data = torch.load(folder / "data.pt")
    results: dict[tuple[str, str], list[Any]] = {}
    for case, shares in SHARES.items():
        for key, (metric, names) in make_metrics().items():
            for batches in shares[rank]:
                for batch in batches:
                    feed(metric, names, data, batch)
                results.setdefault((case, key), []).append(result(metric))
    torch.save(results, folder / f"results-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
