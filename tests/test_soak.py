"""`make soak` finds tests that end differently, and says so."""

import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("soak.py")
TESTS = """
import os, signal, pytest

def test_same():
    pass

def test_skipped():
    pytest.skip("never")

def test_instructions():
    assert os.environ.get("ATEN_CPU_CAPABILITY") == {capability}

def test_signal():
    assert (signal.getsignal(signal.SIGINT) is signal.SIG_IGN) == {ignores_sigint}
"""


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look for the module that they are in.
    monkeypatch.setitem(sys.modules, "soak", module)
    spec.loader.exec_module(module)
    return module


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, SCRIPT, *words, folder],
        # Plugins that these tests have no use for take seconds to import.
        env=os.environ
        | {"PYTEST_XDIST_AUTO_NUM_WORKERS": "1"}
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, *words: str) -> tuple[int, str]:
    process = start(folder, *words)
    said, _ = process.communicate()
    return process.returncode, said


def test_a_test_that_fails_in_one_configuration_only(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS.format(capability="None", ignores_sigint="True"))
    code, said = run(tmp_path, "--only", "plain,avx2-1", "--seed", "3")
    assert code == 1, said
    table = said[said.rindex("configuration  ") :]
    _, plain, avx2, _, *_, again = table.splitlines()
    assert plain.split()[:4] == ["plain", "native,", "1", "thread"]
    assert plain.split()[4:7] == ["2", "1", "1"]
    assert avx2.split()[-4:-1] in (["2", "1", "1"], ["3", "0", "1"])  # without AVX2
    # Before it stand folders, if those of the clone and of temporary files have one in common.
    assert "test_some.py::test_instructions: passed in plain, failed in avx2-1" in table
    # Below it stands why.
    assert "test_some.py::test_signal: failed in plain, passed in avx2-1\n    assert (" in table
    assert again == 'The same again: make soak ONLY="plain avx2-1" SEED=3'


def test_all_is_well(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS.format(capability="None", ignores_sigint="False"))
    code, said = run(tmp_path, "--only", "plain campaign")
    assert code == 0, said
    assert "No test failed, and none ended differently." in said


