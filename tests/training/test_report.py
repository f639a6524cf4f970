"""The page about runs, from runs that the tests write by hand: nothing here is trained."""

import base64
import io
import json
import math
import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from rich.console import Console

from slotmesh.cli import main, parse_train
from slotmesh.report.charts import chart, thin
from slotmesh.report.marks import Mark
from slotmesh.training.evaluate import evaluate_run
from slotmesh.training.published import row_of
from slotmesh.training.report import Report, _titles, compare, run_report
from slotmesh.training.report.collect import collect, read_csv
from slotmesh.training.report.samples import SamplePainter, best_and_worst
from slotmesh.training.runs import open_run
from slotmesh.training.settings import plain
from slotmesh.training.tasks import TASKS, experiment, preset

from ..readers._folders import fill
from ._jobs import change

VOID = {"meta", "img", "br", "line", "link", "input", "hr", "path"}


class Page(HTMLParser):
    """Reads a page: what it shows and loads, and whether its tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.words = ""
        self.images: list[str] = []
        self.outside: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if tag == "img" and name == "src":
                self.images.append(value or "")
            if name in ("src", "href") and not (value or "").startswith(("data:", "#")):
                self.outside.append(value or "")
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h2", "h3"):
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script", "svg"} & set(self.open):
            self.words += data
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings[-1] += data


def tiny(task: str, variant: str, start: str = "quick", **changes: Any) -> Any:
    """Settings of a run that takes no time."""
    settings: Any = preset(task, variant, start)
    data = replace(settings.data, batch_size=4, train_size=4, val_size=4, test_size=6)
    model: Any = settings.model
    if task != "random-objects":
        data = replace(data, size=32)
        width = "hidden" if task == "features" else "channels"
        model = replace(model, slot_dim=8, mlp_dim=8, **{width: 4})
    if getattr(data, "easy", False):
        data = replace(data, easy=False)
        model = replace(model, n_slots=preset(task, variant, "paper").model.n_slots)
    return replace(settings, steps=20, data=data, model=model, **changes)


def write_run(folder: Path, settings: Any, *, metrics: dict[str, float] | None = None) -> Path:
    """The folder of a run with first weights; evaluated by hand, if metrics are given."""
    made = experiment(settings)
    (folder / "checkpoints").mkdir(parents=True)
    values = json.dumps(plain(replace(settings, out=None)))
    (folder / "settings.json").write_text(values)
    (folder / "environment.json").write_text(json.dumps({"command": "slotmesh train", "x": "<i>"}))
    state = {f"model.{k}": v for k, v in made.fresh_model().state_dict().items()}
    torch.save({"state_dict": state, "settings": values}, folder / "checkpoints" / "best.ckpt")
    goal = made.goal.metric
    (folder / "metrics.csv").write_text(
        f"step,seconds,train/loss,train/lr,val/loss,val/{goal}\n"
        "10,1.5,0.9,0.001,,\n10,1.6,,,0.8,0.3\n20,3.0,0.5,0.0005,,\n20,3.1,,,0.4,0.6\n30,4.0,0."
    )
    if metrics is not None:
        n = settings.data.test_size
        evaluation = {
            "task": settings.task,
            "checkpoint": "best.ckpt",
            "n": n,
            "batch_size": settings.data.batch_size,
            "loss": 0.25,
            "metrics": metrics,
            "undefined": {goal: 1},
            "blind": {"loss": 0.5, "metrics": dict.fromkeys(metrics, 0.125)},
        }
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
        rows = [f"{i},{0.1 * (i + 1)},{(i * 5) % n / n}" for i in range(n)]
        (folder / "evaluation.csv").write_text(f"sample,loss,{goal}\n" + "\n".join(rows) + "\n")
    return folder


def make(runs: list[Path], out: Path, **options: Any) -> tuple[Page, str, str]:
    """The page, its text, and what was printed."""
    screen = io.StringIO()
    settings = Report(tuple(runs), out, device="cpu", **options)
    assert run_report(settings, Console(file=screen, width=200)) == out
    text = out.read_text(encoding="utf-8")
    return Page(text), text, screen.getvalue()


SPRITES = {"SA": {"fg_ari": 0.5123, "fg_miou": 0.2345}}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str, Path]:
    """One page about runs of all kinds: one evaluated by hand, one of the paper's preset."""
    room = tmp_path_factory.mktemp("runs")
    runs = [
        write_run(room / "copy", tiny("random-objects", "SA-EMD", "paper")),
        write_run(room / "video", tiny("clevrer-s", "SA-learned-noise")),
        write_run(room / "sa", tiny("multi-dsprites", "SA"), metrics=SPRITES["SA"]),
        write_run(room / "mesh", tiny("multi-dsprites", "SA-MESH")),
        write_run(room / "properties", tiny("clevr-properties", "SA-SH")),
    ]
    page, text, _ = make(runs, room / "out" / "page.html", n_samples=2, n_cases=1)
    return page, text, room


