"""``slotmesh data bench``: how many images per second a world renders on this machine."""

import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.markup import escape

import slotmesh
from slotmesh.data._source import WorldName, open_world, settings_of
from slotmesh.environment import device_name
from slotmesh.files import slug, write_whole
from slotmesh.progress import Count
from slotmesh.training.settings import at_least
from slotmesh.worlds import RandomObjects, Sample, VectorSample, World


@dataclass(frozen=True)
class Bench:
    """Measure how many images per second a world renders, and write the number to a file."""

    world: tyro.conf.Positional[WorldName]
    """Which world."""
    batch_size: int = 256
    """Samples per batch."""
    seconds: float = 5.0
    """How long to measure."""
    size: int | None = None
    """Width and height of the images; the world's own by default."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    threads: int | None = None
    """CPU threads; torch's own choice by default."""
    out: Path = Path("benchmarks/results")
    """Folder for the result."""


def run_bench(bench: Bench, console: Console | None = None) -> Path:
    """Check the scenes on this device, measure, and return the path of the result."""
    at_least("batch_size", bench.batch_size, 1)
    if not 0 < bench.seconds <= 3600:
        raise ValueError(f"--seconds is {bench.seconds}, expected above 0 and at most 3600.")
    console = Console() if console is None else console
    world = open_world(bench.world, seed=0, size=bench.size, device=bench.device)
    # Report an unwritable folder before the measurement, not after it.
    bench.out.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    if bench.threads is not None:
        at_least("threads", bench.threads, 1)
        torch.set_num_threads(bench.threads)
    try:
        with Count(console, f"measuring {bench.world}"):
            check_scenes(world, open_world(bench.world, seed=0, size=bench.size, device="cpu"))
            result = _measure(world, bench)
    finally:
        torch.set_num_threads(threads)
    torch_name = result["torch"].replace("+", "-")
    path = bench.out / f"{bench.world}_{slug(result['device'])}_torch-{torch_name}.json"
    write_whole(path, json.dumps(result, indent=2) + "\n")
    console.print(
        f"{bench.world} on {result['device']}: [bold]{result['images_per_second']:,.0f}[/bold] "
        f"images/s in batches of {bench.batch_size}. Written to {escape(str(path))}",
        highlight=False,
        soft_wrap=True,
    )
    return path


def check_scenes(world: World | RandomObjects, reference: World | RandomObjects) -> None:
    """Raise if scenes of this device differ from those that the CPU makes one at a time."""
    ours = world.sample(range(4)).to("cpu")
    for i in range(4):
        theirs = reference.sample([i])
        pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        if isinstance(ours, VectorSample) and isinstance(theirs, VectorSample):
            pairs = {"inputs": (ours.inputs, theirs.inputs)}
        elif isinstance(ours, Sample) and isinstance(theirs, Sample):
            # Devices may differ by a pixel at the edge of an object, so these are no factor.
            factors = [name for name in ours.objects if name != "visible"]
            pairs = {k: (ours.objects[k], theirs.objects[k]) for k in factors}
        for name, (mine, right) in pairs.items():
            if not torch.equal(mine[i], right[0]):
                raise ValueError(
                    f"{world.name} on {world.device}: {name} of sample {i} differs from what the "
                    "CPU computes for it alone. Nothing was measured."
                )


def _measure(world: World | RandomObjects, bench: Bench) -> dict[str, Any]:
    def finish() -> None:
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)

    batch = bench.batch_size
    first = world.sample(range(batch))
    frames = first.image.shape[1] if isinstance(first, Sample) and first.image.ndim == 5 else 1
    world.sample(range(batch, 2 * batch))
    finish()
    done, began = 2, time.perf_counter()
    while time.perf_counter() - began < bench.seconds:
        world.sample(range(done * batch, (done + 1) * batch))
        finish()
        done += 1
    seconds = time.perf_counter() - began
    samples = (done - 2) * batch
    cuda = world.device.type == "cuda"
    return {
        "world": bench.world,
        "settings": settings_of(world),
        "batch_size": batch,
        "samples_per_second": samples / seconds,
        "images_per_second": samples * frames / seconds,
        "seconds": seconds,
        "device": device_name(world.device),
        "threads": torch.get_num_threads(),
        "peak_memory_mb": torch.cuda.max_memory_allocated(world.device) / 1e6 if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "slotmesh": slotmesh.__version__,
        "command": _command(bench, world.device.type),
    }


def _command(bench: Bench, device: str) -> str:
    words = f"slotmesh data bench {bench.world} --batch-size {bench.batch_size}"
    words += f" --seconds {bench.seconds:g} --device {device}"
    if bench.size is not None:
        words += f" --size {bench.size}"
    if bench.threads is not None:
        words += f" --threads {bench.threads}"
    return words
