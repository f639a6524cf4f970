"""One process of a distributed run: ``python ddp_worker.py FOLDER RANK WORLD``.

Loads every module that was saved in FOLDER, takes two training steps' gradients of its share of
the batch, and writes them to ``FOLDER/NAME/gradients-RANK.pt``.
"""

import sys
import warnings
from pathlib import Path

import torch

# What is imported of this while there is a group of processes keeps the group, and with it threads
# of gloo, which can abort the interpreter when it ends.
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from slotmesh import SlotAttention


def main(folder: Path, rank: int, world: int) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=(folder / "meeting").as_uri(), rank=rank, world_size=world
    )
    work(folder, rank, world)
    dist.destroy_process_group()
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not any("gloo" in name for name in threads), threads


def work(folder: Path, rank: int, world: int) -> None:
    data = torch.load(folder / "data.pt")
    inputs = data["inputs"].chunk(world)[rank]
    weight = data["weight"]
    for saved in sorted(p.parent for p in folder.glob("*/config.json")):
        module = SlotAttention.from_pretrained(saved).double().train()
        # Unused parameters are an error of the second step.
        parallel = DistributedDataParallel(module)
        for _ in range(2):
            module.zero_grad()
            (parallel(inputs).slots * weight).square().sum((-2, -1)).mean().backward()
        grads = {name: value.grad for name, value in module.named_parameters()}
        torch.save(grads, saved / f"gradients-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
