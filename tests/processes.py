"""Processes of their own that start in milliseconds.

Each is forked from a server that has imported everything, where a fresh interpreter takes seconds
to import torch, lightning and torchmetrics. It runs a script, as ``python script.py words`` does.
"""

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "slotmesh.cli",
        "slotmesh.training.loop",
        "lightning.fabric",
        "slotmesh.report.pictures",
        "tensorboard.summary.writer.record_writer",
        "torch._dynamo",
    ]
)
TIMEOUT = 600


class Script:
    """A process that runs a script, and what it wrote.

    Args:
        path: Of the script.
        log: The file that takes what it prints.
        words: Of its command line.
        env: Variables to change.
        cwd: The folder to run it in.
        name: Its ``__name__``.
        variables: Names that it finds defined.
    """

    def __init__(
        self,
        path: str | Path,
        log: Path,
        *words: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        name: str = "__main__",
        **variables: Any,
    ) -> None:
        self.log = log
        # As a process inherits them; the server has those of the time when it was started.
        whole = dict(os.environ) | dict(env or {})
        task = (str(path), [str(w) for w in words], whole, str(cwd or Path.cwd()), name, variables)
        self.process = _SERVER.Process(
            target=runpy.run_path,
            args=(__file__,),
            kwargs={"init_globals": {"TASK": task, "LOG": str(log)}, "run_name": "forked"},
        )
        self.process.start()

    def wait(self) -> int:
        """Its exit code; a negative one is the signal that killed it."""
        self.process.join(TIMEOUT)
        if self.process.is_alive():
            self.process.kill()
            raise AssertionError(f"still running after {TIMEOUT} s: {self.output}")
        code = self.process.exitcode
        assert code is not None
        return code

    @property
    def output(self) -> str:
        """What it printed."""
        return self.log.read_text()


if __name__ == "forked":
    _path, _words, _env, _cwd, _name, _variables = globals()["TASK"]
    sys.stdout = sys.stderr = Path(globals()["LOG"]).open("w", buffering=1)  # noqa: SIM115
    for _stream in (1, 2):
        os.dup2(sys.stdout.fileno(), _stream)
    # What a process has that is started by hand; a script's & or nohup would let SIGINT be ignored.
    multiprocessing.set_start_method("fork", force=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(_env)
    os.chdir(_cwd)
    sys.argv = [_path, *_words]
    runpy.run_path(_path, init_globals=_variables, run_name=_name)
