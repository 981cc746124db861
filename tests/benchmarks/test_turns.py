"""The benchmark of turns runs both ways, and says how they compare."""

import os
import re

import pytest

from benchmarks import turns


def test_both_ways_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    policy = os.sched_getscheduler(0)
    assert turns.main(["--ranks", "2", "--operations", "20", "--turns", "1"]) == 0
    line = r"2 ranks on 2 cores: \d+\.\d\d and \d+\.\d\d s: \d+\.\d times as fast in turns\n"
    assert re.fullmatch(line, capsys.readouterr().out)
    assert os.sched_getscheduler(0) == policy
