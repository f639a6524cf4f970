"""`make soak`: the whole suite as other processors, busier machines and other shells would run it.

Each configuration is one run of pytest. Together they meet every instruction set of this processor
with one and with four threads, tests in random order, a busy machine (three times) and an ignored
SIGINT, but not all of their combinations, which would take a day. Then come the long campaigns of
tests/faults. No test may fail, and none may end differently in another configuration.

Every test is written down as it ends, so that a run which is stopped still names what failed.
With ``--keep FOLDER`` these files stay: configurations can run on several machines, one each, and
``--join FILES`` makes one table of them.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# What torch, MKL, oneDNN, OpenBLAS, NumPy, glibc and slotmesh look at to choose their code.
INSTRUCTIONS: dict[str, dict[str, str]] = {
    "native": {},
    "sse": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA",
        "SLOTMESH_NATIVE": "baseline",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Zen",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F",
        "SLOTMESH_NATIVE": "avx2",
    },
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
}
NEEDS = {"sse": "sse4_2", "avx2": "avx2", "avx512": "avx512f"}
# Where tests look further in the long campaign.
LONG = ["tests/faults", "tests/ops/test_modes.py", "tests/paper/test_tables.py"]
LONG += [f"tests/worlds/{name}.py" for name in ("test_clevr", "test_clevrer")]
OUTCOMES = "SLOTMESH_OUTCOMES"
"""The variable with the file that pytest writes the end of every test to."""
# A busy loop that ends with the process that started it, however that ended.
_BUSY = "import os\nos.nice(5)\nwhile os.getppid() == %d:\n    sum(range(100_000))\n"


@dataclass(frozen=True)
class Configuration:
    """One run of the tests."""

    instructions: str = "native"
    threads: int = 1
    shuffled: bool = False
    load: bool = False
    ignores_sigint: bool = False
    campaign: bool = False

    def environment(self, seed: int) -> dict[str, str]:
        """Its variables; those that another configuration sets are taken out."""
        ours = {name for variables in INSTRUCTIONS.values() for name in variables}
        ours |= {"SLOTMESH_SHUFFLE", "SLOTMESH_SOAK"}
        # A worker of xdist that started this must not make the tests here take themselves for one.
        ours |= {"PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"}
        found = {k: v for k, v in os.environ.items() if k not in ours}
        found |= INSTRUCTIONS[self.instructions] | {"OMP_NUM_THREADS": str(self.threads)}
        # Threads that wait for each other would keep cores busy that others need: the same
        # numbers in a fifth of the time.
        found["OMP_WAIT_POLICY"] = "PASSIVE"
        if self.shuffled:
            found["SLOTMESH_SHUFFLE"] = str(seed)
        if self.campaign:
            found |= {"SLOTMESH_SOAK": "1", "SLOTMESH_SEED": str(seed)}
        return found

    def __str__(self) -> str:
        words = {
            "shuffled": self.shuffled,
            "load": self.load,
            "SIGINT ignored": self.ignores_sigint,
        }
        words |= {"long": self.campaign}
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return ", ".join([self.instructions, threads, *(k for k, v in words.items() if v)])


CONFIGURATIONS = {
    "plain": Configuration(),
    "sse-1": Configuration("sse", 1, shuffled=True, load=True, ignores_sigint=True),
    "sse-4": Configuration("sse", 4, load=True),
    "avx2-1": Configuration("avx2", 1, shuffled=True, ignores_sigint=True),
    "avx2-4": Configuration("avx2", 4, shuffled=True, load=True),
    "avx512-4": Configuration("avx512", 4, shuffled=True, ignores_sigint=True),
    "campaign": Configuration(campaign=True),
}


@dataclass
class Result:
    """How a configuration ended."""

    configuration: Configuration
    seconds: float = 0.0
    code: int | None = None
    outcomes: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether all tests of the suite should be there."""
        return self.code in (0, 1) and not self.configuration.campaign

    def count(self, outcome: str) -> int:
        return Counter(self.outcomes.values())[outcome]


@contextlib.contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """A busy loop for every core, as long as this lasts."""
    command = [sys.executable, "-c", _BUSY % os.getpid()]
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range((os.cpu_count() or 1) if wanted else 0):
            loops.append(subprocess.Popen(command, start_new_session=True))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def pytest_runtest_logreport(report: Any) -> None:
    """A hook of pytest, for which this file is a plugin: write down how a test ended."""
    path = os.environ.get(OUTCOMES)
    # What a worker reports, the process that started it reports too.
    if path is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.when == "call" or report.outcome != "passed":
        line: dict[str, str] = {"test": report.nodeid, "outcome": report.outcome}
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            line["message"] = str(getattr(crash, "message", report.longrepr))[:1000]
        write(Path(path), line)


def write(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run(name: str, report: Path, tests: list[str], seed: int, limit: float) -> None:
    """Run the tests of a configuration; how each of them ended is in a file, as they end."""
    configuration = possible(CONFIGURATIONS[name])
    action = signal.SIG_IGN if configuration.ignores_sigint else signal.SIG_DFL
    report.unlink(missing_ok=True)
    write(report, {"name": name, "configuration": asdict(configuration)})
    code, start = None, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, busy(configuration.load):
        options = ["-q", "-n", "auto", "--dist", "worksteal"]
        options += ["-p", "tests.soak", "-p", "no:cacheprovider"]
        # torch would load what it compiled for other instructions, and compute nonsense.
        places = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch", OUTCOMES: str(report)}
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env=configuration.environment(seed) | places,
            # What the shell that started this ignores must not matter.
            preexec_fn=lambda: signal.signal(signal.SIGINT, action),
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"Still running after {limit:.0f} s.", flush=True)  # noqa: T201
        finally:
            # The whole session, for a test may have left something behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            write(report, {"code": code, "seconds": time.monotonic() - start})