def test_a_configuration_that_does_not_exist(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--only", "plane")
    assert code == 1
    assert "got plane, expected some of: plain, " in said


LONG = """
import time

def test_bad():
    assert 1 == 2, "so it is"

def test_long():
    time.sleep(3600)
"""


def test_interrupted_it_says_what_was_done_and_leaves_nothing_running(tmp_path: Path) -> None:
    """And what has failed by then."""
    (tmp_path / "test_some.py").write_text(LONG)
    kept = tmp_path / "kept" / "sse-4.jsonl"
    process = start(tmp_path, "--only", "sse-4 plain", "--keep", str(kept.parent))
    try:
        end = time.monotonic() + 600
        while not kept.exists() or "so it is" not in kept.read_text():
            assert process.poll() is None
            assert time.monotonic() < end, kept.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        # All that it started, the load too, has this pipe: it ends with the last of them.
        said, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "test_some.py::test_bad: failed in sse-4\n    AssertionError: so it is\n" in said
    assert "did not end" in said
    assert "Interrupted. Not done: sse-4, plain." in said


def test_one_table_of_what_several_machines_did(
    soak: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A machine that was stopped lacks tests; one that ended has to have them all."""
    ends = {"plain": 0, "avx2-1": 1, "avx2-4": 0, "sse-4": None, "campaign": 0}
    for name, code in ends.items():
        path = tmp_path / f"{name}.jsonl"
        head = soak.asdict(soak.CONFIGURATIONS[name])
        soak.write(path, {"name": name, "configuration": head})
        tests = {"plain": "abc", "avx2-1": "abc", "avx2-4": "ab"}.get(name, "a")
        soak.write(path, {"test": "d", "outcome": "passed" if name == "campaign" else "skipped"})
        for test in tests:
            failed = (test, name) == ("b", "avx2-1")
            soak.write(path, {"test": test, "outcome": "failed" if failed else "passed"})
            if failed:
                # What happens afterwards, when it is torn down, does not count.
                soak.write(path, {"test": test, "outcome": "passed"})
        if code is not None:
            soak.write(path, {"code": code, "seconds": 1.0})
    words = ["soak", "--join", *(str(tmp_path / f"{name}.jsonl") for name in ends)]
    monkeypatch.setattr(sys, "argv", words)
    assert soak.main() == 1
    table, bad = capsys.readouterr().out.strip().split("\n\n")
    assert [line.split()[0] for line in table.splitlines()[1:]] == list(ends)
    assert "did not end" in table.splitlines()[4]
    assert bad.splitlines() == [
        "b: passed in plain, failed in avx2-1, passed in avx2-4",
        "c: passed in plain, passed in avx2-1, missing in avx2-4",
    ]


def test_the_load_ends_with_what_asked_for_it() -> None:
    """Even if that was killed."""
    code = f"import runpy, time\nwith runpy.run_path({str(SCRIPT)!r})['busy'](True):\n"
    code += "    print(flush=True)\n    time.sleep(3600)\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        parent.kill()
        # The load has this pipe too.
        assert parent.communicate(timeout=600) == (b"", None)


def test_what_the_configurations_cover(soak: ModuleType) -> None:
    found = soak.CONFIGURATIONS.values()
    suites = [c for c in found if not c.campaign]
    assert {(c.instructions, c.threads) for c in suites} >= {
        ("sse", 1),
        ("sse", 4),
        ("avx2", 1),
        ("avx2", 4),
        ("avx512", 4),
    }
    assert sum(c.load for c in suites) == 3
    assert {c.shuffled for c in suites} == {c.ignores_sigint for c in suites} == {False, True}
    assert [c.campaign for c in found].count(True) == 1
    # As `make test` runs it.
    assert soak.CONFIGURATIONS["plain"] == soak.Configuration("native", 1)


def test_the_campaign_runs_every_file_that_can_look_further(soak: ModuleType) -> None:
    files = SCRIPT.parent.rglob("test_*.py")
    asking = {path for path in files if re.search(r"[(,]\s*long: bool", path.read_text())}
    there = {SCRIPT.parents[1] / name for name in soak.LONG}
    assert there == {SCRIPT.with_name("faults"), *asking}


def test_an_instruction_set_that_is_not_there(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(soak.NEEDS, "avx2", "avx1024")
    there = soak.CONFIGURATIONS["avx2-4"]
    assert soak.possible(there) == soak.replace(there, instructions="native")
    assert soak.possible(soak.CONFIGURATIONS["plain"]) == soak.CONFIGURATIONS["plain"]


def test_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files and within them; each seed has one, which several workers find alike."""
    shuffle = runpy.run_path(str(SCRIPT.with_name("conftest.py")))["pytest_collection_modifyitems"]
    items = [SimpleNamespace(path=f"file {i // 9}", name=i) for i in range(90)]

    def shuffled(seed: str) -> list[SimpleNamespace]:
        monkeypatch.setenv("SLOTMESH_SHUFFLE", seed)
        found = items.copy()
        shuffle(found)
        return found

    first = shuffled("1")
    assert first == shuffled("1") != shuffled("2")
    assert sorted(item.name for item in first) == list(range(90))
    files = [item.path for item in first[::9]]
    assert files != sorted(files) == sorted({item.path for item in items})
    assert [item.name for item in first[:9]] != sorted(item.name for item in first[:9])
    monkeypatch.delenv("SLOTMESH_SHUFFLE")
    same = items.copy()
    shuffle(same)
    assert same == items


def test_columns_stand_below_their_heads(soak: ModuleType) -> None:
    """Whatever a configuration is called."""
    names = soak.CONFIGURATIONS
    head, *rows = soak.table({name: soak.Result(names[name], code=0) for name in names})
    assert {len(row) for row in rows} == {len(head)}
