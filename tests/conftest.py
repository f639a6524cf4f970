"""Settings that all tests share."""

import os
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# What a terminal or a job of a cluster says of itself changes what is printed and who takes part.
for _name in list(os.environ):
    if _name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
        del os.environ[_name]
    if _name.startswith(("SLURM_", "MASTER_", "LOCAL_", "WORLD_", "RANK")):
        del os.environ[_name]

# Examples are the same in every run; HYPOTHESIS_PROFILE=thorough looks further, at random.
settings.register_profile(
    "quick", max_examples=15, deadline=None, derandomize=True, print_blob=True, database=None
)
settings.register_profile("thorough", max_examples=500, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Some virtual machines announce AMX and then refuse it: bfloat16 products there kill the process.
# oneDNN reads this when it is first used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Test tensors are small: threads would cost more than they bring, most of all beside pytest-xdist.
# torch reads the variable itself.
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds; leave out with -m 'not slow'")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With SLOTMESH_SHUFFLE=seed: files in random order, and the tests of each."""
    seed = os.environ.get("SLOTMESH_SHUFFLE")
    if seed is None:
        return
    rng = random.Random(seed)  # noqa: S311
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(str(item.path), []).append(item)
    tests = list(files.values())
    rng.shuffle(tests)
    for some in tests:
        rng.shuffle(some)
    items[:] = [item for some in tests for item in some]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the campaigns of tests/faults have tried, and the seed to repeat it."""
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, n in getattr(report, "user_properties", ()):
                if name.startswith("campaign: ") and report.when == "teardown":
                    totals[name.removeprefix("campaign: ")] += n
    if totals:
        terminalreporter.section("faults")
        for name, n in sorted(totals.items()):
            terminalreporter.write_line(f"{n:>9,} {name}")
        seed = os.environ.get("SLOTMESH_SEED", "0")
        terminalreporter.write_line(f"The same again: SLOTMESH_SEED={seed}")


@contextmanager
def _no_waiting() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="session")
def long() -> bool:
    """Whether to look further than `make test` has time for: in the campaign of `make soak`."""
    return os.environ.get("SLOTMESH_SOAK") == "1"


@pytest.fixture
def no_waiting() -> Callable[[], AbstractContextManager[None]]:
    """``with no_waiting():`` is an error where something waits for the GPU."""
    return _no_waiting


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A headless Chromium, one per file: while it is open, the process cannot use asyncio.

    See :func:`tests.browser.open_page`.
    """
    from .browser import open_browser

    with open_browser() as chromium:
        yield chromium
