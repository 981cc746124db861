"""Many processes at once."""

import subprocess
import sys
from pathlib import Path

from tests.leases.crowd import LEASES, RESOURCES
from tests.leases.owners import ROOT
from tests.leases.waiting import waiters

PROCESSES = 6


def test_nobody_ever_meets_and_everybody_finishes(folder: Path, tmp_path: Path) -> None:
    claims = tmp_path / "claims"
    claims.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.leases.crowd", str(folder), str(claims), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(PROCESSES)
    ]
    assert [process.communicate() for process in processes] == [(f"{LEASES}\n", "")] * PROCESSES
    assert waiters(folder) == 0
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.lock" for name in RESOURCES]
