"""Files of a run that anything may have happened to: one bad run does not cost the others' page."""

import io
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from slotmesh.training.reading import read_csv, read_json
from slotmesh.training.report import Report, run_report
from slotmesh.training.report import _collect as collect_all

from ..training.test_report import tiny, write_run
from .conftest import Campaign

FILES = ("evaluation.json", "evaluation.csv", "metrics.csv", "environment.json", "settings.json")


def report(runs: list[Path], out: Path, n_cases: int = 0) -> tuple[str, str]:
    """The page, and what was printed."""
    screen = io.StringIO()
    settings = Report(tuple(runs), out, n_samples=0, n_cases=n_cases, device="cpu")
    run_report(settings, Console(file=screen, width=500))
    return out.read_text(encoding="utf-8"), screen.getvalue()


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs with different results."""
    return [
        write_run(tmp_path / name, tiny("random-objects", "SA"), metrics={"nrmse": error})
        for name, error in (("good", 0.123), ("odd", 0.456))
    ]


def changed(**values: object) -> Callable[[bytes], bytes]:
    """JSON with some values changed."""
    return lambda old: json.dumps(json.loads(old) | values).encode()


MANY = ",".join(["step", *map(str, range(999))]).encode() + b"\n1" + b",2" * 999
DEEP = b'{"a":' * 100_000
ODD = {
    "metrics as text": ("evaluation.json", changed(metrics="0.5")),
    "a metric as text": ("evaluation.json", changed(metrics={"nrmse": "much"})),
    "a metric as list": ("evaluation.json", changed(metrics={"nrmse": [0.1]})),
    "a metric beyond floats": ("evaluation.json", changed(metrics={"nrmse": 10**400})),
    "no metrics": ("evaluation.json", changed(metrics=None)),
    "n as text": ("evaluation.json", changed(n="6")),
    "n below 0": ("evaluation.json", changed(n=-6)),
    "batch size 0": ("evaluation.json", changed(batch_size=0)),
    "blind as list": ("evaluation.json", changed(blind=[1])),
    "undefined as text": ("evaluation.json", changed(undefined={"nrmse": "all"})),
    "root as number": ("evaluation.json", changed(root=3)),
    "environment as list": ("evaluation.json", changed(environment=["cpu"])),
    "a list": ("evaluation.json", lambda _: b"[1, 2]"),
    "deep": ("evaluation.json", lambda _: DEEP),
    "not UTF-8": ("evaluation.json", lambda _: b"\xff\xfe\x00"),
    "huge": ("evaluation.json", lambda _: b" " * (17 << 20)),
    "empty": ("evaluation.json", lambda _: b""),
    "more samples than n": ("evaluation.csv", lambda old: old + b"6,0.1,0.2\n" * 3),
    "samples not UTF-8": ("evaluation.csv", lambda _: b"sample,loss\n\xff,\xfe\n"),
    "log not UTF-8": ("metrics.csv", lambda old: old + b"\xff\xfe\n"),
    "log without steps": ("metrics.csv", lambda _: b"seconds,train/loss\n1,2\n"),
    "a cell beyond all limits": ("metrics.csv", lambda old: old + b"1," + b"9" * 200_000),
    "many columns": ("metrics.csv", lambda _: MANY),
    "column names beyond print": ("metrics.csv", lambda _: b"step,val/\x07\n1,2\n"),
    "environment cut short": ("environment.json", lambda old: old[:-9]),
    "deep environment": ("environment.json", lambda _: DEEP),
    "settings cut short": ("settings.json", lambda old: old[:-9]),
    "deep settings": ("settings.json", lambda _: DEEP),
    "settings not UTF-8": ("settings.json", lambda _: b"\xff"),
}


@pytest.mark.parametrize("name", ODD)
def test_it_is_said_and_the_others_are_read(tmp_path: Path, runs: list[Path], name: str) -> None:
    file, damage = ODD[name]
    path = runs[1] / file
    odd = damage(path.read_bytes())
    path.write_bytes(odd)
    screen = io.StringIO()
    found, left_out = collect_all(tuple(runs), "cpu", Console(file=screen, width=500))
    assert found[0].evaluation is not None
    assert found[0].evaluation["metrics"] == {"nrmse": 0.123}
    [line] = screen.getvalue().splitlines()
    assert line.startswith(str(runs[1]))
    assert file in line
    assert path.read_bytes() == odd, "what is odd is left for its owner to look at"
    if file == "settings.json":
        assert left_out == [runs[1]]
        return
    # It is evaluated again if it has to be; what a run says about itself elsewhere is used.
    assert found[1].evaluation is not None
    assert (found[1].evaluation["metrics"] == {"nrmse": 0.456}) == (file != "evaluation.json")


def test_the_page_says_who_is_left_out(tmp_path: Path, runs: list[Path]) -> None:
    (runs[1] / "settings.json").write_text("{")
    page, said = report(runs, tmp_path / "page.html")
    assert "0.123" in page
    assert f"Left out, as it cannot be read: {runs[1]}" in page
    assert f"{runs[1]} is left out: {runs[1]}/settings.json cannot be read as JSON" in said


@pytest.mark.parametrize(
    "log",
    [
        b"step,train/loss\nnan,1\ninf,2\n-1,3\n1e300,4\n20,0.5\n",
        b"step,val/loss,train/loss\n10,1e308,-1e308\n20,nan,inf\n",
        b"step,val/$\\frac{,train/loss\n10,1,2\n20,3,4\n",
        b"step,seconds,train/loss\n10,nan,1\n20,inf,0.5\n",
        b"\n\n\n",
    ],
)
def test_odd_numbers_are_left_out(tmp_path: Path, runs: list[Path], log: bytes) -> None:
    (runs[1] / "metrics.csv").write_bytes(log)
    page, _ = report(runs, tmp_path / "page.html")
    assert "0.123" in page
    assert "0.456" in page
    assert "nan s" not in page


def test_no_run_is_left(tmp_path: Path, runs: list[Path]) -> None:
    for run in runs:
        (run / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"good/settings\.json cannot be read as JSON"):
        report(runs, tmp_path / "page.html")


ODD_WORDS = (b"NaN", b"-1e999", b'"', b"null", b"[[", b"{", b"\n", b",", b"1" * 99)


def damaged(content: bytes, dice: random.Random) -> bytes:
    """A few bytes changed, cut out, or doubled."""
    found = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        at, length = dice.randrange(len(found) + 1), dice.randint(1, 30)
        new = dice.choice(
            [
                dice.randbytes(length),
                b"",
                bytes(found[at : at + length]) * 2,
                dice.choice(
                    [b"NaN", b"-1e999", b'"', b"null", b"[[", b"{", b"\n", b",", b"1" * 99]
                ),
            ]
        )
        found[at : at + length] = new
    return bytes(found)


def test_any_damage(tmp_path: Path, runs: list[Path], campaign: Campaign) -> None:
    """The page is made, with the run that is sound."""
    dice = campaign.rng("odd runs")
    whole = {file: (runs[1] / file).read_bytes() for file in FILES}
    n = campaign.size(5, 300)
    for _ in range(n):
        for file, content in whole.items():
            (runs[1] / file).write_bytes(content)
        file = dice.choice(FILES)
        (runs[1] / file).write_bytes(damaged(whole[file], dice))
        page, said = report(runs, tmp_path / "page.html")
        assert "0.123" in page, said
    campaign.count("files of runs damaged: the page about the others was made", n)


def test_files_that_are_missing_or_are_folders(tmp_path: Path) -> None:
    assert read_csv(tmp_path / "none.csv") == {}
    for read in (read_csv, read_json):
        with pytest.raises(ValueError, match="cannot be read: Is a directory"):
            read(tmp_path)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n,3\n5")
    columns = read_csv(tmp_path / "x.csv")
    assert columns["b"] == [2, 3]
    assert math.isnan(columns["a"][1])
