"""Two processes compute what one does, and every documented way to start them works."""

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from slotmesh.cli import main
from slotmesh.training.settings import Settings

from ..processes import Script
from ._jobs import Job, flags, free_port, metrics, run_job, state, tiny, two_processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo"),
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "distributed.md"


def assert_same_numbers(found: Path, expected: Path) -> None:
    one, two = metrics(expected), metrics(found)
    assert [row.keys() for row in one] == [row.keys() for row in two]
    for a, b in zip(one, two, strict=True):
        for name, value in a.items():
            assert bool(value) == bool(b[name])
            if value:
                assert float(b[name]) == pytest.approx(float(value), abs=1e-5), (name, a["step"])


# In the second batch of 5 validation samples, the second process has none; of 7, it has one less.
@pytest.mark.parametrize(
    ("task", "variant", "val_size"),
    [
        ("random-objects", "SA-MESH", 5),
        ("random-objects", "SA-EMD", 7),
        ("multi-dsprites", "SA-MESH", 7),
        ("clevr-properties", "SA-MESH", 5),
        ("clevrer-s", "SA-learned-noise", 7),
    ],
)
def test_the_same_losses_and_metrics(
    tmp_path: Path, task: str, variant: str, val_size: int
) -> None:
    changes = {"data__val_size": val_size, "steps": 7, "log_every": 1, "data__train_size": 9}
    one = tiny(task, variant, tmp_path / "one", **changes)
    assert run_job(tmp_path / "log", "train", settings=one)[0] == 0
    two = tiny(task, variant, tmp_path / "two", hardware__devices=2, **changes)
    ends = two_processes(tmp_path / "log", "train", settings=two)
    assert [code for code, _ in ends] == [0, 0], ends
    assert ends[1][1] == "", "the second process is silent"
    assert_same_numbers(tmp_path / "two", tmp_path / "one")
    assert {row["step"] for row in metrics(tmp_path / "two") if row["val/loss"]} == {"5", "7"}


def test_parameters_that_no_loss_depends_on(tmp_path: Path) -> None:
    """Queries, keys and marginals of SA-EMD, if its plan has no gradient."""
    changes = {"transport__combine": "detached", "log_every": 1}
    one = tiny("random-objects", "SA-EMD", tmp_path / "one", **changes)
    assert run_job(tmp_path / "log", "train", settings=one)[0] == 0
    two = tiny("random-objects", "SA-EMD", tmp_path / "two", hardware__devices=2, **changes)
    ends = two_processes(tmp_path / "log", "train", settings=two)
    assert [code for code, _ in ends] == [0, 0], ends
    assert_same_numbers(tmp_path / "two", tmp_path / "one")


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    whole = tiny("random-objects", "SA-MESH", tmp_path / "whole")
    assert run_job(tmp_path / "log", "train", settings=whole)[0] == 0
    one = tiny("random-objects", "SA-MESH", tmp_path / "run")
    assert run_job(tmp_path / "log", "train", settings=one, kill="a_step 7")[0] == -9
    two = tiny("random-objects", "SA-MESH", tmp_path / "run", hardware__devices=2)
    ends = two_processes(tmp_path / "log", "train", settings=two)
    assert [code for code, _ in ends] == [0, 0], ends
    assert_same_numbers(tmp_path / "run", tmp_path / "whole")


# ---- how they are started ----


def torchrun(rank: int, nodes: int) -> dict[str, str]:
    """What torchrun tells process ``rank`` of 2, on 1 or 2 machines."""
    return {
        "TORCHELASTIC_RUN_ID": "none",
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if nodes == 1 else 0),
        "GROUP_RANK": str(0 if nodes == 1 else rank),
        "LOCAL_WORLD_SIZE": str(3 - nodes),
    }


def slurm(rank: int, nodes: int) -> dict[str, str]:
    """What srun tells process ``rank`` of 2, on 1 or 2 machines."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS_PER_NODE": str(3 - nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank if nodes == 1 else 0),
        "SLURM_NODEID": str(0 if nodes == 1 else rank),
    }


def start(launcher: Any, nodes: int, log: Path, settings: Settings) -> list[tuple[int, str]]:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    jobs = [
        Job(
            log.with_suffix(f".{rank}"),
            "main",
            launcher(rank, nodes) | shared,
            words=flags(settings),
            report=True,
        )
        for rank in (0, 1)
    ]
    return [(job.wait(), job.output) for job in jobs]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("launcher", [torchrun, slurm])
def test_processes_that_others_started(tmp_path: Path, launcher: Any, nodes: int) -> None:
    """Also with --overwrite, where one that looked too early would find the old run."""
    old = tiny("random-objects", "SA", tmp_path / "run", steps=3)
    assert run_job(tmp_path / "log", "train", settings=old)[0] == 0
    changes = {"hardware__devices": 3 - nodes, "hardware__nodes": nodes, "overwrite": True}
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=2, **changes)
    ends = start(launcher, nodes, tmp_path / "log", settings)
    assert [code for code, _ in ends] == [0, 0], ends
    environment = {torchrun: "TorchElasticEnvironment", slurm: "SLURMEnvironment"}[launcher]
    for rank, (_, said) in enumerate(ends):
        node, local = (0, rank) if nodes == 1 else (rank, 0)
        assert f"{environment} rank {rank} of 2, node {node}, local {local}" in said
    assert "Trained" in ends[0][1]
    assert "Trained" not in ends[1][1]
    assert state(tmp_path / "run")["global_step"] == 2


@pytest.mark.parametrize("launcher", [torchrun, slurm])
def test_a_mistake_ends_all_of_them(tmp_path: Path, launcher: Any) -> None:
    """The first finds that the folder is another's; the second does not wait for it forever."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    settings = tiny("random-objects", "SA", tmp_path / "run", hardware__devices=2)
    ends = start(launcher, 1, tmp_path / "log", settings)
    assert [code for code, _ in ends] == [1, 1], ends
    assert all("holds other files" in said for _, said in ends)


