"""Every preset is built and trained for two steps; every task judges what it made."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from slotmesh.training.tasks import TASKS, experiment, preset
from slotmesh.training.tasks.experiment import Experiment
from slotmesh.training.variants import MeshSettings, SinkhornSettings

from ._jobs import WORLD_TASKS, change

PRESETS = [
    (task, variant, name)
    for task, kind in WORLD_TASKS.items()
    for variant in kind.variants()
    for name in ("quick", "paper")
]


ABLATIONS = {
    "5 iterations": {"model__n_iters": 5},
    "learned slot initialisation": {"model__init": "learned-slots"},
    "one slot for all": {"model__init": "shared-slot"},
    "implicit differentiation": {"model__implicit": True},
    "reduced MESH lr": {"transport__lr": 2.0},
    "learned objective": {"transport__objective": "learned"},
    "potentials with their graph": {
        "transport__potentials": "reuse",
        "transport__grad": "straight_through",
    },
}


def small(task: str, variant: str, name: str, **changes: Any) -> Experiment:
    """A preset with next to no samples in a batch; everything else is as it is."""
    size = 1 if name == "paper" else 2
    return experiment(change(preset(task, variant, name), data__batch_size=size, **changes))


@cache
def batch(task: str, name: str) -> Any:
    """Training samples, which are the same for all variants."""
    made = small(task, TASKS[task].variants()[0], name)
    source, _ = made.source("train", torch.device("cpu"))
    return source.sample(range(made.settings.data.batch_size))


def two_steps(made: Experiment, sample: Any) -> torch.nn.Module:
    model = made.fresh_model().train()
    before = {k: v.clone() for k, v in model.named_parameters()}
    optim = made.settings.optim
    adam = torch.optim.Adam(model.parameters(), lr=optim.lr)
    for step in range(2):
        noise = made.noise("train", step, total=len(sample))
        losses = made.losses(model, sample, noise)
        adam.zero_grad()
        losses["loss"].backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip or math.inf)
        assert all(x.isfinite() for x in (*losses.values(), norm))
        assert norm > 0
        adam.step()
    # What gets no gradient is dead weight, and would stop a run of several processes.
    assert not [k for k, v in model.named_parameters() if torch.equal(v, before[k])]
    return model


@pytest.mark.parametrize(("task", "variant", "name"), PRESETS)
def test_every_preset_trains_two_steps(task: str, variant: str, name: str) -> None:
    two_steps(small(task, variant, name), batch(task, name))


def test_a_run_says_that_its_world_is_easy() -> None:
    words = (
        "Scenes are from the easy version of the world, with a few large objects in clear colours. "
        "For the paper's scenes, train with "
    )
    said = small("clevr-properties", "SA", "quick").about_data()
    assert said == f"{words}--data.no-easy --model.n-slots 10."
    same = small("multi-dsprites", "SA", "quick", model__n_slots=6).about_data()
    assert same == f"{words}--data.no-easy."
    for task, name in (("random-objects", "quick"), ("clevrtex", "paper")):
        assert small(task, "SA", name).about_data() is None


@pytest.mark.parametrize("task", ["clevr-properties", "multi-dsprites", "clevrtex", "clevrer-s"])
def test_a_dataset_has_no_easy_version(task: str) -> None:
    easy: Any = preset(task)
    assert easy.data.easy
    found: Any = preset(task, root=Path("data"))
    assert not found.data.easy
    paper: Any = preset(task, preset="paper")
    assert (found.model.n_slots, found.model.n_iters) == (paper.model.n_slots, paper.model.n_iters)
    # Room for an object among many.
    assert found.model.slot_dim >= 32
    assert replace(found, model=easy.model, data=replace(found.data, easy=True)) == easy


def test_he_init_keeps_the_scale_of_an_image() -> None:
    image = torch.rand(4, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    scales: list[float] = []
    for on in (True, False):
        model: Any = small("clevr-properties", "SA", "quick", model__he_init=on).fresh_model()
        scales.append(float(model.encoder.convolutions(image).detach().square().mean().sqrt()))
    assert scales[0] > 0.3 > 3 * scales[1]
    new: Any = small("clevrer-s", "SA", "quick", model__he_init=True).fresh_model()
    old: Any = small("clevrer-s", "SA", "quick", model__he_init=False).fresh_model()
    inner: list[Any] = [k for k in new.decoder.rest if isinstance(k, torch.nn.ConvTranspose2d)]
    assert [bool(layer.bias.any()) for layer in inner] == [False, False, True]
    assert bool(inner[0].weight.std() > 2 * old.decoder.rest[1].weight.std())


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_ablation_trains_two_steps(ablation: str) -> None:
    sample = batch("clevrer-s", "quick")
    found = two_steps(small("clevrer-s", "SA-MESH", "quick", **ABLATIONS[ablation]), sample)
    plain = two_steps(small("clevrer-s", "SA-MESH", "quick"), sample)
    # The ablation is in what is computed, not only in the settings.
    new, old = found.state_dict(), plain.state_dict()
    assert not torch.equal(new["attention.to_key.weight"], old["attention.to_key.weight"])
    if ablation in ("learned slot initialisation", "one slot for all", "learned objective"):
        assert {*new} != {*old}


@pytest.mark.parametrize("task", WORLD_TASKS)
def test_every_task_judges_and_draws(task: str) -> None:
    made, sample = small(task, "SA-MESH", "quick"), batch(task, "quick")
    model = made.fresh_model().eval()

    def judge(seed: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        metrics = made.metrics()
        with torch.inference_mode():
            rows = made.judge(model, sample, made.noise("val", seed, total=len(sample)), metrics)
        found: dict[str, Any] = {}
        for name, metric in metrics.items():
            value = metric.compute()
            found |= value if isinstance(value, dict) else {name: value}
        return rows, {k: float(v) for k, v in found.items()}

    rows, found = judge(0)
    assert next(iter(rows)) == "loss"
    assert all(values.shape == (len(sample),) for values in rows.values())
    assert made.goal.metric in found
    again, same = judge(0)
    assert same == found
    assert all(torch.equal(rows[k], again[k]) for k in rows)
    # MESH has noise: another seed gives another result.
    assert not torch.equal(judge(1)[0]["loss"], rows["loss"])
    with torch.no_grad():
        noise = made.noise("val", 0, total=len(sample))
        reference = made.losses(model, sample, noise)["loss"]
        picture = made.picture(model, sample, made.noise("picture", 0, total=len(sample)))
    torch.testing.assert_close(rows["loss"].mean(), reference)
    assert min(picture.size) > 16
    assert len({*picture.convert("L").tobytes()}) > 10


def test_the_paper_s_schedules() -> None:
    """Numbers of the paper, and of the authors' code where it is silent."""
    md, tex = preset("multi-dsprites", preset="paper"), preset("clevrtex", preset="paper")
    video, properties = (
        preset("clevrer-s", preset="paper"),
        preset("clevr-properties", preset="paper"),
    )
    assert [s.steps for s in (md, tex, video)] == [530 * 937, 530 * 625, 530 * 156]
    assert properties.steps == 100 * 546
    assert {(s.optim.lr, s.optim.warmup, s.optim.half_life) for s in (md, tex, video)} == {
        (4e-4, 10_000, 100_000)
    }
    assert (properties.optim.lr, properties.optim.drop_at) == (1e-3, 0.9)
    assert (md.model.channels, md.model.slot_dim, md.model.n_slots) == (32, 64, 6)
    assert (tex.model.channels, tex.model.slot_dim, tex.model.n_slots) == (64, 128, 11)
    assert (video.model.n_slots, properties.model.n_slots) == (8, 10)
    assert [s.data.size for s in (md, tex, video, properties)] == [64, 64, 64, 128]
    assert [s.data.batch_size for s in (md, tex, video, properties)] == [64, 64, 64, 128]
    for variant in ("SA-SH", "SA-MESH"):
        transport = preset("clevrer-l", variant, "paper").transport
        assert isinstance(transport, SinkhornSettings)
        assert (transport.cost, transport.cost_scale, transport.mass) == ("cosine", 6.0, 18.0)
    assert isinstance(properties.transport, MeshSettings)
    assert properties.model.implicit
    assert not md.model.implicit


