"""The benchmark of turns runs both ways, and says how they compare."""

import os
import re
from pathlib import Path

import pytest

from benchmarks import turns


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        ("sched_getaffinity", {0}, "needs 2 cores and has 1: allow it more, as by taskset"),
        ("sched_getscheduler", os.SCHED_BATCH, "a scheduling policy was chosen: run it without chrt"),
    ],
)
def test_what_would_show_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], function: str, value: object, message: str
) -> None:
    monkeypatch.setattr(os, function, lambda _: value)
    with pytest.raises(SystemExit):
        turns.main([])
    assert message in capsys.readouterr().err


@pytest.mark.skipif(os.sched_getscheduler(0) == os.SCHED_BATCH, reason="it is there already")
def test_a_system_that_allows_no_other_policy_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(turns, "wait_for_turns", lambda: None)
    with pytest.raises(RuntimeError, match="allows no SCHED_BATCH: both ways would be the same; run it outside of a"):
        turns.rank(0, 1, str(tmp_path), 1, turns=True)


@pytest.mark.skipif(os.sched_getscheduler(0) != os.SCHED_OTHER, reason="both ways would be the same")
def test_both_ways_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    policy = os.sched_getscheduler(0)
    assert turns.main(["--ranks", "2", "--operations", "20", "--pairs", "1"]) == 0
    line = r"2 ranks on 2 cores: \d+\.\d\d and \d+\.\d\d s: \d+\.\d times as fast in turns\n"
    assert re.fullmatch(line, capsys.readouterr().out)
    assert os.sched_getscheduler(0) == policy