def test_every_section_is_there(everything: tuple[Page, str, Path]) -> None:
    page, _, _ = everything
    titles = ("Random objects", "CLEVR properties", "Multi-dSprites", "CLEVRER-S")
    parts = (
        "",
        ": learning curves",
        ": the same samples, every run",
        ": best and worst cases",
        ": how to reproduce it",
    )
    sections = [heading for heading in page.headings if heading.startswith(titles)]
    # In the order of the paper, whatever the order they came in.
    looked_at = "Multi-dSprites", "CLEVRER-S"
    expected = [title + part for title in titles for part in parts]
    for title in looked_at:
        expected.insert(expected.index(title) + 1, f"{title}: how slots are used")
    assert sections == expected


def test_the_page_needs_no_other_file(everything: tuple[Page, str, Path]) -> None:
    page, text, room = everything
    assert page.outside == []
    assert not re.search(r"url\(|@import|<script \w|fetch\(|XMLHttp", text)
    assert [file.name for file in (room / "out").iterdir()] == ["page.html"]


def test_every_picture_is_whole(everything: tuple[Page, str, Path]) -> None:
    page, text, _ = everything
    for uri in page.images:
        kind, data = uri.split(";base64,")
        assert kind == "data:image/png"
        Image.open(io.BytesIO(base64.b64decode(data, validate=True))).verify()
    # Of each of two samples, a best and a worst case: target and copy; of the two frames of the
    # video, and of images, four pictures and the slots; without masks, the image and the slots.
    assert len(page.images) == 4 * (2 + 2 * 5 + 5 + 5 + 2)
    charts = re.findall(r'<svg class="chart".*?</svg>', text, re.S)
    # For each task: the metric, both losses and the learning rate, one line per run.
    assert len(charts) == 4 * 4
    runs = [ElementTree.fromstring(one).findall("g[@data-name]") for one in charts]  # noqa: S314
    assert sorted(map(len, runs)) == [1] * 12 + [2] * 4


def test_results_stand_beside_the_papers(everything: tuple[Page, str, Path]) -> None:
    page, text, _ = everything
    rows = re.findall(r'<tr class="run .*?</tr>', text, re.S)
    sa = next(row for row in rows if ">SA <span" in row)
    assert re.findall(r"\d+\.\d(?: ± \d+\.\d)?", Page(f"<table>{sa}</table>").words) == [
        "51.2",
        "92.2 ± 0.5",
        "23.4",
        "24.3 ± 5.4",
    ]
    assert "paper 1.04" not in page.words
    assert "paper 0.23" in page.words  # SA-EMD, sigma 1
    assert "paper 21.3 ± 13.5" in page.words  # SA learned noise, TC
    assert "paper 38.5 ± 2.0" in page.words  # SA-SH with implicit differentiation, AP 0.125
    assert "FG-ARI is undefined for 1 of 6 samples" in page.words


def test_what_is_not_comparable_is_said(everything: tuple[Page, str, Path]) -> None:
    page, text, _ = everything
    assert text.count('<span class="badge">quick</span>') == 4
    assert page.words.count("not comparable with the paper") == 3
    assert page.words.count("procedural world that stands in") == 3
    assert "SA-EMD, sigma 1.0: Unlike the paper's row: --steps is 20 (20000 there)" in page.words