def test_first_weights_are_those_of_the_seed() -> None:
    made = small("random-objects", "SA-MESH", "quick")
    torch.manual_seed(1)
    first = made.fresh_model().state_dict()
    after = torch.rand(1)
    second = made.fresh_model().state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after), "building a model draws from the global generator"
    other = small("random-objects", "SA-MESH", "quick", seed=1).fresh_model().state_dict()
    assert not torch.equal(other["attention.to_key.weight"], first["attention.to_key.weight"])


def test_first_weights_leave_the_random_numbers_of_a_gpu_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    small("random-objects", "SA-MESH", "quick").fresh_model()
    assert seeded == []


@pytest.mark.parametrize(
    ("task", "variant", "name", "said"),
    [
        ("clevr", "SA", "quick", "no task 'clevr', expected one of random-objects"),
        ("multi-dsprites", "SA-fixed-noise", "quick", "--variant is 'SA-fixed-noise'"),
        ("clevrer-s", "SB", "quick", "--variant is 'SB', expected one of SA, SA-fixed"),
        ("clevrtex", "SA", "fast", "--preset is 'fast', expected quick or paper"),
    ],
)
def test_what_there_is_not(task: str, variant: str, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        preset(task, variant, name)


def test_settings_of_another_variant_are_refused() -> None:
    mixed = replace(preset("clevrtex", "SA"), transport=preset("clevrtex", "SA-SH").transport)
    with pytest.raises(ValueError, match=r"--variant is SA, but.*SinkhornSettings"):
        experiment(mixed)
