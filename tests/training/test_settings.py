"""A wrong setting fails before any data is touched, and names its flag."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.training.loop import run_train
from slotmesh.training.places import check_hardware, memory_checked
from slotmesh.training.settings import Data, Optim, Settings, plain
from slotmesh.training.tasks import TASKS, experiment, from_plain, preset

from ._jobs import WORLD_TASKS, change, tiny

NAN, INF = math.nan, math.inf
# Task, setting, wrong values; the flag is the setting's name.
WRONG: list[tuple[str, str, list[Any]]] = [
    ("random-objects", "steps", [0, -1]),
    ("random-objects", "val_every", [0]),
    ("random-objects", "save_every", [0]),
    ("random-objects", "log_every", [0]),
    ("random-objects", "seed", [-1]),
    ("random-objects", "data.batch_size", [0, -4]),
    ("random-objects", "data.val_size", [0]),
    ("random-objects", "data.test_size", [0]),
    ("random-objects", "data.train_size", [0, 3]),
    ("random-objects", "data.seed", [-1]),
    ("random-objects", "data.sigma", [0.0, -1.0, NAN, INF]),
    ("random-objects", "data.n_objects", [0]),
    ("random-objects", "data.n_background", [-1]),
    ("random-objects", "data.dim", [0]),
    ("random-objects", "model.n_iters", [0]),
    ("random-objects", "model.mlp_dim", [0]),
    ("random-objects", "model.slot_dim", [0, 8]),
    ("random-objects", "optim.lr", [0.0, -1.0, NAN, INF]),
    ("random-objects", "optim.warmup", [-1]),
    ("random-objects", "optim.warmup_part", [0.0, 1.0, -0.5, NAN]),
    ("random-objects", "optim.half_life", [0, -1]),
    ("random-objects", "optim.clip", [0.0, -1.0, NAN, INF]),
    ("random-objects", "optim.drop_at", [0.0, 1.0, -0.5, NAN]),
    ("random-objects", "hardware.devices", [0]),
    ("random-objects", "hardware.nodes", [0]),
    ("random-objects", "hardware.threads", [0]),
    ("random-objects", "transport.n_iters", [0]),
    ("random-objects", "transport.n_steps", [-1]),
    ("random-objects", "transport.temperature", [0.0, NAN]),
    ("random-objects", "transport.cost_scale", [0.0, INF]),
    ("random-objects", "transport.cost", ["cos"]),
    ("random-objects", "transport.marginals", ["given"]),
    ("random-objects", "transport.mass", [0.0, -1.0]),
    ("random-objects", "transport.lr", [-1.0, NAN]),
    ("random-objects", "transport.noise", [-1.0]),
    ("random-objects", "transport.potentials", ["keep"]),
    ("clevr-properties", "data.size", [0, 7]),
    ("clevr-properties", "data.workers", [-1]),
    ("clevr-properties", "data.root", [Path("no/such/folder")]),
    ("clevr-properties", "model.n_slots", [9]),
    ("clevr-properties", "model.n_iters", [0]),
    ("clevr-properties", "model.channels", [0]),
    ("multi-dsprites", "data.size", [15]),
    ("multi-dsprites", "model.n_slots", [0]),
    ("clevrtex", "model.slot_dim", [0]),
    ("clevrtex", "model.mlp_dim", [0]),
]
TRANSITIONS = [
    ("SA-fixed-noise", "std", -1.0),
    ("SA-learned-noise", "prior_std", 0.0),
    ("SA-learned-noise", "kl_weight", NAN),
]


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever asks for data has gone too far."""

    def touched(*_: Any) -> None:
        raise AssertionError("data was touched")

    for kind in {*TASKS.values()}:
        monkeypatch.setattr(kind, "source", touched)
    monkeypatch.chdir(tmp_path)


