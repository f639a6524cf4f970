"""Two processes that share a batch have the gradients of one that has all of it."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from slotmesh import SlotAttention
from slotmesh.nn import (
    LearnedObjective,
    LearnedSlots,
    Mesh,
    Sinkhorn,
    SlotSimilarity,
    Softmax,
)

from ..processes import Script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo"),
]

# Starts without randomness, and no noise: all processes see the same problem.
MODULES = {
    "SA": (lambda: Softmax(), False),
    "SA-SH": (lambda: Sinkhorn(), False),
    "SA-MESH": (lambda: Mesh(noise=0.0), False),
    "SA-MESH implicit": (lambda: Mesh(noise=0.0), True),
    "SA-MESH learned": (
        lambda: Mesh(noise=0.0, objective=LearnedObjective(hidden_dim=4), grad="unroll"),
        False,
    ),
    "SA-MESH similarity": (
        lambda: Mesh(noise=0.0, objective=SlotSimilarity(hidden_dim=4), grad="unroll"),
        True,
    ),
}
WORKER = Path(__file__).with_name("ddp_worker.py")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Save all modules, run both processes over them; the folder and the data."""
    folder = tmp_path_factory.mktemp("ddp")
    torch.manual_seed(0)
    data = {
        "inputs": torch.randn(4, 7, 6, dtype=torch.float64),
        "weight": torch.randn(3, 5, dtype=torch.float64),
    }
    torch.save(data, folder / "data.pt")
    for name, (make, implicit) in MODULES.items():
        module = SlotAttention(6, 5, 3, make(), 2, init=LearnedSlots(), implicit=implicit)
        module.save_pretrained(folder / name)
    processes = [Script(WORKER, folder / f"log-{rank}", folder, rank, 2) for rank in range(2)]
    codes = [process.wait() for process in processes]
    assert codes == [0, 0], [process.output for process in processes]
    return folder, data


@pytest.mark.parametrize("name", list(MODULES))
def test_gradients_of_two_processes_are_those_of_one(name, run, close):
    folder, data = run
    module = SlotAttention.from_pretrained(folder / name).double()
    slots = module(data["inputs"]).slots
    (slots * data["weight"]).square().sum((-2, -1)).mean().backward()
    for rank in range(2):
        grads = torch.load(folder / name / f"gradients-{rank}.pt")
        assert grads.keys() == dict(module.named_parameters()).keys()
        for key, value in module.named_parameters():
            close(grads[key], value.grad)
