"""What the table of costs says of arms that ran and of arms that did not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.rank_cost import ARMS, Turn, costs, table
from tests.whole_run import ROOT, environment


def turns(**replaced: list[Turn]) -> dict[str, list[Turn]]:
    ran = {arm.module: [Turn({row: [0.5] for row in arm.rows}, {})] * 2 for arm in ARMS}
    return {**ran, **replaced}


def lines(**replaced: list[Turn]) -> list[str]:
    return list(table(costs(turns(**replaced))))


def test_ratios_are_to_the_same_runs_references() -> None:
    spawn = [Turn({"test": [3.0, 1.0]}, {}), Turn({"test": [2.0]}, {})]
    warm = next(line for line in lines(spawn=spawn) if "warm pool" in line)
    assert warm.split()[-5:] == ["500.00", "500.00-500.00", "2", "1.0x", "4.0x"]


def test_an_arm_that_failed_in_one_turn_says_why_and_has_no_figure() -> None:
    failed = Turn({}, {"test": "ModuleNotFoundError: No module named 'expecttest'"})
    found = lines(multi_process_test_case=[Turn({"test": [1.0]}, {}), failed])
    row = found[found.index("MultiProcessTestCase (MPTC)") + 1]
    assert row.endswith("not run: ModuleNotFoundError: No module named 'expecttest'")
    warm = next(line for line in found if "warm pool" in line)
    assert warm.split()[-2:] == ["-", "1.0x"]


def test_of_a_cluster_it_can_be_started_as_a_script() -> None:
    """It then finds what measures a cluster, and says what cannot be measured there."""
    pytest.importorskip("ray", reason="needs Ray: pip install pytest-gpuperf[cluster]")
    environ = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    command = [sys.executable, str(ROOT / "benchmarks" / "rank_cost.py"), "--cluster", "--ranks=3"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "each node has as many ranks: 3 ranks do not fit evenly on 2 nodes" in done.stderr