def refused(settings: Settings, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_train(settings)
    assert settings.out is not None
    assert not settings.out.exists(), "a folder was made"


@pytest.mark.parametrize(
    ("task", "name", "value"),
    [(task, name, value) for task, name, values in WRONG for value in values],
)
def test_every_wrong_setting_names_its_flag(task: str, name: str, value: Any) -> None:
    start = tiny(task, "SA-MESH", Path("run"))
    flag = "--" + name.replace("_", "-")
    refused(change(start, **{name.replace(".", "__"): value}), rf"^{flag} ")


@pytest.mark.parametrize(("variant", "name", "value"), TRANSITIONS)
def test_a_wrong_transition(variant: str, name: str, value: float) -> None:
    start = tiny("clevrer-s", variant, Path("run"))
    flag = f"--transition.{name}".replace("_", "-")
    refused(change(start, **{f"transition__{name}": value}), f"^{flag} is")


def test_every_setting_that_is_a_number_is_checked() -> None:
    """A new number without a check, or without a line above, is found here."""
    tested = {(task, name) for task, name, _ in WRONG}
    names = {name for _, name in tested}
    start = tiny("clevr-properties", "SA-MESH", Path("run"))
    for group in ("data", "model", "optim", "hardware", "transport"):
        for name, value in vars(getattr(start, group)).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert f"{group}.{name}" in names


def test_masks_have_room_for_255_slots() -> None:
    settings = tiny("multi-dsprites", "SA", Path("run"))
    change(settings, model__n_slots=255).check()
    refused(change(settings, model__n_slots=256), r"^--model.n-slots is 256, expected at most 255")


def test_the_easy_world_has_other_limits() -> None:
    easy = tiny("clevr-properties", "SA", Path("run"), data__easy=True)
    change(easy, model__n_slots=3).check()
    refused(change(easy, model__n_slots=2), r"^--model.n-slots is 2, expected at least 3")
    refused(
        change(easy, data__root=Path()), r"^--data.easy is for the procedural world, but --data"
    )


@pytest.mark.parametrize(("devices", "nodes"), [(3, 1), (1, 3), (2, 4)])
def test_a_batch_that_processes_cannot_share(devices: int, nodes: int) -> None:
    start = tiny("random-objects", "SA", Path("run"))
    wrong = change(start, hardware__devices=devices, hardware__nodes=nodes)
    refused(wrong, rf"--data.batch-size is 4, expected a multiple of the {devices * nodes}")


def test_a_validation_set_that_processes_cannot_share() -> None:
    start = tiny("random-objects", "SA", Path("run"), hardware__devices=2, data__val_size=1)
    refused(start, r"--data.val-size is 1, expected at least one sample for each of the 2")


def test_hardware_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    start = tiny("random-objects", "SA", Path("run"))
    refused(change(start, hardware__accelerator="gpu"), r"--hardware.accelerator is gpu, but")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    many = change(start, hardware__accelerator="gpu", hardware__devices=2)
    refused(many, r"--hardware.devices is 2, but torch finds 1 GPU here. Pass 1 or less, or --")
    check_hardware(change(many, hardware__devices=1).hardware)
    fast = change(start, hardware__compile="yes")
    refused(fast, r"--hardware.compile is yes, which is for one NVIDIA GPU, but it runs on the CPU")
    check_hardware(change(fast, hardware__accelerator="gpu").hardware)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    refused(change(fast, hardware__devices=2, hardware__accelerator="gpu"), r"several processes")


@pytest.mark.parametrize("name", ["WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_more_processes_than_the_settings_say(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "2")
    start = tiny("random-objects", "SA", Path("run"))
    refused(
        start,
        r"2 processes were started, but --hardware.devices 1 times .* is 1. Start 1, or pass",
    )


def test_other_tasks_than_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """On SLURM: the sum is right, the parts are not."""
    for name in ("NTASKS", "STEP_NUM_TASKS", "NNODES"):
        monkeypatch.setenv(f"SLURM_{name}", "2")
    for name in ("PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    start = tiny("random-objects", "SA", Path("run"), hardware__devices=2)
    refused(start, r"^--hardware: .*--ntasks-per-node=2")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "1")
    refused(start, r"^--hardware.devices.*--ntasks-per-node=1")


@pytest.mark.parametrize("root", [Path("no/such/folder"), Path("file/below")])
def test_a_dataset_that_is_not_there(root: Path) -> None:
    Path("file").write_text("")
    refused(tiny("clevrtex", "SA", Path("run"), data__root=root), f"--data.root is {root}, which")


@pytest.mark.parametrize("task", WORLD_TASKS)
def test_right_settings_pass(task: str) -> None:
    for variant in TASKS[task].variants():
        experiment(tiny(task, variant, Path("run")))
    experiment(tiny(task, "SA", Path("run"), data__train_size=None))


# ---- the learning rate ----


@given(step=st.integers(0, 5000), warmup=st.integers(0, 500), half=st.none() | st.integers(1, 900))
def test_warmup_and_half_life(step: int, warmup: int, half: int | None) -> None:
    factor = Optim(warmup=warmup, half_life=half).factor(step, 5000)
    expected = min(1.0, (step + 1) / warmup) if warmup else 1.0
    assert factor == pytest.approx(expected * (1 if half is None else 2 ** (-step / half)))


def test_drop_and_cosine() -> None:
    drop = [Optim(drop_at=0.9).factor(step, 100) for step in range(100)]
    assert drop == [1.0] * 90 + [0.1] * 10
    cosine = [Optim(cosine=True).factor(step, 100) for step in range(101)]
    assert cosine[0] == 1
    assert cosine[50] == pytest.approx(0.5)
    assert cosine[100] == pytest.approx(0, abs=1e-12)
    assert sorted(cosine, reverse=True) == cosine
    both = Optim(cosine=True, warmup=10, drop_at=0.5, half_life=20)
    assert both.factor(60, 100) == pytest.approx(cosine[60] * 0.1 * 2**-3)


# ---- to JSON and back ----


@pytest.mark.parametrize("task", TASKS)
def test_settings_survive_json(task: str) -> None:
    for variant in TASKS[task].variants():
        for name in ("quick", "paper"):
            settings = preset(task, variant, name)
            text = json.dumps(plain(settings), allow_nan=False)
            assert from_plain(json.loads(text), "here") == settings
    moved = tiny(task, "SA", Path("some/where"), optim__clip=None)
    if task != "random-objects":
        moved = change(moved, data__root=Path("data"))
    assert from_plain(json.loads(json.dumps(plain(moved))), "here") == moved


def damage(name: str, value: Any) -> dict[str, Any]:
    values = plain(preset("clevrer-s", "SA-learned-noise"))
    *path, last = name.split(".")
    inner = values
    for part in path:
        inner = inner[part]
    if value is KeyError:
        del inner[last]
    else:
        inner[last] = value
    return values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", KeyError),
        ("variant", KeyError),
        ("preset", KeyError),
        ("task", "clevrer"),
        ("task", ["clevrer-s"]),
        ("task", None),
        ("variant", "SB"),
        ("variant", 3),
        ("preset", "fast"),
        ("steps", "many"),
        ("steps", 1.5),
        ("steps", None),
        ("steps", True),
        ("seed", [1]),
        ("overwrite", "no"),
        ("newer", 1),
        ("data", None),
        ("data", []),
        ("data.size", "64"),
        ("data.newer", 1),
        ("data.root", 3),
        ("model.init", "random"),
        ("optim.lr", "1e-3"),
        ("optim.clip", "none"),
        ("transport.eps", None),
        ("transport.lr", 1.0),
        ("transport", 3),
        ("transition.prior_std", {}),
        ("transition", None),
        ("hardware.precision", "16"),
    ],
)
def test_damaged_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"here|--{name}"):
        experiment(from_plain(damage(name, value), "here"))


