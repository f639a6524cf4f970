"""Files that were damaged: readers give what was in them, or an error of their own.

The short campaign is tried here; the long one in a process for each format, since damage can crash
the libraries that decode, and that must be a failure like any other.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("av", reason="PyAV is not installed (the extra 'video')")

from . import _damage
from ._formats import FORMATS
from .conftest import Campaign


@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_an_error_or_does_no_harm(name: str, tmp_path: Path, campaign: Campaign) -> None:
    rng = campaign.rng(name)
    seeds = [rng.randrange(2**32) for _ in range(campaign.size(10, 200))]
    if campaign.long:
        command = [sys.executable, "-m", "tests.faults._damage", name, json.dumps(seeds)]
        done = subprocess.run(
            command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=1800
        )
        last = " ".join(done.stdout.split()[-2:])
        assert done.returncode == 0, f"after {last}: {done.returncode}\n{done.stderr[-2000:]}"
        outcomes = done.stdout.split()[1::2]
    else:
        bed = _damage.Bed(name, tmp_path)
        outcomes = [bed.damage(seed) for seed in seeds]
    assert len(outcomes) == len(seeds)
    campaign.count("damaged files refused", outcomes.count("refused"))
    campaign.count("damaged files read", outcomes.count("read"))
