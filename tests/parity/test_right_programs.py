"""Right programs of every kind of parallelism pass: a part of the sweep in benchmarks/parity."""

from __future__ import annotations

import pytest

from tests.whole_run import WholeRun, run_pytest, write

NAMES = (
    "ddp accumulate 4 mlp adamw 3",
    "ddp autocast mlp sgd 3",
    "ddp checkpointed mlp sgd 2",
    "ddp uneven padded language adamw 2",
    "fsdp mixed mlp adamw 2",
    "hsdp 2x2 mlp adamw 3",
    "sp language adamw 3",
    "fsdp x tp language adamw 3",
    "ring language sgd 2",
    "pipeline 1f1b language sgd 3",
)
TESTS = f"""
import pytest
from benchmarks.parity.sweep import SETUPS, _check

NAMES = {NAMES!r}

@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("name", [name for name in NAMES if SETUPS[name].world == 2])
def test_2(parity, name):
    _check(parity, name, 41)

@pytest.mark.ranks(4, timeout=60)
@pytest.mark.parametrize("name", [name for name in NAMES if SETUPS[name].world == 4])
def test_4(parity, name):
    _check(parity, name, 41)

@pytest.mark.ranks(4, timeout=60)
def test_a_near_miss_is_judged_again(parity):
    _check(parity, "fsdp x tp language adamax 2", 705)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """One run of all programs, since each run loads torch."""
    return run_pytest(write(tmp_path_factory.mktemp("right"), {"test_right.py": TESTS}), timeout=600)


def test_a_near_miss_is_judged_by_more_runs(run: WholeRun) -> None:
    assert run.outcomes["test_a_near_miss_is_judged_again[4ranks]"] == "PASSED", run.text[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_accused(run: WholeRun, name: str) -> None:
    outcomes = [outcome for test, outcome in run.outcomes.items() if test.endswith(f"-{name}]")]
    assert outcomes == ["PASSED"], run.text[-3000:]