def test_settings_that_decide_no_result_are_not_said() -> None:
    row = row_of(preset("clevrtex", "SA", "paper"))
    assert row is not None
    usual: Any = row.settings()
    other = replace(usual, logger="none", log_every=7, data=replace(usual.data, workers=0))
    found: Any = SimpleNamespace(row=row, settings=other)
    assert compare._unlike_paper(found) == ""  # pyright: ignore[reportPrivateUsage]
    found.settings = replace(other, steps=7)
    assert "--steps is 7" in compare._unlike_paper(found)  # pyright: ignore[reportPrivateUsage]


def test_a_run_that_was_not_evaluated_is_evaluated(everything: tuple[Page, str, Path]) -> None:
    page, _, room = everything
    found = evaluate_run(open_run(room / "mesh"), out=room / "again", device="cpu")
    assert found["n"] == 6
    assert f"{100 * found['metrics']['fg_miou']:.1f}" in page.words
    assert f"SA-MESH: Evaluated for this page only: slotmesh evaluate {room / 'mesh'}" in page.words
    # A report writes its page, and nothing else.
    written = {file.name for file in (room / "mesh").iterdir()}
    assert written == {"checkpoints", "settings.json", "environment.json", "metrics.csv"}
    kept = json.loads((room / "sa" / "evaluation.json").read_text())
    assert kept["metrics"] == SPRITES["SA"]


def test_best_and_worst_are_named(everything: tuple[Page, str, Path]) -> None:
    page, _, _ = everything
    # By hand: the values are 0, 5, 4, 3, 2, 1 sixths.
    at = page.words.index("SA: best FG-ARI")
    assert page.words[at:].split()[3:7] == ["sample", "1", "·", "FG-ARI"]
    at = page.words.index("SA: worst FG-ARI")
    assert page.words[at:].split()[3:5] == ["sample", "0"]
    # Samples have no average precision of their own here: the loss stands for it.
    assert "SA-SH†: worst" in page.words


@pytest.mark.parametrize("name", ["copy", "video", "mesh", "properties"])
def test_samples_are_shown_with_the_noise_they_were_judged_with(
    everything: tuple[Page, str, Path], name: str
) -> None:
    _, _, room = everything
    found = collect(room / name, "cpu", Console(file=io.StringIO()))
    painter = SamplePainter(found, "cpu")
    made = found.run.experiment
    metrics = made.metrics()
    for i in (0, 3, 5):
        with torch.inference_mode():
            noise = painter.noise(i)
            judged = made.judge(painter.model, painter.source.sample([i]), noise, metrics)
        for column, values in judged.items():
            expected = found.by_sample[column][i]
            assert values.item() == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)


def test_names_from_outside_are_only_words(tmp_path: Path) -> None:
    run = write_run(tmp_path / "<b>x</b>", tiny("random-objects", "SA"), metrics={"nrmse": 0.5})
    page, text, _ = make([run], tmp_path / "page.html", n_samples=1)
    assert "<b>x</b>" not in text
    assert "<i>" not in text
    assert "<b>x</b>" in page.words
    assert "<i>" in page.words


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tiny("multi-dsprites", "SA"))
    (run / "checkpoints" / "best.ckpt").unlink()
    (run / "metrics.csv").unlink()
    (run / "environment.json").unlink()
    page, _, _ = make([run], tmp_path / "page.html")
    assert "has no checkpoint yet" in page.words
    assert "metrics.csv has no rows yet" in page.words
    assert [heading for heading in page.headings if "curves" in heading] == []
    assert "—" in page.words
    assert page.images == []
    assert not (run / "evaluation.json").exists()


def test_a_run_that_still_trains(tmp_path: Path) -> None:
    settings = replace(tiny("random-objects", "SA"), steps=100)
    run = write_run(tmp_path / "run", settings, metrics={"nrmse": 0.5})
    page, _, _ = make([run], tmp_path / "page.html", n_samples=1)
    assert "Training is at step 20 of 100" in page.words


def test_weights_that_do_not_fit_are_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tiny("random-objects", "SA"))
    torch.save({"state_dict": {}}, run / "checkpoints" / "best.ckpt")
    page, _, _ = make([run], tmp_path / "page.html")
    assert "It could not be evaluated" in page.words
    assert "There are no pictures" in page.words
    assert page.images == []