def read(report: Path) -> tuple[str, Result]:
    """The name of a configuration and how it ended, from the file that it wrote."""
    head, *lines = map(json.loads, report.read_text(encoding="utf-8").splitlines())
    result = Result(Configuration(**head["configuration"]))
    for line in lines:
        if "test" not in line:
            result.code, result.seconds = line["code"], line["seconds"]
        elif result.outcomes.get(line["test"]) != "failed":
            result.outcomes[line["test"]] = line["outcome"]
            if message := line.get("message"):
                result.messages[line["test"]] = message
    return head["name"], result


def differing(results: dict[str, Result]) -> dict[str, dict[str, str]]:
    """The tests that failed somewhere or did not end alike, and how each ended where."""
    found: dict[str, dict[str, str]] = {}
    for test in sorted({test for result in results.values() for test in result.outcomes}):
        ends = {
            name: result.outcomes.get(test, "missing")
            for name, result in results.items()
            if test in result.outcomes or result.whole
        }
        # The campaign does what the others skip.
        short = {end for name, end in ends.items() if not results[name].configuration.campaign}
        if len(short) > 1 or "failed" in ends.values():
            found[test] = ends
    return found


def table(results: dict[str, Result]) -> list[str]:
    """The lines of the table."""
    wide = max((len(str(result.configuration)) for result in results.values()), default=0)
    head = f"{'configuration':<{10 + wide}}"
    lines = [f"{head}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}"]
    for name, result in results.items():
        row = f"{name:<10}{result.configuration!s:<{wide}}"
        counts = "".join(f"{result.count(k):>8}" for k in ("passed", "failed", "skipped"))
        note = "" if result.code in (0, 1) else f"  did not end (code {result.code})"
        lines.append(f"{row}{counts}{result.seconds:>9.0f}{note}")
    return lines


def summary(results: dict[str, Result]) -> int:
    """Print the table, what failed and why; 0 if all is well."""
    bad = differing(results)
    lines = ["", *table(results), ""]
    for test, ends in bad.items():
        lines.append(test + ": " + ", ".join(f"{end} in {name}" for name, end in ends.items()))
        messages = {result.messages.get(test) for result in results.values()} - {None}
        lines += [f"    {line}" for text in sorted(map(str, messages)) for line in text.split("\n")]
    well = not bad and all(result.code == 0 for result in results.values())
    if well:
        lines.append("No test failed, and none ended differently.")
    print("\n".join(lines))  # noqa: T201
    return 0 if well else 1


def chosen(only: str) -> list[str]:
    """The names of the configurations to run."""
    names = only.replace(",", " ").split() or list(CONFIGURATIONS)
    if unknown := [name for name in names if name not in CONFIGURATIONS]:
        raise SystemExit(f"soak: got {unknown[0]}, expected some of: {', '.join(CONFIGURATIONS)}")
    return names


def possible(configuration: Configuration) -> Configuration:
    """The same with instructions that this processor has."""
    info = Path("/proc/cpuinfo")
    need = NEEDS.get(configuration.instructions)
    if need is None or (info.is_file() and need in info.read_text().split()):
        return configuration
    return replace(configuration, instructions="native")


def _stop(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run it all, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tests", nargs="*", help="files or folders (default: the whole suite)")
    parser.add_argument("--only", default="", help=f"some of: {', '.join(CONFIGURATIONS)}")
    parser.add_argument("--seed", type=int, default=None, help="of the order and the campaigns")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for a configuration")
    parser.add_argument("--keep", type=Path, help="folder for a file per configuration")
    parser.add_argument("--join", type=Path, nargs="+", help="only read such files: one table")
    given = parser.parse_args()
    if given.join:
        return summary(dict(map(read, given.join)))
    seed = random.SystemRandom().randrange(2**31) if given.seed is None else given.seed
    names = chosen(given.only)
    interrupted = False
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        started: list[Path] = []
        try:
            for name in names:
                configuration = possible(CONFIGURATIONS[name])
                print(f"\n== {name}: {configuration} (seed {seed})", flush=True)  # noqa: T201
                tests = given.tests or (LONG if configuration.campaign else ["tests"])
                started.append(folder / f"{name}.jsonl")
                run(name, started[-1].resolve(), tests, seed, given.limit)
        except KeyboardInterrupt:
            interrupted = True
        code = summary(dict(map(read, started)))
    lines = [f'The same again: make soak ONLY="{" ".join(names)}" SEED={seed}']
    if interrupted:
        done = [path.stem for path in started[:-1]]
        left = [name for name in names if name not in done]
        lines.insert(0, f"Interrupted. Not done: {', '.join(left)}.")
    print("\n".join(lines))  # noqa: T201
    return 130 if interrupted else code


if __name__ == "__main__":
    sys.exit(main())