def test_a_whole_number_is_a_number() -> None:
    values = damage("optim.lr", 1)
    assert experiment(from_plain(values, "here")).settings.optim.lr == 1


def test_the_default_folder_says_what_it_holds() -> None:
    settings = replace(preset("clevrer-s", "SA-SH"), seed=3)
    assert settings.folder == Path("runs/clevrer-s/SA-SH-quick-3")
    assert replace(settings, out=Path("x")).folder == Path("x")


def test_no_end_of_training_samples_is_right() -> None:
    Data(train_size=None, batch_size=10_000).check()


def test_how_mesh_is_differentiated(tmp_path: Path) -> None:
    settings = tiny("multi-dsprites", "SA-MESH", tmp_path / "run")
    assert settings.transport.build().grad == "implicit"
    assert tiny("random-objects", "SA-MESH", tmp_path).transport.build().grad == "straight_through"
    # With detached potentials the descent cannot be differentiated exactly.
    assert change(settings, transport__objective="learned").transport.build().grad == "truncated"
    exact = change(settings, transport__objective="learned", transport__potentials="reuse")
    assert exact.transport.build().grad == "unroll"
    through = change(settings, transport__potentials="reuse")
    with pytest.raises(ValueError, match=r"--transport\.potentials is 'reuse', expected 'detach'"):
        run_train(through)
    assert not (tmp_path / "run").exists()
    both = change(through, transport__grad="straight_through").transport.build()
    assert (both.grad, both.potentials) == ("straight_through", "reuse")


@pytest.mark.parametrize("name", ["batch_size", "train_size", "val_size", "test_size"])
def test_more_samples_than_any_memory_holds(tmp_path: Path, name: str) -> None:
    """Said at once: the batches alone could not be counted."""
    settings = tiny("random-objects", "SA", tmp_path, **{f"data__{name}": 10**12})
    flag = f"--data.{name.replace('_', '-')}"
    with pytest.raises(ValueError, match=rf"{flag} is 1000000000000, expected at most 10000000\."):
        run_train(settings)


def test_a_model_that_no_memory_holds(tmp_path: Path) -> None:
    """Also where the system promises more memory than it has: nothing of the size is made."""
    for dim in (10**7, 10**12):
        settings = tiny("random-objects", "SA", tmp_path / str(dim), data__dim=dim)
        with pytest.raises(ValueError, match=r"There is not enough memory .*--data.batch-size"):
            run_train(settings)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="another"), memory_checked():
        raise RuntimeError("another")
    with pytest.raises(ValueError, match="not enough memory"), memory_checked():
        raise MemoryError