def test_data_that_are_elsewhere_are_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tiny("multi-dsprites", "SA"), metrics=SPRITES["SA"])
    values = json.loads((run / "settings.json").read_text())
    values["data"]["root"] = str(tmp_path / "gone")
    (run / "settings.json").write_text(json.dumps(values))
    page, _, _ = make([run], tmp_path / "page.html")
    assert "gone, which does not exist" in page.words
    assert "51.2" in page.words
    assert "procedural world" not in page.words


def test_folders_of_one_name_and_tasks_of_one_folder_are_apart(tmp_path: Path) -> None:
    runs: list[Path] = []
    for i, place in enumerate(("a/photos", "b/photos", "a/photos")):
        root = fill(tmp_path / place, 12)
        settings = preset("images", ("SA", "SA", "SA-MESH")[i], root=root)
        settings = change(settings, data__root=root, data__size=16, data__batch_size=2)
        runs.append(write_run(tmp_path / f"run-{i}", settings))
    _, text, _ = make(runs, tmp_path / "page.html", n_samples=0, n_cases=0)
    titles = re.findall(r'(?s)-results">\s*<h2>(.*?)<', text)
    assert titles == [f"Images of photos, {tmp_path.resolve() / x / 'photos'}" for x in "ab"]
    ids = re.findall(r' id="(.*?)"', text)
    assert len(ids) == len(set(ids))
    results = re.findall(r'(?s)<section id="images-\d-results">(.*?)</section>', text)
    assert [sorted(set(re.findall(r"run-\d", part))) for part in results] == [
        ["run-0", "run-2"],
        ["run-1"],
    ]


def test_titles_differ() -> None:
    a, b = "/a/photos", "/b/photos"
    title = "Images of photos"
    assert _titles([("images", title, a)]) == [title]
    assert _titles([("images", title, a), ("features", title, a)]) == [
        f"{title}, task images",
        f"{title}, task features",
    ]
    found = _titles([("images", title, a), ("images", title, b), ("features", title, a)])
    assert len(set(found)) == 3


def test_notes_have_code_and_no_backticks(tmp_path: Path) -> None:
    one = write_run(tmp_path / "run", tiny("random-objects", "SA"))
    _, text, _ = make([one], tmp_path / "page.html", n_samples=0, n_cases=0)
    [notes] = re.findall(r'(?s)<ul class="notes">.*?</ul>', text)
    assert f"<code>slotmesh evaluate {one}</code>" in notes
    assert "`" not in notes


def test_another_device_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tiny("random-objects", "SA"), metrics={"nrmse": 0.5})
    page, _, _ = make([run], tmp_path / "page.html", n_samples=1)
    assert "with other noise" not in page.words
    values = json.loads((run / "evaluation.json").read_text())
    values["environment"] = {"device": "cuda:0"}
    (run / "evaluation.json").write_text(json.dumps(values))
    page, _, _ = make([run], tmp_path / "page.html", n_samples=1)
    assert "evaluated on cuda and is drawn on cpu, with other noise" in page.words


def test_another_checkpoint_leaves_the_evaluation_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tiny("random-objects", "SA"), metrics={"nrmse": 0.5})
    last = run / "checkpoints" / "last.ckpt"
    last.write_bytes((run / "checkpoints" / "best.ckpt").read_bytes())
    page, _, _ = make([run, last], tmp_path / "page.html", n_samples=1)
    assert json.loads((run / "evaluation.json").read_text())["metrics"] == {"nrmse": 0.5}
    values = re.findall(r"(\d\.\d{3})\s*paper", page.words)
    assert values[0] == "0.500"
    assert len(values) == 2
    assert values[1] != "0.500"