def test_a_process_that_dies_ends_the_other(tmp_path: Path) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run", hardware__devices=2)
    ends = two_processes(tmp_path / "log", "train", settings=settings, kill="a_step 7 1")
    assert ends[1][0] == -9
    assert ends[0][0] not in (0, None)
    assert state(tmp_path / "run")["global_step"] == 6
    ends = two_processes(tmp_path / "log", "train", settings=settings)
    assert [code for code, _ in ends] == [0, 0], ends


# ---- the lines of the documentation ----


def documented() -> dict[str, list[str]]:
    """The blocks of the page by the heading above them, as lines."""
    found = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        if blocks:
            lines = blocks[0].replace("\\\n", " ").strip().splitlines()
            found[section.partition("\n")[0]] = lines
    return found


def words_after(line: str, command: str) -> list[str]:
    words = shlex.split(line)
    return words[words.index(command) + 1 :]


def test_every_line_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = documented()
    assert {*blocks} == {"One machine", "Several machines with torchrun", "SLURM"}
    parsed: list[Settings] = []
    # All of `slotmesh train` but for the training itself, and before it a look for eight GPUs.
    monkeypatch.setattr("slotmesh.training.loop.run_train", parsed.append)
    for lines in blocks.values():
        main(words_after(lines[-1], "slotmesh"))
    for settings in parsed:
        settings.check()
        assert settings.preset == "paper"
    assert [(s.hardware.devices, s.hardware.nodes) for s in parsed] == [(8, 1), (8, 2), (8, 2)]
    # What the launchers are told is what the settings say.
    script = dict(line.split()[1:3] for line in blocks["SLURM"] if line.startswith("#SBATCH"))
    assert (script["--ntasks-per-node"], script["--nodes"]) == ("8", "2")
    run = shlex.split(blocks["Several machines with torchrun"][-1])
    assert run[run.index("--nproc-per-node") + 1] == "8"
    assert run[run.index("--nnodes") + 1] == "2"


@pytest.mark.parametrize("section", ["One machine", "Several machines with torchrun"])
def test_a_line_really_starts_two_processes(tmp_path: Path, section: str) -> None:
    """On this machine, and with a small run."""
    settings = tiny("random-objects", "SA", tmp_path / "run", hardware__devices=2, steps=2)
    line = shlex.split(documented()[section][-1])
    script = Path(sys.executable).with_name("slotmesh")
    if not script.exists():
        pytest.skip("slotmesh is not installed, only importable")
    command: list[object] = [script]
    if line[0] == "torchrun":
        options = line[1 : line.index("--no-python")]
        options[options.index("--nnodes") + 1] = "1"
        options[options.index("--nproc-per-node") + 1] = "2"
        options = [word.replace("HOST:29500", f"127.0.0.1:{free_port()}") for word in options]
        found = find_spec("torch.distributed.run")
        assert found is not None
        command = [found.origin, *options, "--no-python", script]
    # The first process is forked, those that it starts are fresh.
    words = [*command[1:], *flags(settings)]
    first = Script(str(command[0]), tmp_path / "said", *words, env={"OMP_NUM_THREADS": "1"})
    assert first.wait() == 0, first.output
    assert first.output.count("Trained: ") == 1
    assert state(tmp_path / "run")["global_step"] == 2
    alone = tiny("random-objects", "SA", tmp_path / "alone", steps=2)
    assert run_job(tmp_path / "log", "train", settings=alone)[0] == 0
    assert_same_numbers(tmp_path / "run", tmp_path / "alone")


def test_processes_part_at_the_end(tmp_path: Path) -> None:
    """Or threads of gloo now and then abort a process that has done its work."""
    settings = tiny("random-objects", "SA", tmp_path / "run", hardware__devices=2)
    code, said = run_job(tmp_path / "log", "exit_in_a_group", settings=settings)
    assert code == 0, said
    assert "before: True, after: False" in said
