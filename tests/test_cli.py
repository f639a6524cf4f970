"""The command line, as a person meets it."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slotmesh import __version__
from slotmesh.cli import COMMANDS, main, one_line_errors


def run(*args: str) -> int:
    try:
        main(args)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == f"slotmesh {__version__}"


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "slotmesh", "--version"]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"slotmesh {__version__}"


def test_help_and_version_import_nothing_heavy() -> None:
    """They take a tenth of a second where torch takes seconds."""
    code = "import sys; from slotmesh.cli import COMMANDS, main; main(sys.argv[1:]); "
    code += "assert not {'torch', 'tyro', 'rich', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    for word in ("--help", "--version"):
        subprocess.run([sys.executable, "-c", code, word], check=True, capture_output=True)


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("words", ["--help", "data stats --help", "trian", "data stats no.h5"])
def test_a_reader_that_leaves_early_is_no_error(words: str, buffered: bool) -> None:
    """As in ``slotmesh ... | head -1``."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "slotmesh", *words.split()]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with os.fdopen(write, "wb") as nobody:
        ended = subprocess.run(
            command, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
    assert "Broken pipe" not in ended.stderr
    assert "Traceback" not in ended.stderr
    helped = "--help" in words
    assert (ended.returncode == 141) is helped
    # Errors have a reader of their own.
    assert bool(ended.stderr) is not helped


def test_a_misspelled_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trian") == 2
    assert "Did you mean train?" in capsys.readouterr().err
    assert run("data", "previeu") == 2
    assert "Did you mean preview?" in capsys.readouterr().err


def test_help_names_every_command_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(word in text for word in (*COMMANDS, "--version"))
    assert max(map(len, text.splitlines())) <= 80
    assert run("demo", "--help") == 0
    text = capsys.readouterr().out
    for flag in ("--out", "--steps", "--seed"):
        assert flag in text


@pytest.mark.parametrize(
    "args", [(), ("dmeo",), ("demo", "--stepz", "3"), ("demo", "--steps", "x")]
)
def test_unknown_words_exit_with_2(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    assert "help" in capsys.readouterr().err


def test_a_wrong_setting_names_its_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--steps", "0", "--out", str(tmp_path / "x")) == 1
    assert "--steps is 0" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_an_unwritable_folder_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run("demo", "--out", str(tmp_path / "file" / "x"), "--steps", "1") == 1
    error = capsys.readouterr().err
    assert "file" in error
    assert "Traceback" not in error


def test_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slotmesh.demo.copying.run_train", stop)
    assert run("demo", "--out", str(tmp_path)) == 130


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
import slotmesh.cli as cli

def load(name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        raise ImportError("half imported")  # as compiled modules do

cli.import_module = load
cli.main(["evaluate", "x"])
"""


def test_an_interrupt_during_imports_is_one_line() -> None:
    words = [sys.executable, "-c", INTERRUPTED]
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert found.stderr == "slotmesh: interrupted\n"
    assert found.returncode == 130


def test_after_the_start_interrupts_are_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert run("evaluate", "no-such-run") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_the_shell_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--tyro-print-completion", "bash") == 0
    script = capsys.readouterr().out
    assert all(word in script for word in (*COMMANDS, "multi-dsprites", "--transport.lr"))
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    path = tmp_path / "slotmesh.bash"
    path.write_text(script)
    ask = """source "$1"; COMP_WORDS=(slotmesh train multi-d); COMP_CWORD=2
    COMP_LINE="slotmesh train multi-d"; COMP_POINT=${#COMP_LINE}
    _tyro_slotmesh slotmesh multi-d train; echo "${COMPREPLY[@]}" """
    found = subprocess.run(
        [bash, "-c", ask, "bash", str(path)], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "multi-dsprites"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "slotmesh train"),
        (["train", "images"], "slotmesh train images --data.root FOLDER"),
        (["evaluate"], "slotmesh evaluate --help"),
        (["report"], "slotmesh report RUN"),
        (["export"], "slotmesh export --help"),
        (["segment"], "slotmesh segment --help"),
        (["score"], "slotmesh score --help"),
        (["data"], "slotmesh data"),
        (["data", "export"], "slotmesh data export"),
        (["data", "convert"], "slotmesh data convert"),
    ],
)
def test_a_command_without_its_arguments_names_them(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) in (1, 2)
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert "Traceback" not in shown.err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize("words", [["--version"], ["train", "--help"]])
@pytest.mark.parametrize("closed", ["1", "2"])
def test_without_an_output_there_is_no_error(words: list[str], closed: str) -> None:
    """Services may start a command with its output closed."""
    command = [sys.executable, "-m", "slotmesh", *words]
    shell = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *command]
    ended = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_error_of_the_system_is_said_without_its_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit), one_line_errors("slotmesh"):
        raise PermissionError(13, "Permission denied", "runs/evaluation.csv")
    assert capsys.readouterr().err == "slotmesh: runs/evaluation.csv: Permission denied\n"
    with pytest.raises(SystemExit), one_line_errors("slotmesh"):
        raise OSError(errno.ENOSPC, "No space left on device", "segments/a.npz")
    expected = "slotmesh: segments/a.npz: No space left on device. Free some space.\n"
    assert capsys.readouterr().err == expected