def test_seeds_are_put_together(tmp_path: Path) -> None:
    errors = {0: 0.5, 1: 0.3, 2: 0.4}
    runs = [
        write_run(tmp_path / f"{s}", tiny("random-objects", "SA", seed=s), metrics={"nrmse": e})
        for s, e in errors.items()
    ]
    page, _, _ = make(runs, tmp_path / "page.html", n_samples=0, n_cases=0)
    assert re.search(r"3 seeds\s*quick\s*median of the seeds 0, 1, 2\s*0\.400", page.words)
    aris = {0: 0.5, 1: 0.8}
    runs = [
        write_run(tmp_path / f"m{s}", tiny("clevrtex", "SA", seed=s), metrics={"fg_ari": a})
        for s, a in aris.items()
    ]
    page, _, _ = make(runs, tmp_path / "page.html", n_samples=0, n_cases=0)
    std = 100 * statistics.stdev(aris.values())
    assert f"65.0 ± {std:.1f}" in page.words


@pytest.mark.parametrize(("values", "bold"), [((0.3, 0.1), True), ((0.12, 0.1), False)])
def test_what_is_no_better_than_a_blind_model_is_not_best(
    tmp_path: Path, values: tuple[float, ...], bold: bool
) -> None:
    runs = [
        write_run(tmp_path / f"{s}", tiny("multi-dsprites", "SA", seed=s), metrics={"fg_ari": a})
        for s, a in enumerate(values)
    ]
    _, text, _ = make(runs, tmp_path / "page.html", n_samples=0, n_cases=0)
    assert re.findall('<b class="best">(.*?)</b>', text) == (["30.0"] if bold else [])


def test_of_many_runs_the_best_are_shown(tmp_path: Path) -> None:
    runs: list[Path] = []
    for i in range(10):
        settings = tiny("random-objects", "SA-SH" if i == 7 else "SA", seed=i)
        runs.append(write_run(tmp_path / f"{i}", settings, metrics={"nrmse": 0.9 - 0.05 * i}))
    (runs[7] / "evaluation.json").write_text(
        (runs[7] / "evaluation.json").read_text().replace("0.55", "2.5")
    )
    page, text, _ = make(runs, tmp_path / "page.html", n_samples=1, n_cases=0)
    assert "Of 10 runs, 8 are shown" in page.words
    shown = re.findall(r'<figure class="run r0-(\d)"', text)
    # The worst of all is the only one of its variant.
    assert shown == list("23456789")
    notes = "SA, sigma 1.0, seed 0; SA, sigma 1.0, seed 1; SA, sigma 1.0, seed 2 and 7 more: RMSE"
    assert notes in " ".join(page.words.split())


def test_the_easy_world_is_said(tmp_path: Path) -> None:
    for easy in (True, False):
        start = tiny("clevrtex", "SA")
        settings = replace(start, data=replace(start.data, easy=easy))
        run = write_run(tmp_path / f"{easy}", settings, metrics={"fg_ari": 0.5})
        page, _, _ = make([run], tmp_path / "page.html", n_samples=0, n_cases=0)
        assert ("Runs with data.easy see the easy version of that world" in page.words) == easy


def test_how_slots_are_used(tmp_path: Path) -> None:
    runs: list[Path] = []
    for name in ("SA", "SA-MESH"):
        settings = tiny("multi-dsprites", name)
        runs.append(write_run(tmp_path / name, settings, metrics=SPRITES["SA"]))
    values = json.loads((runs[1] / "evaluation.json").read_text())
    usage = {"used": 4.25, "evenness": 0.5, "duplicates": 1.5, "background": 2.0, "n": 64}
    values["slots"] = usage | {"entropy_1": 0.75, "entropy_2": 0.25}
    (runs[1] / "evaluation.json").write_text(json.dumps(values))
    page, text, _ = make(runs, tmp_path / "page.html", n_samples=0, n_cases=0)
    [table] = re.findall(r'<section id="multi-dsprites-slots">.*?</section>', text, re.S)
    # The other was evaluated before slots were looked at.
    assert re.findall(r"<td.*?>(.*?)</td>", table) == [
        "4.2 of 6",
        "0.50",
        "0.75 → 0.25",
        "1.5",
        "2.0",
    ]
    assert "Multi-dSprites: how slots are used" in [h.partition("↑")[0] for h in page.headings]
    page, _, _ = make(runs[:1], tmp_path / "page.html", n_samples=0, n_cases=0)
    assert not [heading for heading in page.headings if "slots are used" in heading]


def test_labels_differ(tmp_path: Path) -> None:
    settings = tiny("random-objects", "SA")
    sigma = replace(settings, data=replace(settings.data, sigma=0.1))
    runs = [
        write_run(tmp_path / name, one, metrics={"nrmse": 0.5})
        for name, one in (("a", settings), ("b", settings), ("c", sigma))
    ]
    page, text, _ = make(runs, tmp_path / "page.html", n_samples=0)
    assert f"SA, sigma 1.0, seed 0, {runs[1]}" in page.words
    assert "SA, sigma 0.1" in page.words
    assert "SA, sigma 0.1," not in page.words
    # What differs is in a table of its own.
    [head] = re.findall(r"Settings that differ</summary>.*?<thead>(.*?)</thead>", text, re.S)
    assert re.findall(r">([^<]+)</th>", head) == ["run", "--data.sigma"]
    assert "Settings that all runs share" in page.words
    assert "Environment that differ" not in page.words


def test_best_and_worst_leave_out_what_is_undefined(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tiny("random-objects", "SA"), metrics={"nrmse": 0.5})
    (run / "evaluation.csv").write_text(
        "sample,loss,nrmse\n0,1,0.4\n1,1,nan\n2,1,0.2\n3,1,0.9\n4,1,\n"
    )
    found = collect(run, "cpu", Console(file=io.StringIO()))
    assert best_and_worst(found, 1) == ("nrmse", [2], [3])
    # Never the same sample twice.
    assert best_and_worst(found, 9) == ("nrmse", [2], [3])


def test_the_command_makes_the_run_again() -> None:
    for task, kind in TASKS.items():
        for variant in kind.variants():
            settings = replace(tiny(task, variant), seed=7)
            words = compare.command(settings).split()[2:]
            assert parse_train(words) == settings


def test_csv_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n,3\nx,4\n5")
    columns = read_csv(path)
    assert columns["b"] == [2, 3, 4]
    assert columns["a"][0] == 1
    assert all(math.isnan(x) for x in columns["a"][1:])
    assert read_csv(tmp_path / "none.csv") == {}


def test_a_long_curve_keeps_its_mean_and_its_ends_near() -> None:
    points = [(float(i), math.sin(i / 100)) for i in range(4000)]
    fewer = thin(points, 400)
    assert len(fewer) == 400
    assert statistics.fmean(y for _, y in fewer) == pytest.approx(
        statistics.fmean(y for _, y in points)
    )
    assert fewer[0][0] < 10
    assert fewer[-1][0] > 3990
    assert thin([(0, 1.0), (1, math.nan), (2, 3.0)]) == [(0, 1.0), (2, 3.0)]


def test_the_same_chart_is_the_same_bytes() -> None:
    lines = [(Mark("a", "#123456", "6 3"), [(0.0, 1.0), (1.0, 0.01)])]
    assert chart("loss", lines) == chart("loss", lines)
    assert chart("loss", lines) != chart("loss", lines, baseline=0.5)


@pytest.mark.parametrize("name", ["nothing", "empty", "file.txt"])
def test_a_path_that_is_no_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(ValueError, match="is not a run"):
        make([tmp_path / name], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_wrong_settings_name_their_flag(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tiny("random-objects", "SA"))
    with pytest.raises(ValueError, match="Got no run"):
        make([], tmp_path / "page.html")
    with pytest.raises(ValueError, match="--n-samples is -1"):
        make([run], tmp_path / "page.html", n_samples=-1)
    with pytest.raises(ValueError, match=r"--out is .* folder"):
        make([run], tmp_path)
    with pytest.raises(ValueError, match="--device is 'tpu'"):
        run_report(Report((run,), tmp_path / "page.html", device="tpu"))
    with pytest.raises(ValueError, match=r"--out is .* cannot be written: [^\[']*$"):
        make([run], tmp_path / "run" / "metrics.csv" / "page.html")


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", tiny("random-objects", "SA"), metrics={"nrmse": 0.5})
    page = tmp_path / "page.html"
    main(["report", str(run), "--out", str(page), "--n-samples", "0", "--n-cases", "0"])
    assert "page.html" in capsys.readouterr().out
    assert "0.500" in page.read_text()
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / "gone"), "--out", str(page)])
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert "gone is not a run" in error
    assert "Traceback" not in error
